"""The files of one process's output log: appended to, rotated, taken over after a restart.

    logs/CONTAINER/EXEC/00000001.jsonl      the oldest kept; EXEC is `-` for the first process
    logs/CONTAINER/EXEC/00000002.jsonl      the one being written

Each file begins with an empty line of each stream, so the last file alone tells how far the
streams were written: what an agent that was killed had written is found there, a line that
it had half written is cut off, and the next one goes on.

The log's tmpfs may be full. Then the oldest file goes, of whichever log has most, and at the
last what is to be written itself: a process never waits for its log. Offsets that jump say so.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from typing import TYPE_CHECKING

from agent.handlers.runtime.logs.records import LogPiece, cut, from_line, to_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from agent.core.life import LogOptions
    from agent.core.model import Stream

log = logging.getLogger(__name__)

_BLOCK = 64 << 10
_PAGE = 4096
_HEAD = 80
"""Bytes of a line in which its stream is named."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class LogSpace:
    """One tmpfs that many logs share."""

    def __init__(self) -> None:
        self.logs: set[LogFiles] = set()

    def reclaim(self) -> bool:
        """Have some log lose its oldest file; whether one had any to lose."""
        for each in sorted(self.logs, key=lambda found: found.size, reverse=True):
            if each.drop_oldest():
                return True
        return False


class LogFiles:
    """The writer's side; there is one for each log."""

    def __init__(
        self, directory: Path, options: LogOptions, streams: Sequence[Stream], space: LogSpace
    ) -> None:
        """Take over what is there. Raises OSError."""
        self.directory = directory
        self.ends: dict[Stream, int] = dict.fromkeys(streams, 0)
        """First byte of each stream that is not written yet."""
        self._options = options
        self._space = space
        self._fd = -1
        self._newest = 0
        self._sizes: dict[int, int] = {}
        self._recover()
        space.logs.add(self)

    @property
    def size(self) -> int:
        return sum(self._sizes.values())

    def append(self, piece: LogPiece) -> None:
        """Write all of it, or leave it out where there is no space for it."""
        at = piece.offset
        for part in cut(piece.data, self._options.max_bytes):
            self._write(LogPiece(stream=piece.stream, offset=at, at=piece.at, data=part))
            at += len(part)
            # Written or lost. Not before: a new file begins with where the streams go on.
            self.ends[piece.stream] = at

    def drop_oldest(self) -> bool:
        """Lose the oldest file, also the one being written when that is the only one."""
        oldest = min(self._sizes, default=0)
        if oldest == self._newest:
            if self.size <= _PAGE:
                return False
            self._close_file()
        self._remove(oldest)
        return True

    def close(self) -> None:
        self._space.logs.discard(self)
        self._close_file()

    def _write(self, piece: LogPiece) -> None:
        line = to_line(piece)
        while True:
            try:
                self._open_for(len(line), piece.at)
                self._append(line)
            except OSError as error:
                if error.errno not in _FULL or not self._space.reclaim():
                    log.warning("%s: %d bytes are lost: %s", self.directory, len(line), error)
                    return
            else:
                return

    def _open_for(self, count: int, at: float) -> None:
        """See to it that a file is open which takes `count` bytes more."""
        if self._fd >= 0 and self._sizes[self._newest] + count <= self._options.max_bytes:
            return
        self._close_file()
        self._open(self._newest + 1)
        for stream, offset in self.ends.items():
            self._append(to_line(LogPiece(stream=stream, offset=offset, at=at, data=b"")))
        for old in sorted(self._sizes)[: -self._options.files]:
            self._remove(old)

    def _append(self, line: bytes) -> None:
        """Raises OSError with the file as it was before."""
        written = 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            os.ftruncate(self._fd, self._sizes[self._newest])
            raise
        self._sizes[self._newest] += written

    def _open(self, number: int) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path_of(self.directory, number), flags, 0o600)
        self._newest = number
        self._sizes[number] = os.fstat(self._fd).st_size

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _remove(self, number: int) -> None:
        del self._sizes[number]
        path_of(self.directory, number).unlink(missing_ok=True)

    def _recover(self) -> None:
        found = numbers(self.directory)
        for number in found:
            self._sizes[number] = path_of(self.directory, number).stat().st_size
        if not found:
            return
        self._open(found[-1])
        self._cut_torn()
        for stream in self.ends:
            self.ends[stream] = self._last_end(stream, found)

    def _cut_torn(self) -> None:
        whole = _whole_size(self._fd, self._sizes[self._newest])
        if whole < self._sizes[self._newest]:
            os.ftruncate(self._fd, whole)
            self._sizes[self._newest] = whole

    def _last_end(self, stream: Stream, found: Sequence[int]) -> int:
        for number in reversed(found):
            for _, piece in lines_backwards(self.directory, number, (stream,)):
                return piece.end
        return 0


def forget(directory: Path) -> None:
    """Remove a log that nobody writes, and its container's directory with the last one."""
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        directory.parent.rmdir()


def path_of(directory: Path, number: int) -> Path:
    return directory / f"{number:08}.jsonl"


def numbers(directory: Path) -> list[int]:
    """Of the files that there are, the oldest first."""
    try:
        names = [each.name for each in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    stems = (name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl"))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def lines_backwards(
    directory: Path, number: int, streams: Collection[Stream]
) -> Iterator[tuple[int, LogPiece]]:
    """Lines of these streams in a file, with where they begin, the last one first; none of a
    file that is gone."""
    wanted = [f'"stream": "{stream}"'.encode() for stream in streams]
    try:
        fd = os.open(path_of(directory, number), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        for at, line in _raw_backwards(fd, os.fstat(fd).st_size):
            if not any(words in line[:_HEAD] for words in wanted):
                continue
            piece = from_line(line)
            if piece is not None and piece.stream in streams:
                yield at, piece
    finally:
        os.close(fd)


def _raw_backwards(fd: int, end: int) -> Iterator[tuple[int, bytes]]:
    rest = b""
    while end > 0:
        start = max(0, end - _BLOCK)
        lines = (os.pread(fd, end - start, start) + rest).splitlines(keepends=True)
        # Whole only if the block before ends with a newline, which isn't known yet.
        rest = lines.pop(0) if start > 0 else b""
        at = start + len(rest) + sum(map(len, lines))
        for line in reversed(lines):
            at -= len(line)
            yield at, line
        end = start


def _whole_size(fd: int, size: int) -> int:
    """Up to where the lines are whole."""
    for at, line in _raw_backwards(fd, size):
        if from_line(line) is not None:
            return at + len(line)
    return 0
