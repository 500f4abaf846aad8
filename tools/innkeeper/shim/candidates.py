"""The host's PCI functions that a VM could be given, by what udev knows of them.

A function can be given away when it is behind an IOMMU, nothing of the host uses it,
and no other member of its IOMMU group has a driver that does DMA of its own. Facts:
Documentation/driver-api/vfio.rst (a group is the smallest unit; PCI bridges may keep
their driver), drivers/iommu/iommu.c (`driver_managed_dma`: pcieport, pci-stub and the
VFIO drivers), Documentation/ABI/testing/sysfs-bus-pci (driver_override, sriov_numvfs).
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from innkeeper.shim import host_use
from innkeeper.shim.pci_classes import in_words, is_bridge, is_display

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from innkeeper.shim.host_use import HostUse

BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

_HARMLESS = frozenset({"", "pcieport", "pci-stub"})
_LISTINGS = 10
_NVME_PATH = re.compile(r"(nvme\d+)c\d+(n\d+)")


class UdevAttributes(Protocol):
    """The part of pyudev's `Attributes` that we use: sysfs files of a device."""

    def get(self, attribute: str) -> bytes | None: ...


class UdevDevice(Protocol):
    """The part of pyudev's `Device` that we use."""

    @property
    def sys_path(self) -> str: ...
    @property
    def subsystem(self) -> str | None: ...
    @property
    def driver(self) -> str | None: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    @property
    def attributes(self) -> UdevAttributes: ...


class Obstacle(StrEnum):
    """Why a function can't be given away; names for programs, never renamed."""

    BRIDGE = "BRIDGE"
    """It carries the host's own buses."""
    NO_IOMMU = "NO_IOMMU"
    """The host has no IOMMU, or doesn't use it."""
    NO_GROUP = "NO_GROUP"
    """There is an IOMMU, but not for this function."""
    UNSAFE_GROUP = "UNSAFE_GROUP"
    """A group without an IOMMU behind it (vfio-noiommu), which QEMU refuses."""
    GROUP_MEMBER = "GROUP_MEMBER"
    """Another member of its group still belongs to the host."""
    DISK_IN_USE = "DISK_IN_USE"
    """A file system, swap or another disk of the host lies on it."""
    NIC_IN_USE = "NIC_IN_USE"
    """The host's default route goes through it, or it is part of a bridge or bond."""
    BOOT_DISPLAY = "BOOT_DISPLAY"
    """The host's console is on it."""
    NODE_IN_USE = "NODE_IN_USE"
    """A process has one of its device nodes open."""
    VIRTUAL_FUNCTIONS = "VIRTUAL_FUNCTIONS"
    """It is the owner of SR-IOV functions that are there now."""
    GIVEN_AWAY = "GIVEN_AWAY"
    """A process, a VM as a rule, has it already."""


class CandidatesError(Exception):
    """Nothing can be said of this host's devices: why, and the way out."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """One obstacle: `why` it is there, and the `remedy`."""

    obstacle: Obstacle
    why: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A function (or other device) of an IOMMU group; `driver` is empty without one."""

    address: str
    kind: str
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One PCI function of the host.

    `kind` is its class in words, `pci_class` in hexadecimal as sysfs has it, `pci_id`
    "8086:1572". `group` is None outside any IOMMU group; `members` are all of it, this
    one too. `bind` are root's commands that make it ready, `release` those that give it
    back to the host's driver; each is empty when there is nothing to do, or no use in it.
    """

    address: str
    name: str
    kind: str
    pci_class: str
    pci_id: str
    driver: str
    group: int | None
    members: tuple[Member, ...]
    numa_node: int | None
    objections: tuple[Objection, ...] = ()
    bind: tuple[str, ...] = ()
    release: tuple[str, ...] = ()

    @property
    def can_be_given(self) -> bool:
        return not self.objections

    @property
    def is_bound(self) -> bool:
        """Whether a VFIO driver has it, so that QEMU can take it."""
        return is_vfio(self.driver)

    @property
    def is_bridge(self) -> bool:
        return is_bridge(int(self.pci_class, 16))


def is_vfio(driver: str) -> bool:
    """Whether it is vfio-pci or a vendor's variant of it, such as mlx5_vfio_pci."""
    return driver.replace("-", "_").endswith("vfio_pci")


