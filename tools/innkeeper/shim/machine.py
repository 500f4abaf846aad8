"""QEMU's command line, as a value.

A q35 machine with as few devices as will do: what is not there needs no
emulation, no probing at boot and no trust. What a path or a name goes into is
JSON or escaped, so that no comma in it can become an option.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from innkeeper.shim import topology
from innkeeper.shim.accel import Accelerator
from innkeeper.shim.disks import DiskFile, DiskFormat
from innkeeper.shim.hardware import Setting
from innkeeper.shim.spec import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from innkeeper.image.model import Image
    from innkeeper.shim.spec import ColdDisk, NinePShare
    from innkeeper.shim.topology import Topology

PROGRAM = "qemu-system-x86_64"
QEMU_VARIABLE = "INNKEEPER_QEMU"
ROOT_SERIAL = "innkeeper-root"
MEMORY_ID = "memory"
_CONSOLE_SET = 1

# Off: what q35 brings by itself and nobody here uses. HPET and PIT stay, they
# are how a kernel without KVM's clock finds out how fast its TSC runs.
_LESS = "usb=off,sata=off,smbus=off,vmport=off,i8042=off,dump-guest-core=off"


# Sockets for DIMMs and NVDIMMs, in a machine whose memory can grow.
_MEMORY_SLOTS = 16

# Interrupt remapping, as the guest's VFIO asks for it; caching mode, as QEMU needs
# it for functions of the host.
_IOMMU = "intel-iommu,intremap=on,caching-mode=on"

# TCG signs as no hypervisor that Linux knows. VMware's is known by its serial number and
# its I/O port, too, where no CPU says that there is a hypervisor; QEMU makes that port
# beside the keyboard controller alone. What comes later on the command line wins.
_SIGNED = ",vmport=on,i8042=on"
_SIGNATURE = ("-smbios", "type=1,serial=VMware-innkeeper")
_UNSIGNED_CPU = "max,hypervisor=off"

# QEMU may not gain privileges or start programs, whatever a guest makes of it.
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny"


def program(environ: Mapping[str, str] = os.environ) -> str:
    """The QEMU that `INNKEEPER_QEMU` names (on PATH, or by its absolute path), else PATH's own."""
    return environ.get(QEMU_VARIABLE) or PROGRAM


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestLink:
    """What a transport adds to QEMU's command line."""

    arguments: tuple[str, ...] = ()
    shared_memory: bool = False
    """A process other than QEMU reads the guest's memory (vhost-user)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipes:
    """Descriptors that QEMU inherits: connected, so that nothing has to be looked up,
    waited for or guarded in a directory."""

    monitor: int
    """A socket."""
    console: int
    """The writing end of a pipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineShape:
    """One machine, complete."""

    name: str
    image: Image
    accel: Accelerator
    memory: int
    cpus: int
    topology: Topology
    link: GuestLink
    console_log: Path
    cold_disks: tuple[ColdDisk, ...] = ()
    shares_9p: tuple[NinePShare, ...] = ()
    cmdline: tuple[str, ...] = ()
    max_memory: int = 0
    max_cpus: int = 0
    nvdimm: bool = False
    iommu: bool = False
    private_memory: bool = False
    """No process beside QEMU can have the guest's memory, unless the link's needs it."""
    cold: tuple[str, ...] = ()
    """Options of the hardware that is in its ports from the start."""
    program: str = field(default_factory=program)

    @property
    def setting(self) -> Setting:
        """What hardware has to know of this machine."""
        return Setting(
            vm=self.name,
            directory=self.console_log.parent,
            shared_memory=self._is_shared,
            max_memory=self.max_memory,
            room=max(self.max_memory - self.memory, 0),
            nvdimm=self.nvdimm,
            emulated=self.accel is Accelerator.TCG,
            more_cpus=max(self.max_cpus - self.cpus, 0),
            iommu=self.iommu,
        )

    def argv(self, pipes: Pipes) -> tuple[str, ...]:
        """Program and arguments."""
        return (
            self.program,
            *("-name", _escape(f"innkeeper-{self.name}")),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
            *("-sandbox", _SANDBOX),
            *self._machine(),
            *self._kernel(),
            *self._console_and_monitor(pipes),
            # An IOMMU sees only the devices that come after it.
            *(("-device", _IOMMU) if self.iommu else ()),
            *self._disks(),
            *self._shares_9p(),
            *self._random(),
            *self.link.arguments,
            *(word for device in self.topology.devices for word in ("-device", device)),
            *self.cold,
        )

    def kernel_cmdline(self) -> str:
        # panic=-1: a panic resets the machine at once, and with -no-reboot that
        # ends QEMU, so that a dead kernel is noticed.
        words = (self.image.cmdline, "console=ttyS0", "panic=-1", *self._abilities(), *self.cmdline)
        return " ".join(word for word in words if word)

    def _abilities(self) -> tuple[str, ...]:
        """What the guest's kernel must be told of the machine."""
        iommu = ("intel_iommu=on",) if self.iommu else ()
        # Else its own tables get into memory that comes later, which then never goes.
        movable = ("memhp_default_state=online_movable",) if self.max_memory else ()
        return iommu + movable

    def _machine(self) -> tuple[str, ...]:
        backend = f",memory-backend={MEMORY_ID}" if self._is_shared else ""
        nvdimm = ",nvdimm=on" if self.nvdimm else ""
        signed = _SIGNED if self._lacks_signature else ""
        return (
            *("-machine", f"q35,{_LESS}{signed}{nvdimm}{backend}"),
            *self._accelerator(),
            *(_SIGNATURE if self._lacks_signature else ()),
            *("-smp", self._cpus()),
            *("-m", self._memory()),
            *self._shared_memory(),
        )

    @property
    def _is_shared(self) -> bool:
        """Directories can be shared with it then: virtiofsd reads and writes its memory. It
        is memory of a file without a name, which costs nothing that was measured."""
        return self.link.shared_memory or not self.private_memory

    @property
    def _lacks_signature(self) -> bool:
        """Linux counts CPUs that are to come only where it knows a hypervisor below it."""
        return self.accel is Accelerator.TCG and self.max_cpus > self.cpus

    def _cpus(self) -> str:
        if self.max_cpus <= self.cpus:
            return str(self.cpus)
        # A socket for each: where it knows no hypervisor, Linux takes no CPU that comes
        # to a socket in which there is one already for a real one.
        room = f"maxcpus={self.max_cpus},sockets={self.max_cpus},cores=1,threads=1"
        return f"{self.cpus},{room}"

    def _accelerator(self) -> tuple[str, ...]:
        option, name, *rest = _ACCELERATORS[self.accel]
        if self._lacks_signature:
            rest = [_UNSIGNED_CPU if word == "max" else word for word in rest]
        # KVM's own interrupt controller can't be behind an IOMMU.
        split = ",kernel-irqchip=split" if self.iommu and self.accel is Accelerator.KVM else ""
        return option, f"{name}{split}{self._threads()}", *rest

    def _threads(self) -> str:
        """Emulated CPUs that run at once may execute code that Linux has patched already.

        Linux changes its own code while it runs (static keys), by way of a breakpoint.
        A CPU on a thread of its own can meet that breakpoint after Linux believes that
        it is gone from every CPU, and the guest panics. In turns, none can.
        """
        if self.accel is not Accelerator.TCG:
            return ""
        return ",thread=single" if max(self.cpus, self.max_cpus) > 1 else ",thread=multi"

    def _memory(self) -> str:
        size = f"{self.memory // MIB}M"
        if not self.max_memory:
            return size
        return f"{size},slots={_MEMORY_SLOTS},maxmem={self.max_memory // MIB}M"

    def _shared_memory(self) -> tuple[str, ...]:
        if not self._is_shared:
            return ()
        backend = {
            "qom-type": "memory-backend-memfd",
            "id": MEMORY_ID,
            "size": self.memory,
            "share": True,
        }
        return ("-object", json.dumps(backend))

    def _kernel(self) -> tuple[str, ...]:
        return (
            *("-kernel", str(self.image.kernel_path)),
            *("-initrd", str(self.image.initrd_path)),
            *("-append", self.kernel_cmdline()),
        )

    def _console_and_monitor(self, pipes: Pipes) -> tuple[str, ...]:
        return (
            *("-add-fd", f"fd={pipes.console},set={_CONSOLE_SET}"),
            *("-chardev", f"file,id=console,path=/dev/fdset/{_CONSOLE_SET},append=on"),
            *("-serial", "chardev:console"),
            *("-chardev", f"socket,id=monitor,fd={pipes.monitor}"),
            *("-mon", "chardev=monitor,mode=control"),
        )

    def _disks(self) -> tuple[str, ...]:
        root = DiskFile(
            path=self.image.root_path.absolute(),
            format=DiskFormat.RAW,
            read_only=True,
            is_device=False,
        )
        words = _disk(root, "root", ROOT_SERIAL, topology.ROOT_DISK_SLOT)
        for index, cold in enumerate(self.cold_disks):
            file = DiskFile.check(str(cold.file), cold.format, read_only=cold.read_only)
            words += _disk(file, f"cold{index}", cold.serial, topology.cold_slot(index))
        return words

    def _shares_9p(self) -> tuple[str, ...]:
        """What the guest's root makes is root's on the host too, if QEMU is; else it is the
        user's, and a change of the owner does nothing."""
        model = "passthrough" if os.geteuid() == 0 else "none"
        words: list[str] = []
        for index, share in enumerate(self.shares_9p):
            path, tag = _escape(str(share.directory)), _escape(share.tag)
            ending = ",readonly=on" if share.read_only else ""
            slot = topology.cold_slot(len(self.cold_disks) + index)
            device = f"virtio-9p-pci,fsdev=ninep{index},mount_tag={tag}"
            backend = f"local,id=ninep{index},path={path},security_model={model},multidevs=remap"
            words += ("-fsdev", f"{backend}{ending}")
            words += ("-device", f"{device},bus={topology.ROOT_BUS},addr={slot:02x}")
        return tuple(words)

    def _random(self) -> tuple[str, ...]:
        source = {"qom-type": "rng-random", "id": "random", "filename": "/dev/urandom"}
        device = f"virtio-rng-pci,rng=random,bus={topology.ROOT_BUS}"
        return (
            *("-object", json.dumps(source)),
            *("-device", f"{device},addr={topology.RANDOM_SLOT:02x}"),
        )


_ACCELERATORS: dict[Accelerator, tuple[str, ...]] = {
    Accelerator.KVM: ("-accel", "kvm", "-cpu", "host"),
    Accelerator.TCG: ("-accel", "tcg", "-cpu", "max"),
}


def _disk(file: DiskFile, node: str, serial: str, slot: int) -> tuple[str, ...]:
    # Not as JSON: QEMU makes such devices after all others, and the ones without
    # an address of their own would have taken this slot by then.
    device = f"virtio-blk-pci,id={node},drive={node},serial={_escape(serial)}"
    place = f"bus={topology.ROOT_BUS},addr={slot:02x}"
    return ("-blockdev", json.dumps(file.blockdev(node)), "-device", f"{device},{place}")


def _escape(text: str) -> str:
    """A value in QEMU's own option syntax: a comma is written twice."""
    return text.replace(",", ",,")
