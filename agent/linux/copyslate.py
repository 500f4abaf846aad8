"""A page of memory that a copy's worker writes and the agent reads, also when the
worker was killed: how much it has done, and the name that it must not leave behind.

A worker that is ended in the middle of a file can't remove that file's temporary name.
It writes the name here before it makes it, and the agent has it removed.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from typing import NamedTuple

SIZE = 32 << 10
"""Room for the longest path, each byte of it escaped."""

_DONE = struct.Struct("=Q")
_LENGTH = struct.Struct("=I")
_TEXT = _DONE.size + _LENGTH.size


class Leftover(NamedTuple):
    """A temporary name in a directory below the start; `beside` is for the start's own
    directory, where a copy replaces the start itself."""

    folder: str
    name: str
    beside: bool


class Slate:
    """The page, in either process."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, SIZE)
        self._done = 0

    def close(self) -> None:
        self._page.close()

    @property
    def done(self) -> int:
        """A number that grows with all that the worker does."""
        return int(_DONE.unpack_from(self._page, 0)[0])

    def beat(self) -> None:
        self._done += 1
        _DONE.pack_into(self._page, 0, self._done)

    @property
    def leftover(self) -> Leftover | None:
        (length,) = _LENGTH.unpack_from(self._page, _DONE.size)
        if not length:
            return None
        return Leftover(*json.loads(self._page[_TEXT : _TEXT + length]))

    def note(self, leftover: Leftover) -> None:
        """Before the name is made. The length goes last: the note is there whole or not
        at all."""
        text = json.dumps(leftover).encode()
        self._page[_TEXT : _TEXT + len(text)] = text
        _LENGTH.pack_into(self._page, _DONE.size, len(text))

    def clear(self) -> None:
        """The name is gone."""
        _LENGTH.pack_into(self._page, _DONE.size, 0)


def new_slate() -> int:
    """A descriptor of a fresh page; the caller owns it."""
    fd = os.memfd_create("copy-slate", os.MFD_CLOEXEC)
    os.ftruncate(fd, SIZE)
    return fd
