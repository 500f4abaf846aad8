"""Persistent memory: virtio-pmem, which is a PCI function, and NVDIMMs, which are not.

Both are a bus of their own in sysfs (`ndbus0/region0/namespace0.0`), below the virtio
device or below ACPI's. A namespace is a disk (`block/pmem0`), or a character device that
is mapped whole (`dax0.0`); an NVDIMM is asked for by such a node (`/dev/pmem0`). Facts:
Documentation/driver-api/nvdimm; `queue/dax` in Documentation/ABI/stable/sysfs-block,
`size` of a device-dax in Documentation/ABI/testing/sysfs-bus-dax. Sizes of disks are in
sectors of 512 bytes whatever the device's own block size is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.errors import Reason
from agent.core.kinds import PmemExpectation, PmemInfo
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices import base, nodes
from agent.handlers.devices.base import DeviceClass, Found

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.model import AttachedDevice
    from agent.core.places import Place
    from agent.core.tree import SysfsTree

_SECTOR = 512

_NVDIMM = (
    "an NVDIMM is told by the firmware's tables (ACPI's NFIT), and the guest can't let go "
    "of it; its phase RELEASE forgets it"
)


@dataclass(frozen=True, slots=True)
class _Memory:
    """One namespace, as a disk or mapped whole."""

    directory: Path
    size: int
    dax: bool


class PmemDevices(DeviceClass[PmemExpectation]):
    """One namespace of persistent memory; with several, the one of the expected size."""

    name = "pmem"
    expectation = PmemExpectation

    def probe(self, tree: SysfsTree, place: Place, expected: PmemExpectation) -> Verdict[Found]:
        found = _memories(tree, place)
        if not found:
            return base.refusal(tree, place) or base.absent(tree, place, "persistent memory")
        near = (tree.devpath(place.directory),)
        if not all(each.size for each in found):
            empty = ", ".join(each.directory.name for each in found if not each.size)
            return NotYet(evidence=f"{empty} of {place.name} has no size so far", near=near)
        fitting = [each for each in found if expected.size in (None, each.size)]
        if not fitting:
            evidence = f"{place.name} has no memory of {expected.size} bytes: {_shown(found)}"
            return NotYet(evidence=evidence, near=near, reason=Reason.UNEXPECTED_DEVICE)
        if len(fitting) > 1:
            return Failed(f"{place.name} has several memories that fit: {_shown(fitting)}")
        return _found(tree, place, fitting[0])

    def removable(self, device: AttachedDevice) -> str | None:
        info = device.info
        return _NVDIMM if isinstance(info, PmemInfo) and not info.removable else None


def _found(tree: SysfsTree, place: Place, memory: _Memory) -> Verdict[Found]:
    node = nodes.node_of(tree, memory.directory)
    if isinstance(node, nodes.NoNode):
        return NotYet(evidence=node.why, near=(tree.devpath(place.directory),))
    # What is behind a PCI function goes with it; an NVDIMM is nobody's.
    info = PmemInfo(size=memory.size, dax=memory.dax, removable=place.function is not None)
    return Ready(Found(nodes=(node,), info=info))


def _memories(tree: SysfsTree, place: Place) -> list[_Memory]:
    """All at the place: itself when it is one, as for an address by node."""
    disks = [path for path in _at(tree, place.directory, "block") if _is_persistent(path)]
    mapped = [path for path in _at(tree, place.directory, "dax") if _is_mapped_whole(tree, path)]
    return [_disk(tree, path) for path in disks] + [_mapped(tree, path) for path in mapped]


def _at(tree: SysfsTree, directory: Path, subsystem: str) -> list[Path]:
    if tree.link_name(directory / "subsystem") == subsystem:
        return [directory]
    return list(nodes.below(tree, directory, subsystem))


def _is_mapped_whole(tree: SysfsTree, device: Path) -> bool:
    """Its other driver (`kmem`) makes ordinary memory of it; the node is there in any case."""
    return tree.link_name(device / "driver") == "device_dax"


def _is_persistent(disk: Path) -> bool:
    """Not any other disk, whatever it is asked for as, and not a part of one."""
    whole = not (disk / "partition").exists()
    return whole and any(part.startswith("ndbus") for part in disk.parts)


def _disk(tree: SysfsTree, directory: Path) -> _Memory:
    size = _number(tree.text(directory / "size")) * _SECTOR
    return _Memory(directory, size, tree.text(directory / "queue/dax") == "1")


def _mapped(tree: SysfsTree, directory: Path) -> _Memory:
    return _Memory(directory, _number(tree.text(directory / "size")), dax=True)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and text.isascii() else 0


def _shown(memories: list[_Memory]) -> str:
    return ", ".join(f"{each.directory.name} ({each.size} bytes)" for each in memories)