def survey(sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> tuple[Candidate, ...]:
    """All PCI functions of this host, by address.

    Raises CandidatesError where there is no libudev or no PCI bus.
    """
    if not (sys / "bus/pci/devices").is_dir():
        raise CandidatesError(
            f"this host has no PCI bus: there is no {sys}/bus/pci/devices",
            hint="only PCI functions can be given to a VM; is sysfs mounted?",
        )
    return candidates(_udev_devices(), host_use.read(proc), sys)


def _udev_devices() -> list[UdevDevice]:
    try:
        import pyudev

        context = pyudev.Context()  # type: ignore[no-untyped-call]
    except ImportError as error:
        raise CandidatesError(
            f"the host's devices can't be listed: {error}",
            hint="libudev is missing: install it (Debian: apt install libudev1)",
        ) from error
    for _ in range(_LISTINGS):
        # A device that goes while it is listed ends the listing.
        with contextlib.suppress(pyudev.DeviceNotFoundError):
            return list(context.list_devices())  # type: ignore[no-untyped-call]
    raise CandidatesError(
        f"the host's devices can't be listed: some went away during each of {_LISTINGS} tries",
        hint="try again when fewer devices come and go",
    )


def candidates(devices: Iterable[UdevDevice], use: HostUse, sys: Path) -> tuple[Candidate, ...]:
    """The same of any devices: those of udev's whole list that are PCI functions, by address."""
    found = _Host(devices, use, sys)
    return tuple(found.candidate(address) for address in sorted(found.functions, key=_order))


def _order(address: str) -> tuple[int, str]:
    """Domains may have more than four digits (VMD)."""
    domain, _, rest = address.partition(":")
    return int(domain, 16), rest


class _Host:
    """What is there, and which parts belong to which function."""

    def __init__(self, devices: Iterable[UdevDevice], use: HostUse, sys: Path) -> None:
        self.use = use
        self.sys = sys
        self.functions: dict[str, UdevDevice] = {}
        self.disks: dict[str, UdevDevice] = {}
        self._parts: dict[str, list[UdevDevice]] = defaultdict(list)
        for device in devices:
            self._sort_in(device)
        self._own = {address: tuple(self._objections(address)) for address in self.functions}

    def _sort_in(self, device: UdevDevice) -> None:
        path = Path(device.sys_path)
        if device.subsystem == "pci" and BDF.fullmatch(path.name):
            # One that has just gone has no files any more.
            if device.attributes.get("class"):
                self.functions[path.name] = device
            return
        if device.subsystem == "block":
            self.disks[path.name] = device
        # The nearest function above it: a bridge has not what is behind it.
        owner = next((part for part in reversed(path.parts) if BDF.fullmatch(part)), None)
        if owner is not None:
            self._parts[owner].append(device)

    def candidate(self, address: str) -> Candidate:
        device = self.functions[address]
        described = _describe(device, address)
        group = self._group(device)
        described = replace(described, group=group, members=tuple(self._members(group)))
        objections = (*self._own[address], *self._objections_of_group(described))
        held = any(objection.obstacle is Obstacle.GIVEN_AWAY for objection in objections)
        return replace(
            described,
            objections=objections,
            bind=tuple(self._bind(described, objections)),
            release=release(address) if described.is_bound and not held else (),
        )

    def _group(self, device: UdevDevice) -> int | None:
        name = _link(Path(device.sys_path) / "iommu_group")
        return int(name) if name.isdecimal() else None

    def _members(self, group: int | None) -> Iterator[Member]:
        """Of any bus: a group may hold a platform device too."""
        directory = self.sys / f"kernel/iommu_groups/{group}/devices"
        for name in [] if group is None else _names(directory):
            device = self.functions.get(name)
            if device is None:
                driver = _link(directory / name / "driver")
                yield Member(address=name, kind="not a PCI function", driver=driver)
            else:
                kind = in_words(_class_of(device))
                yield Member(address=name, kind=kind, driver=device.driver or "")

    def _objections(self, address: str) -> Iterator[Objection]:
        """What speaks against it, leaving its group's other members out of account."""
        device = self.functions[address]
        if is_bridge(_class_of(device)):
            yield _bridge(_class_of(device))
            return
        yield from self._without_iommu(device)
        yield from self._disks_in_use(address)
        yield from self._nics_in_use(address)
        yield from _display(device)
        yield from _virtual_functions(device)
        yield from self._open_nodes(address)

    def _without_iommu(self, device: UdevDevice) -> Iterator[Objection]:
        group = self._group(device)
        groups = self.sys / "kernel/iommu_groups"
        if group is None and not (groups.is_dir() and any(groups.iterdir())):
            yield _NO_IOMMU
        elif group is None:
            yield _NO_GROUP
        elif _text(groups / str(group) / "name") == "vfio-noiommu":
            yield _unsafe(group)

    def _disks_in_use(self, address: str) -> Iterator[Objection]:
        for part in self._parts[address]:
            if part.subsystem != "block":
                continue
            name = self._head(Path(part.sys_path).name)
            used = self._use_of_disk(name)
            if used is not None:
                yield _disk(f"{name} {used}")

    def _head(self, name: str) -> str:
        """With NVMe multipath a controller holds a hidden path to the disk itself."""
        match = _NVME_PATH.fullmatch(name)
        return match[1] + match[2] if match else name

    def _use_of_disk(self, name: str) -> str | None:
        """What lies on a disk or partition, also on top of device-mapper and md."""
        disk = self.disks.get(name)
        if disk is None:
            return None
        number = ":".join(disk.properties.get(key, "") for key in ("MAJOR", "MINOR"))
        node = disk.properties.get("DEVNAME", "")
        where = self.use.mounts.get(number) or self.use.mounts.get(node)
        if where is not None:
            return f"is mounted on {where}"
        if node in self.use.swaps:
            return "is swap"
        for holder in _names(Path(disk.sys_path) / "holders"):
            return _part_of(holder, self._use_of_disk(holder))
        return None

    def _nics_in_use(self, address: str) -> Iterator[Objection]:
        for part in self._parts[address]:
            if part.subsystem != "net":
                continue
            path = Path(part.sys_path)
            used = self._use_of_nic(path)
            if used is not None:
                yield _nic(f"{path.name} {used}")

    def _use_of_nic(self, path: Path) -> str | None:
        if path.name in self.use.routes:
            return "has the default route"
        for upper in _names(path, "upper_"):
            rest = self._use_of_nic((path / upper).resolve())
            return _part_of(upper.removeprefix("upper_"), rest)
        return None

    def _open_nodes(self, address: str) -> Iterator[Objection]:
        device = self.functions[address]
        bound = is_vfio(device.driver or "")
        group = self._group(device)
        nodes = [part.properties.get("DEVNAME", "") for part in self._parts[address]]
        if bound and group is not None:
            nodes.append(f"/dev/vfio/{group}")
        for node in nodes:
            holder = self.use.openers.get(node)
            if holder is not None:
                yield _open(node, holder, given=bound)

    def _objections_of_group(self, candidate: Candidate) -> Iterator[Objection]:
        if candidate.is_bridge:
            return
        for member in candidate.members:
            if member.address == candidate.address or self._is_harmless(member):
                continue
            reasons = self._own.get(member.address, ())
            yield _member(member, candidate.group, reasons)

    def _is_harmless(self, member: Member) -> bool:
        return member.driver in _HARMLESS or is_vfio(member.driver)

    def _bind(self, candidate: Candidate, objections: tuple[Objection, ...]) -> Iterator[str]:
        """The commands, unless they would help nothing, or take from the host what it uses."""
        if any(objection.obstacle is not Obstacle.GROUP_MEMBER for objection in objections):
            return
        members = [m for m in candidate.members if m.address != candidate.address]
        taken = [m for m in members if not self._is_harmless(m)]
        if any(m.address not in self._own or self._own[m.address] for m in taken):
            return
        wanted = [] if candidate.is_bound else [candidate.address]
        wanted += [member.address for member in taken]
        if wanted and not (self.sys / "bus/pci/drivers/vfio-pci").is_dir():
            yield "modprobe vfio-pci"
        for address in wanted:
            yield from bind(address, driver=self.functions[address].driver or "")


def bind(address: str, *, driver: str) -> tuple[str, ...]:
    """Commands that put vfio-pci in the place of a function's driver, in the order that is
    safe: with the override set first, nothing else can take it in between."""
    base = f"/sys/bus/pci/devices/{address}"
    unbind = (f"echo {address} > {base}/driver/unbind",) if driver else ()
    return (
        f"echo vfio-pci > {base}/driver_override",
        *unbind,
        f"echo {address} > /sys/bus/pci/drivers_probe",
    )


def release(address: str) -> tuple[str, ...]:
    """Commands that give a function back to the host's own driver."""
    base = f"/sys/bus/pci/devices/{address}"
    return (
        f"echo > {base}/driver_override",
        f"echo {address} > {base}/driver/unbind",
        f"echo {address} > /sys/bus/pci/drivers_probe",
    )


def _describe(device: UdevDevice, address: str) -> Candidate:
    ids = [_attribute(device, name).removeprefix("0x") for name in ("vendor", "device")]
    node = _attribute(device, "numa_node")
    return Candidate(
        address=address,
        name=_name(device) or ":".join(ids),
        kind=in_words(_class_of(device)),
        pci_class=_attribute(device, "class"),
        pci_id=":".join(ids),
        driver=device.driver or "",
        group=None,
        members=(),
        numa_node=int(node) if node.isdecimal() else None,
    )


def _name(device: UdevDevice) -> str:
    """From udev's hardware database; a host without a running udevd has no such properties."""
    words = (device.properties.get(f"ID_{part}_FROM_DATABASE", "") for part in ("VENDOR", "MODEL"))
    return " ".join(word for word in words if word)


def _class_of(device: UdevDevice) -> int:
    return int(_attribute(device, "class") or "0", 16)


def _attribute(device: UdevDevice, name: str) -> str:
    return (device.attributes.get(name) or b"").decode(errors="replace").strip()


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _link(path: Path) -> str:
    """The last part of a symbolic link's target; empty without one."""
    try:
        return path.readlink().name
    except OSError:
        return ""


def _names(directory: Path, prefix: str = "") -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir() if path.name.startswith(prefix))
    except OSError:
        return []


