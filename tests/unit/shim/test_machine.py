"""QEMU's command line as a value."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from innkeeper.image.model import Flavour, Image
from innkeeper.shim import topology
from innkeeper.shim.accel import Accelerator
from innkeeper.shim.machine import GuestLink, MachineShape, Pipes
from innkeeper.shim.spec import ColdDisk, NinePShare
from innkeeper.shim.topology import Layout

pytestmark = [pytest.mark.unit, pytest.mark.boot]

PIPES = Pipes(monitor=7, console=8)


@pytest.fixture
def shape(tmp_path: Path) -> MachineShape:
    image = Image(
        directory=tmp_path,
        flavour=Flavour.CLOUD,
        kernel="vmlinuz",
        initrd="initrd.img",
        root="root.ext4",
        cmdline="cgroup_no_v1=all",
        inputs_hash="",
        kernel_version="",
        size=1,
    )
    return MachineShape(
        name="web",
        image=image,
        accel=Accelerator.TCG,
        memory=512 << 20,
        cpus=2,
        topology=topology.build(Layout(ports=3)),
        link=GuestLink(arguments=("-device", "virtio-serial-pci,id=serial0")),
        console_log=tmp_path / "console.log",
    )


def values(argv: tuple[str, ...], option: str) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv) if word == option]


def test_the_root_is_a_read_only_disk_with_our_serial(shape: MachineShape) -> None:
    argv = shape.argv(PIPES)
    (backend,) = (json.loads(text) for text in values(argv, "-blockdev"))
    assert backend["read-only"] is True
    assert backend["driver"] == "raw"
    assert backend["file"]["filename"].endswith("root.ext4")
    (root,) = [text for text in values(argv, "-device") if text.startswith("virtio-blk-pci")]
    assert "serial=innkeeper-root" in root


def test_nothing_is_there_by_default_and_a_reset_ends_qemu(shape: MachineShape) -> None:
    argv = shape.argv(PIPES)
    assert {"-nodefaults", "-no-user-config", "-no-reboot"} <= set(argv)
    assert values(argv, "-display") == ["none"]


def test_the_kernel_gets_the_images_words_then_ours_then_the_users(shape: MachineShape) -> None:
    told = replace(shape, cmdline=("agent.log=debug",)).kernel_cmdline()
    assert told == "cgroup_no_v1=all console=ttyS0 panic=-1 agent.log=debug"


def test_a_machine_that_can_grow_has_room_and_a_socket_for_each_cpu(shape: MachineShape) -> None:
    """Memory that comes is for movable pages, so that it can go; and without a hypervisor's
    signature Linux takes no second CPU into a socket."""
    grows = replace(shape, max_memory=4 << 30, max_cpus=4, nvdimm=True)
    argv = grows.argv(PIPES)
    assert values(argv, "-m") == ["512M,slots=16,maxmem=4096M"]
    assert values(argv, "-smp") == ["2,maxcpus=4,sockets=4,cores=1,threads=1"]
    assert ",nvdimm=on" in values(argv, "-machine")[0]
    assert "memhp_default_state=online_movable" in grows.kernel_cmdline()
    assert grows.setting.more_cpus == 2


def test_an_emulated_guest_that_can_grow_takes_itself_for_vmwares(shape: MachineShape) -> None:
    """arch/x86/kernel/acpi/boot.c: a CPU that is not there yet counts only for a guest of a
    hypervisor that Linux knows; vmware.c knows it by its serial number and its port."""
    grows = replace(shape, max_cpus=4)
    argv = grows.argv(PIPES)
    assert ",vmport=on,i8042=on," in values(argv, "-machine")[0]
    assert values(argv, "-smbios") == ["type=1,serial=VMware-innkeeper"]
    assert values(argv, "-cpu") == ["max,hypervisor=off"]
    for plain in (shape, replace(grows, accel=Accelerator.KVM)):
        assert values(plain.argv(PIPES), "-smbios") == []


def test_an_iommu_comes_before_what_is_behind_it(shape: MachineShape) -> None:
    """QEMU's intel-iommu knows only the devices made after it; KVM's interrupt
    controller must be split to have its interrupts remapped."""
    behind = replace(shape, iommu=True)
    devices = values(behind.argv(PIPES), "-device")
    assert devices[0].startswith("intel-iommu,intremap=on")
    assert "intel_iommu=on" in behind.kernel_cmdline()
    kvm = replace(behind, accel=Accelerator.KVM).argv(PIPES)
    assert values(kvm, "-accel") == ["kvm,kernel-irqchip=split"]


def test_monitor_and_console_are_the_inherited_descriptors(shape: MachineShape) -> None:
    chardevs = values(shape.argv(PIPES), "-chardev")
    assert any(text.startswith("socket,id=monitor,fd=7") for text in chardevs)
    assert "file,id=console,path=/dev/fdset/1,append=on" in chardevs
    assert values(shape.argv(PIPES), "-add-fd") == ["fd=8,set=1"]


def test_qemu_does_not_log_the_console_itself(shape: MachineShape) -> None:
    """chardev/char.c: what a socket that is full does not take is logged again with
    each further try."""
    assert not any("logfile" in word for word in shape.argv(PIPES))


def test_memory_is_shared_unless_it_is_to_be_private_and_no_transport_needs_it(
    shape: MachineShape,
) -> None:
    private = replace(shape, private_memory=True)
    assert not any("memory-backend" in word for word in private.argv(PIPES))
    assert not private.setting.shared_memory
    needed = replace(private, link=GuestLink(shared_memory=True))
    assert needed.argv(PIPES) == replace(shape, link=GuestLink(shared_memory=True)).argv(PIPES)
    shared = shape.argv(PIPES)
    assert "memory-backend=memory" in values(shared, "-machine")[0]
    backend = json.loads(values(shared, "-object")[0])
    assert backend == {
        "qom-type": "memory-backend-memfd",
        "id": "memory",
        "size": 512 << 20,
        "share": True,
    }


def test_a_comma_in_a_serial_becomes_no_option(shape: MachineShape, tmp_path: Path) -> None:
    """QEMU ends an option's value at a comma unless it is written twice."""
    (tmp_path / "cold.img").write_bytes(bytes(512))
    cold = ColdDisk(file=tmp_path / "cold.img", serial="a,b")
    argv = replace(shape, cold_disks=(cold,)).argv(PIPES)
    assert any("serial=a,,b" in text for text in values(argv, "-device"))


