"""One output stream as a sparse file: offset in the file = offset in the stream.

The file's size is how much the process has written, also after a restart of the
agent, because splice(2) moves bytes out of the pipe and into the file in one
call. What is kept, with a window of W bytes (1 MiB unless configured):

* Bytes that no reader has had are never dropped. When W of them are there, no
  more are taken from the pipe, and so the process waits: also when nobody has
  read yet, so the first W bytes are always there for the first reader.
* Bytes that a reader has had stay for W bytes more, for a host that lost its
  connection with some of them on the way. A host that acknowledges output has
  all kept that it did not acknowledge, up to 2 W, and then the process waits.
* With several readers the slowest counts.
* When the tmpfs is full, all streams give up what their readers have had (what
  is acknowledged, where that is known) before a process has to wait for it.

Whole pages are given back, so a little more may be kept.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Code, Reason
from agent.linux import splicing

if TYPE_CHECKING:
    from pathlib import Path

    from agent.handlers.runtime.space import Space

_TRIM_STEP = 64 * 1024
"""Give memory back in steps of this, not page by page."""


class Cursor:
    """How far one reader has come."""

    def __init__(self, position: int) -> None:
        self.position = position


class Spool:
    """The file of one output stream, and its readers' positions."""

    def __init__(self, path: Path, *, window: int, space: Space) -> None:
        """Open the file, new or left by an earlier agent. Raises OSError."""
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self.fd).st_size
        self.kept = splicing.data_start(self.fd)
        self._window = window
        self._space = space
        self._cursors: set[Cursor] = set()
        # Where an earlier agent's readers were isn't known: what they had is kept again.
        self._read = self.kept
        self._acknowledged: int | None = None
        space.givers.add(self)

    def close(self) -> None:
        self._space.givers.discard(self)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @property
    def all_read(self) -> bool:
        """Whether some reader has had every byte so far."""
        return self._read >= self.size

    def room(self) -> int:
        """How many bytes more may be taken from the process; not above 0: none."""
        read = self._slowest()
        return min(read + self._window, self._floor(read) + 2 * self._window) - self.size

    def enter(self, offset: int) -> Cursor:
        """A reader from `offset` on. Raises OUT_OF_RANGE for what is not kept or not yet there."""
        if offset < self.kept:
            raise _not_kept(self, offset)
        if offset > self.size:
            raise _not_there(self, offset)
        cursor = Cursor(offset)
        self._cursors.add(cursor)
        return cursor

    def advance(self, cursor: Cursor, position: int) -> None:
        """The reader has everything below `position`."""
        cursor.position = position
        self._read = max(self._read, position)
        self._trim()

    def leave(self, cursor: Cursor) -> None:
        self._cursors.discard(cursor)

    def acknowledge(self, offset: int) -> None:
        """The host has everything below `offset` for good. Raises OUT_OF_RANGE."""
        if offset > self.size:
            raise _not_there(self, offset)
        self._acknowledged = max(self._acknowledged or 0, offset)
        self._trim()

    def give_back(self) -> bool:
        """Keep no more than what readers have not had; whether that was less than before."""
        read = self._slowest()
        return self._punch(read if self._acknowledged is None else self._floor(read), step=1)

    def _slowest(self) -> int:
        return min((cursor.position for cursor in self._cursors), default=self._read)

    def _floor(self, read: int) -> int:
        if self._acknowledged is None:
            return read - self._window
        return min(self._acknowledged, read)

    def _trim(self) -> None:
        freed = self._punch(self._floor(self._slowest()), step=_TRIM_STEP)
        if freed or (self._space.short and self.give_back()):
            self._space.freed()

    def _punch(self, end: int, *, step: int) -> bool:
        """Give back the whole pages below `end`, when they are at least `step` bytes."""
        end = end // splicing.PAGE * splicing.PAGE
        if self.fd < 0 or end - self.kept < step:
            return False
        splicing.punch_hole(self.fd, self.kept, end - self.kept)
        self.kept = end
        return True


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
