"""How a mounted storage does: from the table of mounts and from the kernel's log.

A file system that the kernel has turned read-only shows it in different places: btrfs,
and ext4 before 6.12, by `ro` among the superblock's options; ext4 of 6.15 and later by
`emergency_ro` or `shutdown`; ext4 between them, and xfs at all times, only in the log.
Texts of fs/ext4/super.c, fs/ext4/ioctl.c, fs/xfs/xfs_fsops.c, fs/btrfs/messages.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from agent.core.kernel_log import LINE_LIMIT
from agent.core.sources import BindSource, LocalSource, OverlaySource, WatchedSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.fileops import FileSystemSize
    from agent.core.model import StorageRequest
    from agent.linux.kmsg import KernelRecord
    from agent.linux.mounting import MountEntry

# Images: they are never writable, and the kernel says so without being asked for it.
_IMAGES = frozenset(["cramfs", "erofs", "iso9660", "squashfs"])
# Another storage's superblock, or the guest's: what it is was not this request's choice.
_BORROWED = (BindSource, LocalSource, OverlaySource, WatchedSource)
_TURNED_WORDS = frozenset(["emergency_ro", "shutdown"])

_NEW_MOUNT = re.compile(
    r"EXT4-fs \(\S+\): mounted filesystem"
    r"|XFS \(\S+\): Mounting V"
    r"|BTRFS info \(device [^)]+\): first mount of filesystem"
)
_TURNED = re.compile(
    r"EXT4-fs \(\S+\): (?:Remounting filesystem read-only|shut down requested)"
    r"|XFS \(\S+\): .*(?:[Ss]hutting down|shut down|shutdown)"
    r"|BTRFS \w+ \(device [^)]+\): forced readonly"
)
_TROUBLE_LEVEL = 3  # KERN_ERR


class Health(StrEnum):
    GOOD = "good"
    READ_ONLY = "read-only"
    STALLED = "stalled"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStats:
    """What df(1) shows an ordinary user, in bytes and in files, and how the storage does."""

    health: Health
    detail: str = ""
    size: int = 0
    used: int = 0
    available: int = 0
    inodes: int = 0
    inodes_used: int = 0
    inodes_free: int = 0


def answered(size: FileSystemSize, health: Health, detail: str = "") -> StorageStats:
    """The stats of a file system that has answered."""
    return StorageStats(
        health=health,
        detail=detail,
        size=size.size,
        used=size.size - size.free,
        available=size.available,
        inodes=size.files,
        inodes_used=size.files - size.files_free,
        inodes_free=size.files_free,
    )


def turned_read_only(
    request: StorageRequest, entry: MountEntry, records: Iterable[KernelRecord]
) -> str | None:
    """Why a mount can't be written to though it was asked for; None when it can.

    `records` are the kernel's about its disk, the oldest first.
    """
    words = frozenset(entry.super_options.split(","))
    shown = sorted(words & _TURNED_WORDS)
    if "ro" in words and not _may_be_read_only(request, entry):
        shown.append("ro")
    said = _last_words(records)
    if not shown and not said:
        return None
    return "; ".join([*(f"its options show {word}" for word in shown), *said])


def _may_be_read_only(request: StorageRequest, entry: MountEntry) -> bool:
    if request.read_only or entry.fs_type in _IMAGES or isinstance(request.source, _BORROWED):
        return True
    words = [word for each in request.options for word in each.split(",") if word in ("ro", "rw")]
    return words[-1:] == ["ro"]


def _last_words(records: Iterable[KernelRecord]) -> list[str]:
    """The error that came first since the file system was mounted, and its consequence."""
    errors: list[KernelRecord] = []
    turned: KernelRecord | None = None
    for record in records:
        if _NEW_MOUNT.match(record.text):
            errors, turned = [], None
        elif _TURNED.match(record.text):
            turned = turned or record
        elif record.level <= _TROUBLE_LEVEL and turned is None:
            errors.append(record)
    return [_line(record) for record in (*errors[:1], turned)] if turned else []


def _line(record: KernelRecord) -> str:
    return "".join(char if char.isprintable() else "?" for char in str(record))[:LINE_LIMIT]
