"""Disks: virtio-blk, NVMe, SCSI behind any adapter, virtio-mmio and CCW.

The disk is found in the device's own part of sysfs (whole disks, never
partitions), and is usable when its node in /dev is a block device with the
numbers that sysfs has and its size is not zero: a disk appears before its
medium is known. Facts: Documentation/ABI/stable/sysfs-block; sizes there are
in sectors of 512 bytes whatever the device's own block size is; a partition is a
directory inside its disk's, with a file `partition`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.core.errors import Reason
from agent.core.kinds import BlockExpectation, BlockInfo
from agent.core.verdict import Failed, NotYet, Ready, SlowRead, Verdict
from agent.handlers.devices import nodes
from agent.handlers.devices.base import DeviceClass, Found, absent, facts, names, refusal

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.places import Place
    from agent.core.tree import SysfsTree

SECTOR = 512

# A virtio-blk id and an NVMe serial number hold 20 bytes (virtio 1.2, 5.2.6; NVMe, SN):
# what the host configured may be longer than what the device can tell.
SERIAL_BYTES = 20

_NVME_PATH = re.compile(r"nvme(\d+)c\d+n(\d+)")
_NVME_HEADS = "/devices/virtual/nvme-subsystem"

# Vital product data page 0x80, unit serial number (SPC-4, 7.8.13): 4 bytes of header.
_VPD_SERIAL = "vpd_pg80"
_VPD_HEADER = 4


class BlockDevices(DeviceClass[BlockExpectation]):
    """One disk at a place; with several, the one that fits the expectation."""

    name = "block"
    expectation = BlockExpectation

    def probe(self, tree: SysfsTree, place: Place, expected: BlockExpectation) -> Verdict[Found]:
        if (tree.real(place.directory / "partition")) is not None:
            return Failed(f"{place.name} is a partition of {place.directory.parent.name}")
        disks = _disks(tree, place.directory)
        if not disks:
            return refusal(tree, place) or absent(tree, place, "disk", (_NVME_HEADS,))
        verdicts = [_judge(tree, place, disk, expected) for disk in disks]
        fitting = [verdict for verdict in verdicts if isinstance(verdict, Ready)]
        if len(fitting) > 1:
            several = ", ".join(disk.name for disk in disks)
            return Failed(f"{place.name} has several disks ({several}) that fit the request")
        return fitting[0] if fitting else _together(verdicts)


def _disks(tree: SysfsTree, directory: Path) -> list[Path]:
    """Whole disks: partitions lie inside them and are not looked at."""
    itself = tree.link_name(directory / "subsystem") == "block"
    blocks = [directory] if itself else nodes.below(tree, directory, "block")
    return [disk for path in blocks if (disk := _head(tree, path)) is not None]


def _head(tree: SysfsTree, path: Path) -> Path | None:
    """The disk itself: with NVMe multipath a controller holds a hidden path to it."""
    match = _NVME_PATH.fullmatch(path.name)
    if match is None:
        return path
    return tree.real(tree.roots.sys / "class/block" / f"nvme{match[1]}n{match[2]}")


def _judge(
    tree: SysfsTree, place: Place, disk: Path, expected: BlockExpectation
) -> Ready[Found] | NotYet:
    sectors = tree.text(disk / "size") or "0"
    if sectors == "0":
        return _waiting(tree, place, f"the disk {disk.name} has size 0 so far")
    node = nodes.node_of(tree, disk)
    if isinstance(node, nodes.NoNode):
        return _waiting(tree, place, node.why)
    serial = _serial(tree, disk)
    if isinstance(serial, SlowRead):
        evidence = f"the disk {disk.name} has not answered for its serial number"
        return _waiting(tree, place, evidence, needs=(serial,))
    info = _info(tree, disk, int(sectors) * SECTOR, serial)
    other = _difference(info, expected)
    if other is not None:
        evidence = f"the disk {disk.name} is another than expected: {other}"
        return _waiting(tree, place, evidence, reason=Reason.UNEXPECTED_DEVICE)
    return Ready(Found(nodes=(node,), info=info))


def _waiting(
    tree: SysfsTree,
    place: Place,
    evidence: str,
    *,
    needs: tuple[SlowRead, ...] = (),
    reason: Reason = Reason.DEVICE_NOT_READY,
) -> NotYet:
    return NotYet(
        evidence=evidence,
        near=(tree.devpath(place.directory), _NVME_HEADS),
        needs=needs,
        names=names(tree, place),
        facts=facts(tree, place),
        reason=reason,
    )


def _serial(tree: SysfsTree, disk: Path) -> str | SlowRead:
    """The serial number; virtio-blk sends a request to the device for each read of it."""
    known = tree.text(disk / "device/serial") or _scsi_serial(tree, disk)
    if known is not None:
        return known
    if not (disk / "serial").exists():
        return ""
    instance = tree.text(disk / "diskseq") or tree.instance(disk) or ""
    read = SlowRead(path=disk / "serial", instance=instance)
    text = tree.slow_text(read)
    return read if text is None else text


def _scsi_serial(tree: SysfsTree, disk: Path) -> str | None:
    """The kernel read the page when it found the device; not every device has it."""
    page = tree.data(disk / "device" / _VPD_SERIAL)
    return None if page is None else page[_VPD_HEADER:].decode(errors="replace").strip("\0 ")


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
        names=waiting[0].names,
        facts=waiting[0].facts,
        reason=Reason.UNEXPECTED_DEVICE if all_other else Reason.DEVICE_NOT_READY,
    )
