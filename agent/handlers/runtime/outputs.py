"""From a process's pipe or terminal into its spool, as the loop finds it readable."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from typing import TYPE_CHECKING, Protocol, Self

from agent.core.errors import AgentError
from agent.core.model import OutputChunk, Stream
from agent.linux import splicing

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.handlers.runtime.space import Space
    from agent.handlers.runtime.spool import Spool

log = logging.getLogger(__name__)

GRACE = 0.2
"""Seconds after the exit in which output of children left behind still counts."""

REST = 256 * 1024
"""After the grace at most so much more is taken: above what a pipe or terminal
holds, so all that lay there, and yet an end when a child writes without pause."""

_BURST = 256 * 1024
_CHUNK = 64 * 1024


class Source(Protocol):
    """Where a process writes to."""

    def fileno(self) -> int:
        """What becomes readable."""
        ...

    def move(self, file: int, offset: int, count: int) -> int:
        """Move up to `count` bytes into the file; 0 at the end. Raises BlockingIOError."""
        ...

    def close(self) -> None: ...


class PipeSource:
    """The read end of a pipe."""

    def __init__(self, read_end: int) -> None:
        self._pipe = read_end

    def fileno(self) -> int:
        return self._pipe

    def move(self, file: int, offset: int, count: int) -> int:
        return splicing.splice_to_file(self._pipe, file, offset, count)

    def close(self) -> None:
        os.close(self._pipe)


class TerminalSource:
    """A terminal's master side; its bytes go through a pipe of ours, because
    terminals don't splice to files. The master is not ours to close."""

    def __init__(self, master: int, read_end: int, write_end: int) -> None:
        self._master = master
        self._read_end = read_end
        self._write_end = write_end

    def fileno(self) -> int:
        return self._master

    def move(self, file: int, offset: int, count: int) -> int:
        try:
            # What an earlier agent, or a full file system, left in between comes first.
            return splicing.splice_to_file(self._read_end, file, offset, count)
        except BlockingIOError:
            if not self._fill(count):
                return 0
            return splicing.splice_to_file(self._read_end, file, offset, count)

    def close(self) -> None:
        os.close(self._read_end)
        os.close(self._write_end)

    def _fill(self, count: int) -> int:
        try:
            return splicing.splice(self._master, self._write_end, count)
        except OSError as error:
            # EIO: nobody has the other side open, which is a terminal's end of file.
            if error.errno == errno.EIO:
                return 0
            raise


class OutputPump:
    """Fills one spool until the stream's end; `ended` is then true for good."""

    def __init__(
        self, spool: Spool, source: Source | None, *, space: Space, changed: Callable[[], None]
    ) -> None:
        """Without a source, what is in the spool is all there will be."""
        self.spool = spool
        self._source = source
        self._space = space
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._watching = False
        self._last_byte: int | None = None
        self._cut_timer: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        return self._source is None

    @property
    def full(self) -> bool:
        """Whether it stands still until readers have come further."""
        return self._source is not None and not self._watching

    def resume(self) -> None:
        """Go on, when there is something to go on with: room, space, or just the start."""
        if self._source is not None and not self._watching and self.spool.room() > 0:
            self._loop.add_reader(self._source.fileno(), self._readable)
            self._watching = True
            # A terminal's bytes may lie in our own pipe, which the loop doesn't watch.
            self._loop.call_soon(self._readable)

    def process_ended(self) -> None:
        """The end comes with the pipe's own, or after the grace with what lies in it then:
        a child in the background may hold the pipe open for ever."""
        if self._source is not None and self._cut_timer is None:
            self._cut_timer = self._loop.call_later(GRACE, self.cut)

    def cut(self) -> None:
        """Take what lies there now, and end."""
        self._last_byte = self.spool.size + REST
        self._readable()

    def close(self) -> None:
        """Let go of everything; the spool's bytes stay."""
        self._pause()
        if self._cut_timer is not None:
            self._cut_timer.cancel()
        if self._source is not None:
            self._source.close()
            self._source = None
        self.spool.close()

    def _readable(self) -> None:
        if self._source is None:
            return
        try:
            moved = self._move()
        except BlockingIOError:
            if self._last_byte is not None:
                self._end()
            return
        except OSError as error:
            self._stall(error)
            return
        if moved is None:
            self._pause()
        elif moved == 0:
            self._end()
        else:
            self.spool.size += moved
            self._changed()
            if self._last_byte is not None:
                # Not by the loop alone: it stops calling when a reader has to make room first.
                self._loop.call_soon(self._readable)

    def _move(self) -> int | None:
        """Bytes moved, 0 at the end, None when the readers must come first."""
        count = min(self.spool.room(), _BURST)
        if self._last_byte is not None:
            count = min(count, self._last_byte - self.spool.size)
            if self.spool.size >= self._last_byte:
                return 0
        if count <= 0 or self._source is None:
            return None
        return self._source.move(self.spool.fd, self.spool.size, count)

    def _stall(self, error: OSError) -> None:
        """A full tmpfs stops this stream until space is given back; else it is lost."""
        if error.errno == errno.ENOSPC:
            if self._space.reclaim():
                self._loop.call_soon(self._readable)
                return
            log.warning("%s: the spools are full; its process has to wait", self.spool.path)
            self._pause()
            self._space.stalled(self.resume)
            return
        log.error("%s: its output is lost from here on: %s", self.spool.path, error)
        self._end()

    def _pause(self) -> None:
        if self._watching and self._source is not None:
            self._loop.remove_reader(self._source.fileno())
        self._watching = False

    def _end(self) -> None:
        self.close()
        self._changed()


class OutputReader:
    """One reader of one stream; has a descriptor of its own, so a spool that is
    removed meanwhile can still be read to its end."""

    def __init__(self, stream: Stream, pump: OutputPump, offset: int) -> None:
        """Raises OUT_OF_RANGE, see Spool.enter."""
        self._stream = stream
        self._pump = pump
        self._fd = os.open(pump.spool.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._cursor = pump.spool.enter(offset)
        except AgentError:
            os.close(self._fd)
            raise
        self.done = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pump.spool.leave(self._cursor)
        os.close(self._fd)
        # The process may have had to wait for this reader only.
        self._pump.resume()

    def next(self) -> OutputChunk | None:
        """The next bytes, the end, or None when there is nothing new."""
        position, spool = self._cursor.position, self._pump.spool
        data = os.pread(self._fd, min(spool.size - position, _CHUNK), position)
        end = self._pump.ended and position + len(data) == spool.size
        if not data and not end:
            return None
        return OutputChunk(stream=self._stream, offset=position, data=data, end=end)

    def taken(self, chunk: OutputChunk) -> None:
        """The caller has the chunk."""
        self.done = chunk.end
        self._pump.spool.advance(self._cursor, chunk.offset + len(chunk.data))
        self._pump.resume()
