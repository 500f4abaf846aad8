"""mount(2), umount2(2) and the table of mounts.

Flags have the names of the man pages without their prefix. These calls may
block for ever on a served file system: whoever faces one calls them in a
process that can be given up.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from enum import IntFlag
from typing import NamedTuple

from agent.linux.libc import check, failure, libc


class MountFlag(IntFlag):
    """MS_* of mount(2)."""

    RDONLY = 1
    NOSUID = 1 << 1
    NODEV = 1 << 2
    NOEXEC = 1 << 3
    SYNCHRONOUS = 1 << 4
    REMOUNT = 1 << 5
    MANDLOCK = 1 << 6
    DIRSYNC = 1 << 7
    NOSYMFOLLOW = 1 << 8
    NOATIME = 1 << 10
    NODIRATIME = 1 << 11
    BIND = 1 << 12
    MOVE = 1 << 13
    REC = 1 << 14
    SILENT = 1 << 15
    UNBINDABLE = 1 << 17
    PRIVATE = 1 << 18
    SLAVE = 1 << 19
    SHARED = 1 << 20
    RELATIME = 1 << 21
    I_VERSION = 1 << 23
    STRICTATIME = 1 << 24
    LAZYTIME = 1 << 25


class UnmountFlag(IntFlag):
    """MNT_* and UMOUNT_* of umount2(2)."""

    FORCE = 1
    DETACH = 2
    EXPIRE = 4
    NOFOLLOW = 8


class MountEntry(NamedTuple):
    """One line of mountinfo; proc_pid_mountinfo(5) explains the fields.

    `root` is the directory of the file system that is mounted, `tags` are the
    optional fields (`shared:12`), options are kept as the kernel writes them.
    """

    mount_id: int
    parent_id: int
    device: tuple[int, int]
    root: str
    mount_point: str
    options: str
    tags: tuple[str, ...]
    fs_type: str
    source: str
    super_options: str


def mount(
    source: str | None,
    target: str,
    fs_type: str | None = None,
    flags: MountFlag = MountFlag(0),  # noqa: B008 - an enum member is a constant
    data: str = "",
) -> None:
    """mount(2). Raises OSError with the target as its object."""
    texts = (source, target, fs_type, data or None)
    arguments = [_encode(text, "mount", target) for text in texts]
    result = libc.mount(*arguments[:3], ctypes.c_ulong(flags), arguments[3])
    check(result, "mount", target)


def unmount(
    target: str,
    flags: UnmountFlag = UnmountFlag(0),  # noqa: B008 - an enum member is a constant
) -> None:
    """umount2(2). Raises OSError with the target as its object."""
    check(libc.umount2(_encode(target, "umount2", target), int(flags)), "umount2", target)


def parse_mountinfo(text: str) -> tuple[MountEntry, ...]:
    """The lines of /proc/PID/mountinfo in the kernel's order: a later mount may cover an earlier.

    Raises ValueError on a line that mountinfo cannot have.
    """
    # Not splitlines(): a path may hold characters that Python takes for line ends.
    return tuple(_parse_line(line) for line in text.split("\n") if line)


def unescape(field: str) -> str:
    r"""Undo the kernel's octal escapes: space is `\040`, tab `\011`, newline `\012`, `\` `\134`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _parse_line(line: str) -> MountEntry:
    left, separator, right = line.partition(" - ")
    ids = left.split(" ")
    tail = right.split(" ")
    if not separator or len(ids) < 6 or len(tail) < 3:
        raise ValueError(f"not a line of mountinfo: {line!r}")
    major, _, minor = ids[2].partition(":")
    return MountEntry(
        mount_id=int(ids[0]),
        parent_id=int(ids[1]),
        device=(int(major), int(minor)),
        root=unescape(ids[3]),
        mount_point=unescape(ids[4]),
        options=ids[5],
        tags=tuple(ids[6:]),
        fs_type=unescape(tail[0]),
        source=unescape(tail[1]),
        super_options=tail[2],
    )


def _encode(text: str | None, call: str, target: str) -> bytes | None:
    if text is None:
        return None
    data = os.fsencode(text)
    if b"\0" in data:
        # C would take the text up to the NUL, and so another path.
        raise failure(errno.EINVAL, call, target)
    return data
