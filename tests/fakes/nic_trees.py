"""Network interfaces in a fake sysfs, as Linux 6.12 has them.

An interface is the directory `net/NAME` of its device, where the files below lie; its
`uevent` has name and index. A device whose interfaces are all in other network
namespaces shows an empty `net`.
"""

from __future__ import annotations

from pathlib import Path

from tests.fakes.sysfs import FakeSysfs

MAC = "52:54:00:12:34:56"
ETHERNET = "0x020000"


def interface(
    sysfs: FakeSysfs, device: Path, name: str, *, mac: str = MAC, index: int = 2, mtu: int = 1500
) -> Path:
    path = device / "net" / name
    sysfs.write(path / "address", mac)
    sysfs.write(path / "mtu", str(mtu))
    sysfs.write(path / "ifindex", str(index))
    sysfs.write(path / "uevent", f"INTERFACE={name}\nIFINDEX={index}")
    sysfs.link(path / "subsystem", "../../../../../../class/net")
    sysfs.link(path / "device", str(device))
    sysfs.link(sysfs.sys / "class/net" / name, str(path))
    return path


def rename(sysfs: FakeSysfs, path: Path, name: str) -> Path:
    """As `ip link set NAME name NAME` does: the directory moves, the index stays."""
    moved = path.rename(path.parent / name)
    index = (moved / "ifindex").read_text().strip()
    sysfs.write(moved / "uevent", f"INTERFACE={name}\nIFINDEX={index}")
    (sysfs.sys / "class/net" / path.name).unlink()
    sysfs.link(sysfs.sys / "class/net" / name, str(moved))
    return moved


def virtio_net(sysfs: FakeSysfs, port: Path, bdf: str) -> Path:
    """A virtio-net function with its driver; the virtio device, which has the interface."""
    function = sysfs.function(port, bdf, pci_class=ETHERNET, driver="virtio-pci")
    return sysfs.virtio(function, "virtio2", driver="virtio_net")


def ethernet(sysfs: FakeSysfs, port: Path, bdf: str, *, driver: str = "e1000e") -> Path:
    """A function whose own driver makes interfaces."""
    function = sysfs.function(port, bdf, pci_class=ETHERNET, driver=driver)
    sysfs.write(function / "vendor", "0x8086")
    sysfs.write(function / "device", "0x10d3")
    sysfs.write(function / "power/control", "auto")
    return function
