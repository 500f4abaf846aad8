"""One reader of one output stream: what it gets next, and when it has had enough."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from agent.core.errors import AgentError
from agent.core.life import Until
from agent.core.model import OutputChunk, OutputGap, Stream
from agent.handlers.runtime.streams.readers import RETURN

if TYPE_CHECKING:
    from agent.handlers.runtime.streams.outputs import OutputPump

CHUNK = 256 * 1024
"""Most bytes of one chunk."""


class OutputReader:
    """Has a descriptor of its own, so a spool that is removed meanwhile can still be read
    to its end."""

    def __init__(
        self,
        stream: Stream,
        pump: OutputPump,
        offset: int,
        *,
        until: Until = Until.END,
        may_miss: bool = False,
        name: str = "",
    ) -> None:
        """Raises OUT_OF_RANGE, see Spool.enter."""
        self._stream = stream
        self._pump = pump
        self._until = until
        self._told_end = False
        self._fd = os.open(pump.spool.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._cursor = pump.spool.enter(offset, name=name, may_miss=may_miss)
        except AgentError:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        spool = self._pump.spool
        if left := spool.leave(self._cursor, for_good=self.done):
            self._pump.forget_later(left, RETURN)
        os.close(self._fd)
        # The process may have had to wait for this reader only.
        self._pump.resume()

    @property
    def done(self) -> bool:
        """Whether it has had all that it is for."""
        if self._told_end:
            return True
        position, mark = self._cursor.position, self._pump.mark
        if self._until is Until.END or mark is None or position < mark:
            return False
        # When that is the stream's own end as well, it is still to be told.
        return not (self._pump.ended and position == self._pump.spool.size)

    def next(self) -> OutputChunk | OutputGap | None:
        """The next bytes, what is missing, the end, or None when there is nothing new."""
        position, spool, limit = self._cursor.position, self._pump.spool, self._limit()
        if position < min(spool.kept, limit):
            return OutputGap(stream=self._stream, start=position, end=min(spool.kept, limit))
        count = min(limit - position, CHUNK)
        data = os.pread(self._fd, count, position) if count > 0 else b""
        end = self._pump.ended and position + len(data) == spool.size
        if not data and not end:
            return None
        return OutputChunk(stream=self._stream, offset=position, data=data, end=end)

    def taken(self, piece: OutputChunk | OutputGap) -> None:
        """The caller has what `next` gave."""
        if isinstance(piece, OutputGap):
            position = piece.end
        else:
            position = piece.offset + len(piece.data)
            self._told_end = piece.end
        self._pump.spool.advance(self._cursor, position)
        self._pump.resume()

    def _limit(self) -> int:
        size, mark = self._pump.spool.size, self._pump.mark
        return size if self._until is Until.END or mark is None else min(size, mark)