def test_a_cold_disk_lies_on_the_root_bus(shape: MachineShape, tmp_path: Path) -> None:
    (tmp_path / "cold.img").write_bytes(bytes(512))
    cold = ColdDisk(file=tmp_path / "cold.img", serial="cold", read_only=True)
    argv = replace(shape, cold_disks=(cold,)).argv(PIPES)
    (device,) = [text for text in values(argv, "-device") if "id=cold0" in text]
    assert "serial=cold" in device
    assert device.endswith("bus=pcie.0,addr=05")


def test_each_accelerator_has_its_cpu(shape: MachineShape) -> None:
    assert values(shape.argv(PIPES), "-cpu") == ["max"]
    assert values(replace(shape, accel=Accelerator.KVM).argv(PIPES), "-cpu") == ["host"]


def test_emulated_cpus_take_turns(shape: MachineShape) -> None:
    """Side by side they can run into a breakpoint of Linux's own that is gone already."""
    for several in (replace(shape, cpus=2), replace(shape, cpus=1, max_cpus=2)):
        assert values(several.argv(PIPES), "-accel") == ["tcg,thread=single"]
        kvm = replace(several, accel=Accelerator.KVM)
        assert values(kvm.argv(PIPES), "-accel") == ["kvm"]
    assert values(replace(shape, cpus=1).argv(PIPES), "-accel") == ["tcg,thread=multi"]


def test_a_share_by_9p_is_there_from_the_start_and_its_path_whole(
    shape: MachineShape, tmp_path: Path
) -> None:
    """qemu-options.hx, -fsdev local; a comma in a value is written twice."""
    share = NinePShare(tag="src", directory=tmp_path / "a,b", read_only=True)
    argv = replace(shape, shares_9p=(share,)).argv(PIPES)
    (backend,) = values(argv, "-fsdev")
    assert backend.startswith(f"local,id=ninep0,path={tmp_path}/a,,b,security_model=")
    assert backend.endswith(",readonly=on")
    (device,) = [text for text in values(argv, "-device") if text.startswith("virtio-9p-pci")]
    assert device.endswith("fsdev=ninep0,mount_tag=src,bus=pcie.0,addr=05")
