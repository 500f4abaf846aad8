"""Files that others have bound: rewritten in place, so that their inode stays.

A bind mount shows an inode, not a name: a file that is replaced by rename would leave
every container with the old one. So the new text goes over the old one, and a reader
meanwhile must find whole lines: one write gives the new text, filled up with empty lines
to the length of the old one, and only then the file gets shorter.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o644


def rewrite(path: Path, text: str) -> None:
    """Give the file this text; it is made where it is not there, in a directory that is.

    Raises OSError, and the file is as it was: what it held has its room.
    """
    data = text.encode()
    fd = _opened(path)
    try:
        before = _content(fd)
        if before == data:
            return
        try:
            _put(fd, data, room=len(before))
        except OSError:
            _put(fd, before, room=os.fstat(fd).st_size)
            raise
    finally:
        os.close(fd)


def read(path: Path) -> str | None:
    """The file's text; None where it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None


def _opened(path: Path) -> int:
    try:
        return os.open(path, _FLAGS)
    except FileNotFoundError:
        fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, _MODE)
    # Whatever the umask: every process of a container reads it.
    os.fchmod(fd, _MODE)
    return fd


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _put(fd: int, data: bytes, *, room: int) -> None:
    filled = data.ljust(room, b"\n")
    done = 0
    while done < len(filled):
        done += os.pwrite(fd, filled[done:], done)
    os.ftruncate(fd, len(data))
