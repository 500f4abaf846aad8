"""Bytes of a block device: a look at what is on it, and zeros for what was zeros."""

from __future__ import annotations

import errno
import os

from agent.linux.libc import failure

_SECTOR = 512
_CHUNK = 256 * 1024


def read_disk(*, path: str, offset: int, size: int) -> str:
    """Exactly `size` bytes from `offset`, in hexadecimal. Raises OSError; ENXIO past the end."""
    return _read(path, offset, size).hex()


def clear_disk(*, path: str, size: int, unless: list[tuple[int, str]]) -> None:
    """Zeros for the first `size` bytes, on the disk when it returns.

    `unless`: offsets and what must not be there, in hexadecimal; looked at once nobody
    else can write (EEXIST). Raises OSError; EBUSY while the disk is mounted, mapped, or
    opened exclusively (O_EXCL in open(2)).
    """
    call = "open"
    try:
        fd = os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
        call = "write"
        try:
            for at, text in unless:
                if os.pread(fd, len(text) // 2, at).hex() == text:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            _write_zeros(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise failure(error.errno or errno.EIO, call, path) from error


def written_sector(*, path: str, size: int, below: str, offset: int) -> int:
    """Where something was written in the first `size` bytes of an encrypted device; -1: nowhere.

    Of one that is not, `path` and `below` are the same. A sector counts as not written when
    it is all zeros, either as it is decrypted (`path`) or as it lies on the disk (`below`,
    from `offset` on). Under a wrong key, what was written is neither.
    """
    for start in range(0, size, _CHUNK):
        count = min(_CHUNK, size - start)
        clear, raw = _read(path, start, count), _read(below, offset + start, count)
        found = _first_written(clear, raw)
        if found >= 0:
            return start + found
    return -1


def _write_zeros(fd: int, size: int) -> None:
    at = 0
    while at < size:
        at += os.pwrite(fd, bytes(min(_CHUNK, size - at)), at)


def _first_written(clear: bytes, raw: bytes) -> int:
    if _is_blank(raw):  # a new disk, as a rule
        return -1
    for at in range(0, len(clear), _SECTOR):
        sectors = (clear[at : at + _SECTOR], raw[at : at + _SECTOR])
        if not any(map(_is_blank, sectors)):
            return at
    return -1


def _is_blank(data: bytes) -> bool:
    return data == bytes(len(data))


def _read(path: str, offset: int, size: int) -> bytes:
    call = "open"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        call = "read"
        try:
            data = _read_at(fd, offset, size)
        finally:
            os.close(fd)
    except OSError as error:
        raise failure(error.errno or errno.EIO, call, path) from error
    if len(data) < size:
        raise failure(errno.ENXIO, "read", path)
    return data


def _read_at(fd: int, offset: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(fd, size, offset)):
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return b"".join(parts)