_NO_IOMMU = Objection(
    obstacle=Obstacle.NO_IOMMU,
    why="the host has no IOMMU in use",
    remedy=(
        "turn on VT-d or AMD-Vi in the firmware and, with Intel, intel_iommu=on on the"
        " kernel's command line; in a VM, have the hypervisor give it an IOMMU"
    ),
)
_NO_GROUP = Objection(
    obstacle=Obstacle.NO_GROUP,
    why="it is in no IOMMU group, so the host's IOMMU does not serve it",
    remedy="move it to a slot that the IOMMU serves, or see what the kernel log says of it",
)


def _part_of(whole: str, use_of_whole: str | None) -> str:
    return f"is part of {whole}" + (f", which {use_of_whole}" if use_of_whole else "")


def _bridge(code: int) -> Objection:
    return Objection(
        obstacle=Obstacle.BRIDGE,
        why=f"it is a {in_words(code)}: the host's own buses hang on it",
        remedy="give away what is behind it",
    )


def _unsafe(group: int) -> Objection:
    return Objection(
        obstacle=Obstacle.UNSAFE_GROUP,
        why=f"its group {group} has no IOMMU behind it (vfio-noiommu), which QEMU refuses",
        remedy=_NO_IOMMU.remedy,
    )


def _disk(used: str) -> Objection:
    from_it = used.endswith("mounted on /")
    return Objection(
        obstacle=Obstacle.DISK_IN_USE,
        why=f"its disk {used}",
        remedy="keep it: the host runs from it" if from_it else "unmount or stop that first",
    )


