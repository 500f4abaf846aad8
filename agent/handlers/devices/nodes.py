"""Nodes in /dev of what sysfs has: of one device, or of all below a function.

The generic walk needs no knowledge of a class: every directory with a `dev` file
is a device with a node, whose name its `uevent` file has as DEVNAME (with "/" where
sysfs has "!"), whose type is block exactly when its subsystem is
(Documentation/ABI/testing/sysfs-devices). Functions behind a bridge are not entered:
they are devices of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.model import DeviceNode, NodeType
from agent.core.pci import Bdf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.core.tree import SysfsTree

# Directories of every PCI device that hold no devices; pci_bus has a bridge's buses.
_NO_DEVICES = frozenset({"power", "msi_irqs", "pci_bus"})


@dataclass(frozen=True, slots=True)
class NoNode:
    """A device whose node is not there, or is another's, and what is wrong with it."""

    why: str


def children(tree: SysfsTree, directory: Path) -> list[Path]:
    """The directories in a device's own that may be devices of its own."""
    return [
        path
        for path in tree.subdirectories(directory)
        if path.name not in _NO_DEVICES and not Bdf.is_name(path.name)
    ]


def below(tree: SysfsTree, directory: Path, subsystem: str) -> Iterator[Path]:
    """The nearest devices of a subsystem that belong to a device, not to one behind it."""
    for path in children(tree, directory):
        if tree.link_name(path / "subsystem") == subsystem:
            yield path
        else:
            yield from below(tree, path, subsystem)


def walk(tree: SysfsTree, directory: Path) -> Iterator[Path]:
    """All devices with a node at or below a device, parents first."""
    if (directory / "dev").exists():
        yield directory
    for path in children(tree, directory):
        yield from walk(tree, path)


def node_of(tree: SysfsTree, device: Path) -> DeviceNode | NoNode:
    """The node of one device: there, of the right type, with the numbers that sysfs has."""
    numbers = tree.text(device / "dev") or ""
    if ":" not in numbers:
        return NoNode(f"{device.name} has no device number yet")
    kind = "b" if tree.link_name(device / "subsystem") == "block" else "c"
    path = tree.node_path(tree.properties(device).get("DEVNAME") or device.name.replace("!", "/"))
    there = tree.node_numbers(path)
    if there is None:
        return NoNode(
            f"sysfs has {device.name} ({kind} {numbers}), but there is no node {path} yet"
        )
    if (there.type, f"{there.major}:{there.minor}") != (kind, numbers):
        found = f"{there.type} {there.major}:{there.minor}"
        return NoNode(f"the node {path} is {found}, but {device.name} is {kind} {numbers}")
    return DeviceNode(
        path=str(path), type=NodeType(there.type), major=there.major, minor=there.minor
    )


def nodes_below(
    tree: SysfsTree, directory: Path
) -> tuple[tuple[DeviceNode, ...], tuple[NoNode, ...]]:
    """The nodes of all devices at or below a device, and what is missing of them."""
    found = [node_of(tree, device) for device in walk(tree, directory)]
    nodes = tuple(each for each in found if isinstance(each, DeviceNode))
    return nodes, tuple(each for each in found if isinstance(each, NoNode))
