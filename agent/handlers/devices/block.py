"""Disks behind a PCI function: virtio-blk, NVMe and SCSI controllers.

The disk is found in the function's own part of sysfs (whole disks, never
partitions), and is usable when its node in /dev is a block device with the
numbers that sysfs has and its size is not zero: a disk appears before its
medium is known. Facts: Documentation/ABI/stable/sysfs-block; sizes there are
in sectors of 512 bytes whatever the device's own block size is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.core.errors import Reason
from agent.core.model import BlockExpectation, BlockInfo, DeviceNode, NodeType
from agent.core.verdict import Failed, NotYet, Ready, SlowRead, Verdict
from agent.handlers.devices.base import DeviceClass, Found, absent, devices_below, refusal

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.tree import PciFunction, SysfsTree

SECTOR = 512

# A virtio-blk id and an NVMe serial number hold 20 bytes (virtio 1.2, 5.2.6; NVMe, SN):
# what the host configured may be longer than what the device can tell.
SERIAL_BYTES = 20

_NVME_PATH = re.compile(r"nvme(\d+)c\d+n(\d+)")
_NVME_HEADS = "/devices/virtual/nvme-subsystem"


class BlockDevices(DeviceClass[BlockExpectation]):
    """One disk behind a function; with several, the one that fits the expectation."""

    name = "block"
    expectation = BlockExpectation

    def probe(
        self, tree: SysfsTree, function: PciFunction, expected: BlockExpectation
    ) -> Verdict[Found]:
        near = (tree.devpath(function.directory), _NVME_HEADS)
        disks = _disks(tree, function.directory)
        if not disks:
            return refusal(tree, function) or absent(tree, function, "disk", near)
        verdicts = [_judge(tree, disk, expected, near) for disk in disks]
        fitting = [verdict for verdict in verdicts if isinstance(verdict, Ready)]
        if len(fitting) > 1:
            names = ", ".join(disk.name for disk in disks)
            return Failed(f"{function.bdf} has several disks ({names}) that fit the request")
        return fitting[0] if fitting else _together(verdicts)


def _disks(tree: SysfsTree, directory: Path) -> list[Path]:
    """Whole disks: partitions lie inside them and are not looked at."""
    blocks = devices_below(tree, directory, "block")
    return [disk for path in blocks if (disk := _head(tree, path)) is not None]


def _head(tree: SysfsTree, path: Path) -> Path | None:
    """The disk itself: with NVMe multipath a controller holds a hidden path to it."""
    match = _NVME_PATH.fullmatch(path.name)
    if match is None:
        return path
    head = tree.roots.sys / "class/block" / f"nvme{match[1]}n{match[2]}"
    return head.resolve() if head.exists() else None


def _judge(
    tree: SysfsTree, disk: Path, expected: BlockExpectation, near: tuple[str, ...]
) -> Ready[Found] | NotYet:
    sectors = tree.text(disk / "size") or "0"
    if sectors == "0":
        return NotYet(evidence=f"the disk {disk.name} has size 0 so far", near=near)
    node = _node(tree, disk)
    if isinstance(node, str):
        return NotYet(evidence=node, near=near)
    serial = _serial(tree, disk)
    if isinstance(serial, SlowRead):
        evidence = f"the disk {disk.name} has not answered for its serial number"
        return NotYet(evidence=evidence, near=near, needs=(serial,))
    info = _info(tree, disk, int(sectors) * SECTOR, serial)
    other = _difference(info, expected)
    if other is not None:
        evidence = f"the disk {disk.name} is another than expected: {other}"
        return NotYet(evidence=evidence, near=near, reason=Reason.UNEXPECTED_DEVICE)
    return Ready(Found(nodes=(node,), info=info))


def _node(tree: SysfsTree, disk: Path) -> DeviceNode | str:
    """The disk's node in /dev, or what is wrong with it."""
    numbers = tree.text(disk / "dev") or ""
    path = tree.node_path(tree.properties(disk).get("DEVNAME") or disk.name.replace("!", "/"))
    if ":" not in numbers:
        return f"the disk {disk.name} has no device number yet"
    there = tree.node_numbers(path)
    if there is None:
        return f"sysfs has the disk {disk.name} ({numbers}), but there is no node {path} yet"
    if (there.type, f"{there.major}:{there.minor}") != ("b", numbers):
        found = f"{there.type} {there.major}:{there.minor}"
        return f"the node {path} is {found}, but the disk is b {numbers}"
    return DeviceNode(path=str(path), type=NodeType.BLOCK, major=there.major, minor=there.minor)


def _serial(tree: SysfsTree, disk: Path) -> str | SlowRead:
    """The serial number; virtio-blk sends a request to the device for each read of it."""
    known = tree.text(disk / "device/serial")
    if known is not None:
        return known
    if not (disk / "serial").exists():
        return ""
    instance = tree.text(disk / "diskseq") or tree.instance(disk) or ""
    read = SlowRead(path=disk / "serial", instance=instance)
    text = tree.slow_text(read)
    return read if text is None else text


def _info(tree: SysfsTree, disk: Path, size: int, serial: str) -> BlockInfo:
    return BlockInfo(
        size=size,
        logical_block_size=int(tree.text(disk / "queue/logical_block_size") or SECTOR),
        read_only=tree.text(disk / "ro") == "1",
        model=tree.text(disk / "device/model") or "",
        serial=serial,
    )


def _difference(info: BlockInfo, expected: BlockExpectation) -> str | None:
    wanted = expected.serial
    if wanted is not None and info.serial not in (wanted, wanted[:SERIAL_BYTES]):
        return f"its serial number is {info.serial!r}, not {wanted!r}"
    if expected.size is not None and info.size != expected.size:
        return f"its size is {info.size} bytes, not {expected.size}"
    return None


def _together(verdicts: list[Ready[Found] | NotYet]) -> NotYet:
    waiting = [verdict for verdict in verdicts if isinstance(verdict, NotYet)]
    all_other = all(verdict.reason is Reason.UNEXPECTED_DEVICE for verdict in waiting)
    return NotYet(
        evidence="; ".join(verdict.evidence for verdict in waiting),
        near=waiting[0].near,
        needs=tuple(read for verdict in waiting for read in verdict.needs),
        reason=Reason.UNEXPECTED_DEVICE if all_other else Reason.DEVICE_NOT_READY,
    )
