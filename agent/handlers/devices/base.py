"""What a class of devices is, and what all PCI devices have in common.

A class is one file here and one line in the list of `__init__`: it says which
expectation of a request it serves, and judges a PCI function that is there. The
manager does the rest (finding the function, waiting, the table, undo).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from agent.core.pci import Bdf
from agent.core.verdict import Failed, NotYet, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.core.model import BlockInfo, DeviceNode
    from agent.core.tree import PciFunction, SysfsTree

E = TypeVar("E")

# include/linux/ioport.h: memory resource; address not assigned.
_IORESOURCE_MEM = 0x0000_0200
_IORESOURCE_UNSET = 0x2000_0000

# VIRTIO_CONFIG_S_FAILED (virtio 1.2, 2.1): set by the core when a driver's probe fails.
_VIRTIO_FAILED = 0x80

_BARS = 6
_NO_DEVICES = frozenset({"power", "msi_irqs", "pci_bus"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a class found behind a function."""

    nodes: tuple[DeviceNode, ...]
    info: BlockInfo


class DeviceClass(ABC, Generic[E]):
    """One class of devices: a pure judgement of a PCI function that sysfs has."""

    name: ClassVar[str]
    """The class in errors, events and saved state."""

    expectation: ClassVar[type]
    """The type of `DeviceRequest.kind` that this class serves."""

    @abstractmethod
    def probe(self, tree: SysfsTree, function: PciFunction, expected: E) -> Verdict[Found]:
        """Ready with its nodes, NotYet with evidence, or Failed; reads, and changes nothing."""


def describe(tree: SysfsTree, function: PciFunction) -> str:
    """A function for people: address, ids, driver and what is below it."""
    directory = function.directory
    ids = ":".join((tree.text(directory / name) or "?") for name in ("vendor", "device"))
    driver = tree.link_name(directory / "driver")
    children = [_child(tree, path) for path in _devices_in(tree, directory)]
    return (
        f"the PCI function {function.bdf} (path {function.path}, {ids}) is there, "
        f"{f'its driver is {driver}' if driver else 'it has no driver'}, "
        f"below it: {', '.join(children) or 'nothing'}"
    )


def absent(tree: SysfsTree, function: PciFunction, what: str, near: tuple[str, ...]) -> NotYet:
    """The function is there and has no such part so far, maybe for want of a driver."""
    waiting = tuple(_driverless(tree, function.directory))
    return NotYet(
        evidence=f"{describe(tree, function)}{_driver_notes(tree, waiting)}; no {what}",
        near=near,
        driverless=waiting,
    )


def refusal(tree: SysfsTree, function: PciFunction) -> Failed | None:
    """Why no driver will ever serve this function, where the kernel lets us know."""
    for child in _devices_in(tree, function.directory):
        status = tree.text(child / "status") or ""
        if child.name.startswith("virtio") and status and int(status, 16) & _VIRTIO_FAILED:
            return Failed(f"its driver refused {child.name} (status {status}): see the kernel log")
    if tree.link_name(function.directory / "driver") is None and _is_added(tree, function):
        bars = _unset_bars(tree.text(function.directory / "resource") or "")
        if bars:
            text = ", ".join(map(str, bars))
            return Failed(f"BAR {text} of {function.bdf} has no address: its bridge has no room")
    return None


def devices_below(tree: SysfsTree, directory: Path, subsystem: str) -> Iterator[Path]:
    """The nearest devices of a subsystem that belong to a function, not to one behind it."""
    for path in _devices_in(tree, directory):
        if tree.link_name(path / "subsystem") == subsystem:
            yield path
        else:
            yield from devices_below(tree, path, subsystem)


def numa_node(tree: SysfsTree, function: PciFunction) -> int | None:
    """The NUMA node; the kernel writes -1 where it knows none."""
    number = int(tree.text(function.directory / "numa_node") or "-1")
    return None if number < 0 else number


def iommu_group(tree: SysfsTree, function: PciFunction) -> int | None:
    name = tree.link_name(function.directory / "iommu_group")
    return int(name) if name is not None and name.isdecimal() else None


def _driverless(tree: SysfsTree, directory: Path) -> Iterator[Path]:
    """The device and those below it that could have a driver and have none."""
    if tree.wanted_driver(directory) is not None:
        yield directory
    for path in _devices_in(tree, directory):
        yield from _driverless(tree, path)


def _devices_in(tree: SysfsTree, directory: Path) -> list[Path]:
    return [
        path
        for path in tree.subdirectories(directory)
        if path.name not in _NO_DEVICES and not Bdf.is_name(path.name)
    ]


def _driver_notes(tree: SysfsTree, waiting: tuple[Path, ...]) -> str:
    """What came of looking for the drivers that are missing."""
    notes = (
        f"; no driver for {path.name}: {note}"
        for path in waiting
        if (note := tree.driver_notes.get(tree.wanted_driver(path) or ""))
    )
    return "".join(notes)


def _child(tree: SysfsTree, path: Path) -> str:
    if not path.name.startswith("virtio"):
        return path.name
    return f"{path.name} ({tree.link_name(path / 'driver') or 'no driver'})"


def _is_added(tree: SysfsTree, function: PciFunction) -> bool:
    """Whether the kernel is done with the function: its directory comes before its addresses.

    pci_bus_add_device makes the entry of /proc/bus/pci after addresses are assigned and
    before a driver is tried. Domains other than 0 have them in their bus directory's name.
    """
    bus = function.bdf.bus
    slot = f"{function.bdf.slot.slot:02x}.{function.bdf.slot.function}"
    names = (f"{bus.number:02x}", str(bus))
    return any((tree.roots.proc / "bus/pci" / name / slot).exists() for name in names)


def _unset_bars(resource: str) -> list[int]:
    lines = [line.split() for line in resource.splitlines()[:_BARS]]
    flags = [int(line[2], 16) if len(line) == 3 else 0 for line in lines]
    wanted = _IORESOURCE_MEM | _IORESOURCE_UNSET
    return [number for number, value in enumerate(flags) if value & wanted == wanted]
