"""A host's PCI devices as udev tells them: a sysfs tree in a directory, and stand-ins for
pyudev's devices that read it.

Paths and files are those of a server with Linux 6.1: functions below pciDDDD:BB, links to
the driver and to the IOMMU group, the group's members in /sys/kernel/iommu_groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FakeAttributes:
    """Files of a device's directory, without the end of line, as libudev gives them."""

    directory: Path

    def get(self, attribute: str) -> bytes | None:
        path = self.directory / attribute
        return path.read_bytes().rstrip(b"\n") if path.is_file() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeUdevDevice:
    """What pyudev's `Device` gives; `properties` are the kernel's and the database's."""

    sys_path: str
    subsystem: str
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def driver(self) -> str | None:
        link = Path(self.sys_path) / "driver"
        return link.readlink().name if link.is_symlink() else None

    @property
    def attributes(self) -> FakeAttributes:
        return FakeAttributes(Path(self.sys_path))


class FakeHost:
    """Builds the tree; `devices` is what udev's enumeration lists."""

    def __init__(self, base: Path, *, iommu: bool = True, vfio: bool = True) -> None:
        self.sys = base / "sys"
        self.proc = base / "proc"
        self.devices: list[FakeUdevDevice] = []
        (self.sys / "bus/pci/devices").mkdir(parents=True)
        (self.sys / "kernel/iommu_groups").mkdir(parents=True)
        if vfio:
            (self.sys / "bus/pci/drivers/vfio-pci").mkdir(parents=True)
        if iommu:
            self.function("0000:00:00.0", "0x060000", group=0)

    def function(
        self,
        bdf: str,
        pci_class: str,
        *,
        group: int | None = None,
        driver: str = "",
        below: str = "",
        **more: str,
    ) -> Path:
        """A PCI function, behind the bridge `below` if that is given; upper-case words of
        `more` are properties of the database, the others are files."""
        above = self.path(below) if below else self.sys / f"devices/pci{bdf[: bdf.rindex(':')]}"
        path = above / bdf
        files = {"vendor": "0x8086", "device": "0x1572", "numa_node": "-1", "class": pci_class}
        files |= {name: text for name, text in more.items() if not name.isupper()}
        path.mkdir(parents=True)
        for name, text in files.items():
            (path / name).write_text(f"{text}\n")
        self._link(self.sys / "bus/pci/devices" / bdf, path)
        if driver:
            (path / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        if group is not None:
            self._join(path, group)
        found = {name: text for name, text in more.items() if name.isupper()}
        self._add(path, "pci", PCI_SLOT_NAME=bdf, **found)
        return path

    def disk(self, parent: Path, name: str, number: str, *holders: str) -> Path:
        """A disk or partition below a device, with the names of what is made of it."""
        path = parent / name
        (path / "holders").mkdir(parents=True)
        for holder in holders:
            self._link(path / "holders" / holder, self.sys / "devices/virtual/block" / holder)
        major, _, minor = number.partition(":")
        self._add(path, "block", DEVNAME=f"/dev/{name}", MAJOR=major, MINOR=minor)
        return path

    def interface(self, parent: Path, name: str, upper: str = "") -> Path:
        """A network interface, and what it is a part of."""
        path = parent / name
        path.mkdir(parents=True)
        if upper:
            self._link(path / f"upper_{upper}", self.sys / "devices/virtual/net" / upper)
        self._add(path, "net", INTERFACE=name)
        return path

    def node(self, parent: Path, name: str, subsystem: str, devname: str) -> Path:
        """Any other device with a node."""
        path = parent / name
        path.mkdir(parents=True)
        self._add(path, subsystem, DEVNAME=devname)
        return path

    def virtual(self, folder: str) -> Path:
        return self.sys / "devices/virtual" / folder

    def path(self, bdf: str) -> Path:
        return (self.sys / "bus/pci/devices" / bdf).resolve()

    def stranger(self, group: int, name: str, driver: str) -> None:
        """A member of a group that is no PCI function."""
        path = self.sys / "devices/platform" / name
        path.mkdir(parents=True)
        (path / "driver").symlink_to(f"../../../bus/platform/drivers/{driver}")
        self._join(path, group)

    def _join(self, path: Path, group: int) -> None:
        directory = self.sys / f"kernel/iommu_groups/{group}"
        self._link(directory / "devices" / path.name, path)
        (path / "iommu_group").symlink_to(directory)

    def _link(self, path: Path, target: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def _add(self, path: Path, subsystem: str, **properties: str) -> None:
        device = FakeUdevDevice(sys_path=str(path), subsystem=subsystem, properties=properties)
        self.devices.append(device)
