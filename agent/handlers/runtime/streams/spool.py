"""One output stream as a sparse file: offset in the file = offset in the stream.

The file's size is how much the process has written, also after a restart of the
agent, because splice(2) moves bytes out of the pipe and into the file in one
call. What is kept, with a window of W bytes (StreamOptions):

* Bytes that no reader has had are never dropped. When W of them are there, no
  more are taken from the pipe, and so the process waits: also when nobody has
  read yet, so the first W bytes are always there for the first reader.
* Bytes that a reader has had stay for W bytes more, for a host that lost its
  connection with some of them on the way. A host that acknowledges output has
  all kept that it did not acknowledge, up to 2 W, and then the process waits.
* With several readers the slowest counts, and one with a name whose connection
  broke counts for a while (readers.py). Another file has the names, a line each,
  for an agent that comes after this one.
* Readers that may miss bytes never make the process wait; W bytes are kept for
  them, and what is before is a gap for who is behind. With WhenFull.DROP all
  readers are like that, and the process never waits.
* When the tmpfs is full, all streams give up what their readers have had (what
  is acknowledged, where that is known) before a process has to wait for it.

Whole pages are given back, so a little more may be kept.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Code, Reason
from agent.core.life import WhenFull
from agent.core.names import check_id
from agent.handlers.runtime.streams.readers import Cursor, Readers
from agent.linux import splicing

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.life import StreamOptions
    from agent.handlers.runtime.streams.space import Space

log = logging.getLogger(__name__)

BURST = 256 * 1024
"""Most bytes that are moved at once."""

_TRIM_STEPS = 16
"""Memory is given back in so many steps to a window, not page by page; never less than
64 KiB at once."""


class Spool:
    """The file of one output stream, and its readers' positions."""

    def __init__(self, path: Path, *, options: StreamOptions, space: Space) -> None:
        """Open the file, new or left by an earlier agent. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self.path = path
        with ExitStack() as stack:
            self.fd = os.open(path, flags, 0o600)
            stack.callback(os.close, self.fd)
            self._names = os.open(path.with_suffix(".readers"), flags, 0o600)
            stack.callback(os.close, self._names)
            self.size = os.fstat(self.fd).st_size
            self.kept = splicing.data_start(self.fd)
            self._noted = _read_names(self._names)
            stack.pop_all()
        self._window = options.window
        self._step = max(self._window // _TRIM_STEPS, 64 * 1024)
        self._drops = options.when_full is WhenFull.DROP
        self._space = space
        # Where an earlier agent's readers were isn't known: what they had is kept again.
        self.readers = Readers(window=self._window, kept=self.kept, lost=self._noted)
        space.givers.add(self)

    def close(self) -> None:
        self._space.givers.discard(self)
        if self.fd >= 0:
            os.close(self.fd)
            os.close(self._names)
            self.fd = -1

    @property
    def all_read(self) -> bool:
        """Whether some reader has had every byte so far."""
        return self.readers.read >= self.size

    def room(self) -> int:
        """How many bytes more may be taken from the process; not above 0: none."""
        if self._drops or self.readers.free:
            return BURST
        slowest, floor = self.readers.bounds()
        return min(slowest + self._window, floor + 2 * self._window) - self.size

    def grew(self, count: int) -> None:
        """So many bytes were added to the file."""
        self.size += count
        if self._drops or self.readers.free:
            self._trim()

    def enter(self, offset: int, *, name: str = "", may_miss: bool = False) -> Cursor:
        """A reader from `offset` on; it takes the place of the one with its name.

        Raises OUT_OF_RANGE for what is not yet there, and for what is not kept unless the
        reader may miss bytes.
        """
        may_miss = may_miss or self._drops
        if offset < self.kept and not may_miss:
            raise _not_kept(self, offset)
        if offset > self.size:
            raise _not_there(self, offset)
        cursor = self.readers.enter(offset, name=name, may_miss=may_miss)
        self._note_names()
        return cursor

    def advance(self, cursor: Cursor, position: int) -> None:
        """The reader was given everything below `position`."""
        self.readers.advance(cursor, position)
        self._trim()

    def leave(self, cursor: Cursor, *, for_good: bool) -> Cursor | None:
        """The cursor of a reader whose place is kept, for `forget`."""
        left = self.readers.leave(cursor, for_good=for_good)
        self._note_names()
        self._trim()
        return left

    def forget(self, cursor: Cursor) -> None:
        """It has not come back in time."""
        self.readers.forget(cursor)
        self._note_names()
        self._trim()

    def acknowledge(self, offset: int, name: str = "") -> None:
        """A reader has everything below `offset` for good. Raises OUT_OF_RANGE."""
        if offset > self.size:
            raise _not_there(self, offset)
        self.readers.acknowledge(offset, name)
        self._trim()

    def give_back(self) -> bool:
        """Keep no more than what readers have not had; whether that was less than before."""
        return self._punch(self.readers.had(), step=1)

    def shed(self) -> bool:
        """Drop half of what is kept, where bytes may be dropped; whether there was any."""
        if not (self._drops or self.readers.free):
            return False
        return self._punch((self.kept + self.size + 1) // 2, step=1)

    def tail(self, count: int, *, end: int) -> bytes:
        """The last bytes before `end`, as far as they are there and kept."""
        end = min(end, self.size)
        start = max(self.kept, end - count)
        if start >= end:
            return b""
        # By name: the stream may have ended, and our descriptor been closed with it.
        try:
            with self.path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), end - start, start)
        except FileNotFoundError:
            return b""

    def _trim(self) -> None:
        freed = self._punch(self._floor(), step=self._step)
        if freed or (self._space.short and self.give_back()):
            self._space.freed()

    def _floor(self) -> int:
        behind = self.size - self._window
        if self._drops or self.readers.free:
            return behind
        (_, floor), missing = self.readers.bounds(), self.readers.missing()
        return floor if missing is None else min(floor, max(missing, behind))

    def _punch(self, end: int, *, step: int) -> bool:
        """Give back the whole pages below `end`, when they are at least `step` bytes."""
        end = end // splicing.PAGE * splicing.PAGE
        if self.fd < 0 or end - self.kept < step:
            return False
        splicing.punch_hole(self.fd, self.kept, end - self.kept)
        self.kept = end
        return True

    def _note_names(self) -> None:
        names = self.readers.names
        if self.fd < 0 or names == self._noted:
            return
        try:
            _write_names(self._names, names)
        except OSError as error:
            # No space, most likely. Who reads makes some, and is not turned away.
            log.warning("%s: a restart of the agent will lose its readers: %s", self.path, error)
            return
        self._noted = names


def _read_names(file: int) -> frozenset[str]:
    lines = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace").splitlines()
    names = set()
    for line in lines:
        with suppress(AgentError):
            names.add(check_id("reader", line))
    return frozenset(names)


def _write_names(file: int, names: frozenset[str]) -> None:
    """An agent that dies in between leaves a name too many, which is given up in time."""
    text = "".join(f"{name}\n" for name in sorted(names)).encode()
    os.pwrite(file, text, 0)
    os.ftruncate(file, len(text))


def _not_kept(spool: Spool, offset: int) -> AgentError:
    return AgentError(
        f"{spool.path.name}: byte {offset} is not kept any more; kept are {spool.kept} and later",
        code=Code.OUT_OF_RANGE,
        reason=Reason.OFFSET_NOT_KEPT,
        fields={"stream": spool.path.name, "offset": str(offset), "oldest": str(spool.kept)},
        hint=f"go on at offset {spool.kept}, or take the loss as the end",
    )


def _not_there(spool: Spool, offset: int) -> AgentError:
    return AgentError(
        f"{spool.path.name}: offset {offset} is beyond its {spool.size} bytes so far",
        code=Code.OUT_OF_RANGE,
        reason=Reason.BAD_FIELD,
        fields={"stream": spool.path.name, "offset": str(offset), "size": str(spool.size)},
    )
