"""statx(2): what a file is, without asking the server or disk behind it.

With AT_STATX_DONT_SYNC a network or FUSE file system answers from what it has
cached, so that a dead one does not keep the caller. (NFS and 9p may still ask their
server on the way to the file.)
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from typing import NamedTuple

from agent.linux.block import NodeNumbers
from agent.linux.libc import check, libc

_AT_FDCWD = -100
_AT_STATX_DONT_SYNC = 0x4000
_STATX_TYPE = 0x1

# struct statx: stx_mode at byte 28, stx_ino at 32, then from byte 128 the numbers of the
# device that the file is, and of the one that it is on.
_MODE = struct.Struct("=H")
_INODE = struct.Struct("=Q")
_DEVICES = struct.Struct("=4I")
_SIZE = 256

_KINDS = {stat.S_IFBLK: "b", stat.S_IFCHR: "c"}


class FileFacts(NamedTuple):
    """`node` is set for a device node; `device` and `inode` say where the file itself is."""

    node: NodeNumbers | None
    device: tuple[int, int]
    inode: int


def facts(path: str | os.PathLike[str]) -> FileFacts:
    """Facts of what `path` leads to; a link is followed. Raises OSError."""
    buffer = ctypes.create_string_buffer(_SIZE)
    result = libc.statx(_AT_FDCWD, os.fsencode(path), _AT_STATX_DONT_SYNC, _STATX_TYPE, buffer)
    check(result, "statx", path)
    (mode,) = _MODE.unpack_from(buffer, 28)
    (inode,) = _INODE.unpack_from(buffer, 32)
    major, minor, *device = _DEVICES.unpack_from(buffer, 128)
    kind = _KINDS.get(stat.S_IFMT(mode))
    node = NodeNumbers(kind, major, minor) if kind else None
    return FileFacts(node, (device[0], device[1]), inode)
