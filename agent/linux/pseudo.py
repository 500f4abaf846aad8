"""Files of proc, sysfs and cgroupfs: whole reads, single writes.

A value written to such a file must come in one write(2): the kernel takes each
write as a command of its own, and a buffered writer also hides which one failed.
"""

from __future__ import annotations

import errno
import os

from agent.linux.libc import failure

_CHUNK = 64 * 1024
# ENODEV and ESRCH: the device or process went between open and read.
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.ESRCH}


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The whole file. Raises OSError that names the call and the path."""
    call = "open"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        call = "read"
        try:
            return _read_all(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise failure(error.errno or errno.EIO, call, os.fspath(path)) from error


def read_text(path: str | os.PathLike[str]) -> str:
    """The file's text as it is, with its newline; bytes that are not UTF-8 are kept as surrogates.

    Raises OSError that names the call and the path.
    """
    return read_bytes(path).decode(errors="surrogateescape")


def read_optional(path: str | os.PathLike[str]) -> str | None:
    """Like `read_text`; None where the file, its device or its process is not there (any more)."""
    try:
        return read_text(path)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def write(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to an existing file with one write(2).

    Raises OSError that names the call and the path; a short write counts as EIO.
    """
    data = text.encode(errors="surrogateescape")
    call = "open"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        call = "write"
        try:
            written = os.write(fd, data)
        finally:
            os.close(fd)
    except OSError as error:
        raise failure(error.errno or errno.EIO, call, os.fspath(path)) from error
    if written != len(data):
        raise failure(errno.EIO, "write", os.fspath(path))


def _read_all(fd: int) -> bytes:
    parts: list[bytes] = []
    while part := os.read(fd, _CHUNK):
        parts.append(part)
    return b"".join(parts)
