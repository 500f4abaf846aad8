"""From an address, of whatever form, to the device that sysfs has there now.

A place is the device's own directory below /sys/devices and, for what is on or
behind PCI, the function. Each form of address has one search here; all are pure,
so the hotplug board can run them again whenever something near has happened.

Facts: /sys/bus/scsi/devices has targets and hosts beside devices; /proc/iomem names
the platform device of a virtio-mmio register window (drivers/virtio/virtio_mmio.c);
/sys/dev/{block,char}/MAJOR:MINOR leads to a node's device
(Documentation/ABI/testing/sysfs-dev); an interface's `device` link is what tells a
physical one from a VLAN, bond or bridge (Documentation/ABI/testing/sysfs-class-net).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.addresses import (
    Address,
    CcwAddress,
    MacAddress,
    MmioAddress,
    NodePath,
    ScsiAddress,
    ScsiName,
)
from agent.core.pci import Bdf, PciPath
from agent.core.tree import PciFunction, SysfsTree, locate, path_of
from agent.core.verdict import Failed, NotYet, Order, Ready, Verdict

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A device that sysfs has now; `directory` is absolute and real.

    `function` is the PCI function that it is or is behind of. `interface` is set where
    the address (a MAC) named one interface of several.
    """

    directory: Path
    function: PciFunction | None = None
    interface: str | None = None

    @property
    def is_function(self) -> bool:
        return self.function is not None and self.function.directory == self.directory

    @property
    def name(self) -> str:
        """The kernel's name of the device: its BDF, "2:0:0:1", "0.0.0001"."""
        return self.directory.name


def find(tree: SysfsTree, address: Address) -> Verdict[Place]:
    """The place at an address, or how far sysfs goes towards it."""
    match address:
        case PciPath() | Bdf():
            found = locate(tree, address)
            if not isinstance(found, Ready):
                return found
            return Ready(Place(directory=found.result.directory, function=found.result))
        case ScsiAddress():
            return _scsi(tree, address)
        case CcwAddress():
            return _listed(tree, tree.roots.sys / "bus/ccw/devices", str(address))
        case MmioAddress():
            return _mmio(tree, address)
        case NodePath():
            return _node(tree, address)
        case MacAddress():
            return _mac(tree, address)


def function_of(tree: SysfsTree, directory: Path) -> PciFunction | None:
    """The PCI function that a device is or is behind of: the nearest one upwards."""
    for each in (directory, *directory.parents):
        if each == tree.roots.sys:
            return None
        if Bdf.is_name(each.name):
            path = path_of(tree, each)
            return (
                PciFunction(directory=each, bdf=Bdf.parse(each.name), path=path) if path else None
            )
    return None


def _place(tree: SysfsTree, directory: Path) -> Ready[Place]:
    return Ready(Place(directory=directory, function=function_of(tree, directory)))


def _scsi(tree: SysfsTree, address: ScsiAddress) -> Verdict[Place]:
    adapter: PciFunction | None = None
    if address.adapter is not None:
        found = locate(tree, address.adapter)
        if not isinstance(found, Ready):
            return found
        adapter = found.result
    below = adapter.directory if adapter else tree.roots.sys / "devices"
    listing = tree.roots.sys / "bus/scsi/devices"
    names = [name for text in tree.names(listing) if (name := ScsiName.of(text))]
    fitting = [
        directory
        for name in names
        if address.matches(name)
        and (directory := tree.real(listing / str(name)))
        and directory.is_relative_to(below)
    ]
    if len(fitting) > 1:
        several = ", ".join(directory.name for directory in fitting)
        return Failed(f"the SCSI address {address} fits several devices: {several}")
    if fitting:
        return _place(tree, fitting[0])
    return _no_scsi(tree, address, adapter, names)


def _no_scsi(
    tree: SysfsTree, address: ScsiAddress, adapter: PciFunction | None, names: list[ScsiName]
) -> NotYet:
    """Its hosts are asked to look: not every adapter tells of a new logical unit by itself."""
    hosts = _scsi_hosts(tree, address, adapter)
    where = f" behind {adapter.bdf} (path {adapter.path})" if adapter else ""
    known = ", ".join(map(str, names)) or "none"
    wanted = f"{address.channel} {address.target} {address.lun}\n"
    return NotYet(
        evidence=(
            f"there is no SCSI device {address}{where}: SCSI hosts there are "
            f"{', '.join(host.name for host in hosts) or 'none'}, SCSI devices {known}"
        ),
        near=tuple(tree.devpath(host) for host in hosts)
        or ((tree.devpath(adapter.directory),) if adapter else ()),
        orders=tuple(
            Order(path=tree.roots.sys / "class/scsi_host" / host.name / "scan", text=wanted)
            for host in hosts
        ),
        driverless=(adapter.directory,) if adapter else (),
        names=(str(adapter.bdf),) if adapter else (),
    )


