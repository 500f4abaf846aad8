"""openat2(2): paths that cannot leave a root, whatever links lie in it."""

from __future__ import annotations

import ctypes
import errno
import os
from enum import IntFlag

from agent.linux.libc import check, failure, libc

# The same number on every machine but alpha (asm-generic/unistd.h); libc has no wrapper.
_SYS_OPENAT2 = 437
_AT_FDCWD = -100

# EAGAIN: a rename or mount went on meanwhile, so the kernel can't vouch for "..".
_TRIES = 32


class Resolve(IntFlag):
    """RESOLVE_* of openat2(2)."""

    NO_XDEV = 0x01
    NO_MAGICLINKS = 0x02
    NO_SYMLINKS = 0x04
    BENEATH = 0x08
    IN_ROOT = 0x10


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_in_root(root_fd: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` as a process with its root at `root_fd` would see it.

    Absolute links and ".." stay inside; links of /proc that jump anywhere are
    refused with ELOOP. The descriptor is close-on-exec. Raises OSError with
    `path` as its object.
    """
    resolve = Resolve.IN_ROOT | Resolve.NO_MAGICLINKS
    return open_resolved(path, flags, mode, below=root_fd, resolve=resolve)


def open_resolved(
    path: str, flags: int, mode: int = 0, *, below: int | None = None, resolve: Resolve
) -> int:
    """Open `path`, from the directory `below` or the working directory, as `resolve` says.

    With NO_SYMLINKS a link anywhere on the way is ELOOP. The descriptor is close-on-exec.
    Raises OSError with `path` as its object.
    """
    data = os.fsencode(path)
    if b"\0" in data:
        # C would take the text up to the NUL, and so another path.
        raise failure(errno.EINVAL, "openat2", path)
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    start = _AT_FDCWD if below is None else below
    for _ in range(_TRIES):
        result = _openat2(start, data, how)
        if result >= 0 or ctypes.get_errno() != errno.EAGAIN:
            break
    return check(result, "openat2", path)


def _openat2(root_fd: int, path: bytes, how: _OpenHow) -> int:
    size = ctypes.c_size_t(ctypes.sizeof(how))
    number = ctypes.c_long(_SYS_OPENAT2)
    return int(libc.syscall(number, root_fd, path, ctypes.byref(how), size))