def _nic(used: str) -> Objection:
    return Objection(
        obstacle=Obstacle.NIC_IN_USE,
        why=f"its interface {used}",
        remedy="have the host's network go another way first, or it is cut off",
    )


def _display(device: UdevDevice) -> Iterator[Objection]:
    if is_vfio(device.driver or "") or not is_display(_class_of(device)):
        return
    if _attribute(device, "boot_vga") == "1":
        yield Objection(
            obstacle=Obstacle.BOOT_DISPLAY,
            why="the host's console is on it (boot VGA)",
            remedy="choose another display in the firmware, or run the host without one",
        )


def _virtual_functions(device: UdevDevice) -> Iterator[Objection]:
    count = _attribute(device, "sriov_numvfs")
    if count in ("", "0"):
        return
    path = Path(device.sys_path)
    own = [_link(path / name) for name in _names(path, "virtfn")]
    yield Objection(
        obstacle=Obstacle.VIRTUAL_FUNCTIONS,
        why=f"{count} virtual functions of it are enabled: {', '.join(own)}",
        remedy=(
            "give those away instead, or end them:"
            f" echo 0 > /sys/bus/pci/devices/{path.name}/sriov_numvfs"
        ),
    )


def _open(node: str, holder: str, *, given: bool) -> Objection:
    return Objection(
        obstacle=Obstacle.GIVEN_AWAY if given else Obstacle.NODE_IN_USE,
        why=f"{holder} has {node} open",
        remedy="unplug it from that VM first" if given else "stop that process first",
    )


def _member(member: Member, group: int | None, reasons: tuple[Objection, ...]) -> Objection:
    why = f"{member.address} ({member.kind}) of its group {group} has the driver {member.driver}"
    if not reasons:
        remedy = f"bind {member.address} to vfio-pci too: a group is given away as a whole"
    else:
        why += f", and {reasons[0].why}"
        remedy = f"{reasons[0].remedy} (for {member.address})"
    return Objection(obstacle=Obstacle.GROUP_MEMBER, why=why, remedy=remedy)
