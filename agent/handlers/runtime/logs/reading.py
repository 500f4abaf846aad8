"""Reading an output log while it is written, rotated, and given up file by file.

A reader keeps no file open while it waits for whoever it reads for: a file that was rotated
away would hold its memory. When the file that it was in is gone, it goes on with the oldest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.core.model import Stream
from agent.handlers.runtime.logs.files import lines_backwards, numbers, path_of
from agent.handlers.runtime.logs.records import from_line

if TYPE_CHECKING:
    from pathlib import Path

    from agent.handlers.runtime.logs.records import LogPiece

_BATCH = 256 << 10
"""Bytes read at once: more than any line has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """What somebody wants to read of a log.

    `since` in seconds since 1970; `tail` counts the last lines of all wanted streams, as
    they lie in the log, a last one that has not ended yet included; None is all.
    """

    follow: bool = False
    since: float | None = None
    tail: int | None = None
    streams: frozenset[Stream] = frozenset({Stream.STDOUT, Stream.STDERR})

    def wants(self, piece: LogPiece) -> bool:
        return piece.stream in self.streams and (self.since is None or piece.at >= self.since)


@dataclass(frozen=True, slots=True)
class Position:
    """A byte of a file, and so many bytes of the first line's output that are left out."""

    number: int = 0
    offset: int = 0
    skip: int = 0


class LogCursor:
    """One reader's place in a log."""

    def __init__(self, directory: Path, query: LogQuery, position: Position) -> None:
        self._directory = directory
        self._query = query
        self._number, self._offset = position.number, position.offset
        self._skip = position.skip

    def more(self) -> list[LogPiece] | None:
        """The next pieces that are wanted, perhaps none of what was read; None at the end."""
        while True:
            lines = self._lines()
            if lines is not None:
                break
            if not self._go_on():
                return None
        pieces = [piece for line in lines if (piece := from_line(line)) is not None]
        pieces = [self._without_skipped(piece) for piece in pieces if self._query.wants(piece)]
        return [piece for piece in pieces if piece.data]

    def _lines(self) -> list[bytes] | None:
        """Whole lines from the position on; None at the end of this file, or when it is gone."""
        try:
            with path_of(self._directory, self._number).open("rb") as file:
                data = os.pread(file.fileno(), _BATCH, self._offset)
        except FileNotFoundError:
            return None
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        return data.splitlines(keepends=True) or None

    def _go_on(self) -> bool:
        """To the next file, when there is one."""
        later = [number for number in numbers(self._directory) if number > self._number]
        if not later:
            return False
        self._number, self._offset, self._skip = later[0], 0, 0
        return True

    def _without_skipped(self, piece: LogPiece) -> LogPiece:
        skip, self._skip = self._skip, 0
        return replace(piece, offset=piece.offset + skip, data=piece.data[skip:])


def beginning(directory: Path, query: LogQuery) -> Position:
    """Where to begin for the last `query.tail` lines; the first byte that is kept for all."""
    if query.tail is None:
        return Position()
    found = numbers(directory)
    if query.tail == 0:
        return _end(directory, found[-1]) if found else Position()
    missing = -1
    for number in reversed(found):
        for at, piece in lines_backwards(directory, number, query.streams):
            if query.since is not None and piece.at < query.since:
                return Position()
            if missing < 0 and piece.data:
                # The newline at the very end begins no line.
                missing = query.tail + piece.data.endswith(b"\n")
            lines = piece.data.count(b"\n")
            if 0 <= missing <= lines and piece.data:
                return Position(number, at, _after_newline(piece.data, missing))
            missing -= lines
    return Position()


def _end(directory: Path, number: int) -> Position:
    try:
        return Position(number, path_of(directory, number).stat().st_size)
    except FileNotFoundError:
        return Position(number)


def _after_newline(data: bytes, count: int) -> int:
    """The byte after the `count`-th newline from the end."""
    at = len(data)
    for _ in range(count):
        at = data.rindex(b"\n", 0, at)
    return at + 1
