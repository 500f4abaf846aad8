"""The exit journal: every child that PID 1 reaps, in order, numbered from 1.

Kept twice: the last entries in memory, so that a full /run loses nothing, and
one JSON object a line in a file, for people and for whoever comes after us.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.linux.pidfd import ChildExit

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class Entry(NamedTuple):
    """One exit. `code` is the status, or 128 plus `signal`; `at` is unix time.

    What came after the first version has a default: a file of before is still read.
    """

    seq: int
    pid: int
    cgroup: str
    code: int
    signal: int
    at: float
    comm: str
    core_dumped: bool = False

    def line(self) -> bytes:
        return json.dumps(self._asdict(), separators=(",", ":")).encode() + b"\n"


class Journal:
    """Appends never fail; `trouble` tells why the file lacks entries, or is None."""

    def __init__(
        self, path: str, *, limit: int, write: Callable[[int, memoryview], int] = os.write
    ) -> None:
        self._path = path
        self._limit = limit
        self._write = write
        text = _read(path)
        self._entries: deque[Entry] = deque(_parse_all(text), limit)
        clean = text == b"".join(entry.line() for entry in self._entries)
        # A file with anything else in it is written anew before it is added to.
        self._lines = len(self._entries) if clean else 2 * limit
        self._written = self.last
        self._fd: int | None = None
        self.trouble: OSError | None = None

    @property
    def last(self) -> int:
        """The newest number; 0 before the first entry."""
        return self._entries[-1].seq if self._entries else 0

    @property
    def oldest(self) -> int:
        """The first number that is still in memory; `last` + 1 when nothing is."""
        return self._entries[0].seq if self._entries else self.last + 1

    def append(self, child: ChildExit, *, cgroup: str, at: float, comm: str) -> Entry:
        pid, code, number, dumped = child
        entry = Entry(self.last + 1, pid, cgroup, code, number, at, comm, dumped)
        self._entries.append(entry)
        try:
            self._write_missing()
            self.trouble = None
        except OSError as error:
            self.trouble = error
        return entry

    def after(self, sequence: int, count: int) -> list[Entry]:
        """Up to `count` entries with a higher number, oldest first."""
        skip = max(0, sequence + 1 - self.oldest)
        return list(islice(self._entries, skip, skip + count))

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write_missing(self) -> None:
        if self._lines >= 2 * self._limit:
            self._compact()
            return
        missing = self.after(self._written, self._limit)
        if self._fd is None:
            self._fd = os.open(self._path, _FLAGS, 0o600)
        self._append_whole(self._fd, missing)
        self._written = self.last
        self._lines += len(missing)

    def _compact(self) -> None:
        """Write what memory has to a new file and put it in the old one's place."""
        fresh = f"{self._path}.new"
        fd = os.open(fresh, _FLAGS | os.O_TRUNC, 0o600)
        try:
            self._append_whole(fd, self._entries)
            os.rename(fresh, self._path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._lines, self._written = fd, len(self._entries), self.last

    def _append_whole(self, fd: int, entries: Iterable[Entry]) -> None:
        """All of them or none: a torn line would spoil the next one."""
        size = os.fstat(fd).st_size
        data = memoryview(b"".join(entry.line() for entry in entries))
        try:
            while data:
                data = data[self._write(fd, data) :]
        except OSError:
            os.ftruncate(fd, size)
            raise


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _parse_all(text: bytes) -> list[Entry]:
    return [entry for line in text.split(b"\n") if (entry := _parse(line)) is not None]


def _parse(line: bytes) -> Entry | None:
    try:
        fields: dict[str, Any] = json.loads(line)
        return Entry(**fields)
    except (ValueError, TypeError):
        return None