def _scsi_hosts(tree: SysfsTree, address: ScsiAddress, adapter: PciFunction | None) -> list[Path]:
    listing = tree.roots.sys / "class/scsi_host"
    found: list[Path] = []
    for name in tree.names(listing):
        # class/scsi_host/hostN is .../hostN/scsi_host/hostN: the host itself is two above.
        directory = tree.real(listing / name)
        if directory is None or address.host not in (None, _number(name, "host")):
            continue
        host = directory.parent.parent
        if adapter is None or host.is_relative_to(adapter.directory):
            found.append(host)
    return found


def _listed(tree: SysfsTree, listing: Path, name: str) -> Verdict[Place]:
    directory = tree.real(listing / name) if name in tree.names(listing) else None
    if directory is not None:
        return _place(tree, directory)
    known = ", ".join(tree.names(listing)) or "nothing"
    return NotYet(evidence=f"{tree.devpath(listing)} has no {name}: there is {known}")


def _mmio(tree: SysfsTree, address: MmioAddress) -> Verdict[Place]:
    listing = tree.roots.sys / "bus/platform/devices"
    known = set(tree.names(listing))
    windows = _windows(tree.text(tree.roots.proc / "iomem") or "")
    # A device tree names the device by its address; elsewhere only /proc/iomem knows.
    for name in (*windows.get(address.base, ()), f"{address.base:x}.virtio_mmio"):
        directory = tree.real(listing / name) if name in known else None
        if directory is not None:
            return _place(tree, directory)
    found = ", ".join(sorted(name for name in known if "virtio" in name)) or "none"
    return NotYet(
        evidence=f"no platform device has its registers at {address}: virtio-mmio devices: {found}"
    )


def _windows(iomem: str) -> dict[int, tuple[str, ...]]:
    """Device names by the first address of their register window."""
    windows: dict[int, tuple[str, ...]] = {}
    for line in iomem.splitlines():
        span, _, names = line.strip().partition(" : ")
        start = span.partition("-")[0]
        if start and names:
            base = int(start, 16)
            windows[base] = (*windows.get(base, ()), *names.split())
    return windows


def _node(tree: SysfsTree, address: NodePath) -> Verdict[Place]:
    path = tree.node_path(address.name)
    numbers = tree.node_numbers(path)
    if numbers is None:
        return NotYet(evidence=f"there is no device node {address}")
    kind = "block" if numbers.type == "b" else "char"
    listed = tree.roots.sys / "dev" / kind / f"{numbers.major}:{numbers.minor}"
    directory = tree.real(listed)
    if directory is None:
        return NotYet(
            evidence=f"the node {address} is {numbers.type} {numbers.major}:{numbers.minor}, "
            "for which the kernel has no device"
        )
    return _place(tree, directory)


def _mac(tree: SysfsTree, address: MacAddress) -> Verdict[Place]:
    listing = tree.roots.sys / "class/net"
    fitting = [
        (name, device)
        for name in tree.names(listing)
        if tree.text(listing / name / "address") == str(address)
        and (device := tree.real(listing / name / "device"))
    ]
    match fitting:
        case [(name, device)]:
            # As by its PCI address: the function, also where a virtio device lies between.
            function = function_of(tree, device)
            directory = function.directory if function else device
            return Ready(Place(directory=directory, function=function, interface=name))
        case []:
            known = ", ".join(tree.names(listing)) or "none"
            return NotYet(
                evidence=f"no physical interface has the MAC address {address}: there is {known}"
            )
        case _:
            several = ", ".join(name for name, _ in fitting)
            return Failed(f"several interfaces have the MAC address {address}: {several}")


def _number(name: str, prefix: str) -> int | None:
    text = name.removeprefix(prefix)
    return int(text) if text.isdecimal() and text.isascii() else None
