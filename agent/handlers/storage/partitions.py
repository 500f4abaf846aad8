"""A partition of an attached disk, by its number or its label.

Facts: a partition is a directory inside its disk's, with a file `partition`
(Documentation/ABI/stable/sysfs-block); its label is PARTNAME in its `uevent` file, which
only tables with labels have (block/partitions/core.c; MBR has none). The kernel reads the
table when the disk appears, so partitions come a moment after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.errors import Reason, invalid
from agent.core.hotplug import Wish
from agent.core.model import NodeType
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices import nodes
from agent.handlers.storage import mappings

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.deadlines import Deadline
    from agent.core.model import AttachedDevice, DeviceNode
    from agent.core.tree import SysfsTree
    from agent.handlers.storage.base import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    """`size` in bytes; `label` as sysfs has it, "" for none."""

    directory: Path
    number: int
    label: str
    size: int

    def __str__(self) -> str:
        label = f"label {self.label!r}" if self.label else "no label"
        return f"{self.number} ({label}, {self.size} bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sought:
    """`bdf`: the disk's PCI function, "" for none; `number` 0 and `label` "" are any."""

    disk: DeviceNode
    bdf: str
    number: int
    label: str

    def __str__(self) -> str:
        words = [str(self.number)] if self.number else []
        return " ".join([*words, *([f"with the label {self.label!r}"] if self.label else [])])

    def fits(self, partition: _Partition) -> bool:
        right = not self.number or partition.number == self.number
        return right and (not self.label or partition.label == as_in_sysfs(self.label))


async def partition_node(
    tools: Tools, device: AttachedDevice, number: int, label: str, deadline: Deadline
) -> DeviceNode:
    """The node of partition `number`, or of the one with `label`; of both, if both are given.

    Waits until it is there with its size. Raises DEVICE_NOT_READY at the deadline with
    the partitions that are there, UNEXPECTED_DEVICE when two have the label.
    """
    disk = next((node for node in device.nodes if node.type is NodeType.BLOCK), None)
    if disk is None:
        raise invalid(f"device {device.request.id} has no disk, so it has no partitions")
    sought = _Sought(disk=disk, bdf=device.bdf, number=number, label=label)
    wish = Wish(
        what=f"partition {sought} of device {device.request.id}",
        probe=lambda tree: _probe(tree, sought),
    )
    return await tools.board.wait(wish, deadline)


def as_in_sysfs(label: str) -> str:
    """A GPT label as the kernel shows it: the low 7 bits of each UTF-16 unit, `!` for what
    does not print, up to the first that is 0 (utf16_le_to_7bit in block/partitions/efi.c)."""
    low = bytes(byte & 0x7F for byte in label.encode("utf-16-le", errors="surrogatepass")[::2])
    text = low.partition(b"\0")[0].decode()
    return "".join(char if char.isprintable() else "!" for char in text).strip()


def _probe(tree: SysfsTree, sought: _Sought) -> Verdict[DeviceNode]:
    directory = mappings.directory_of(tree, sought.disk)
    if directory is None:
        return Failed(f"the disk {sought.disk.path} is gone")
    there = _partitions(tree, directory)
    found = [each for each in there if sought.fits(each)]
    if len(found) > 1:
        listed = ", ".join(map(str, found))
        why = (
            f"{len(found)} partitions of {directory.name} have the label {sought.label!r}: {listed}"
        )
        return Failed(why, Reason.UNEXPECTED_DEVICE)
    if not found:
        return _missing(tree, directory, there, sought)
    return _usable(tree, found[0])


def _usable(tree: SysfsTree, partition: _Partition) -> Verdict[DeviceNode]:
    near = (tree.devpath(partition.directory),)
    if not partition.size:
        return NotYet(evidence=f"{partition.directory.name} has size 0 so far", near=near)
    node = nodes.node_of(tree, partition.directory)
    if isinstance(node, nodes.NoNode):
        return NotYet(evidence=node.why, near=near)
    return Ready(node)


def _partitions(tree: SysfsTree, disk: Path) -> list[_Partition]:
    found = [
        _Partition(
            directory=directory,
            number=int(number),
            label=tree.properties(directory).get("PARTNAME", "").strip(),
            size=int(tree.text(directory / "size") or 0) * mappings.SECTOR,
        )
        for directory in tree.subdirectories(disk)
        if (number := tree.text(directory / "partition")) is not None and number.isdecimal()
    ]
    return sorted(found, key=lambda each: each.number)


def _missing(tree: SysfsTree, disk: Path, there: list[_Partition], sought: _Sought) -> NotYet:
    if there:
        brief = ", ".join(
            f"{each.number} {each.label!r}" if each.label else str(each.number) for each in there
        )
        evidence = f"{disk.name} has no such partition, only {brief}"
    else:
        evidence = f"the kernel has found no partition table on {disk.name}, or an empty one"
    return NotYet(
        evidence=evidence,
        near=(tree.devpath(disk),),
        facts=(("partitions", ", ".join(map(str, there)) or "none"),),
        # With the PCI function, what the log told of an earlier disk of this name is left out.
        names=(disk.name, *([sought.bdf] if sought.bdf else [])),
        hint=_hint(there, sought),
    )


def _hint(there: list[_Partition], sought: _Sought) -> str | None:
    if not there:
        return "a disk without a table is used whole: leave partition and label out"
    if sought.label and not any(each.label for each in there):
        return "a label needs a GPT"
    return None
