"""From the host into a process: spooled first, then fed as the process reads.

The spool is a file whose size is how much was acknowledged, and whose position
is how much was fed: splice(2) advances it with the same call that moves the
bytes, and PID 1 holds a duplicate, which shares it. So an agent that dies at any
point repeats and loses nothing.

Back-pressure: bytes above the window are not acknowledged before the process
has read others.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from typing import TYPE_CHECKING, Protocol

from agent.core.errors import AgentError, Code, Reason, exhausted, kernel_refused, wrong_state
from agent.handlers.runtime.streams.pulse import Pulse
from agent.linux import splicing, terminals

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.handlers.runtime.streams.space import Space

log = logging.getLogger(__name__)

_BURST = 256 * 1024
_BURSTS = 16
"""So many in one turn of the loop: a process may read as fast as it is fed."""


class Sink(Protocol):
    """Where a process reads from."""

    def fileno(self) -> int:
        """What becomes writable."""
        ...

    def feed(self, spool: int, count: int) -> int:
        """Move up to `count` bytes from the spool's position on. Raises BlockingIOError."""
        ...

    def under_way(self) -> int:
        """Bytes that left the spool but may still refer to its memory."""
        ...

    def settled(self) -> bool:
        """Whether all that left the spool is where the process will read it."""
        ...

    def end_mark(self) -> bytes:
        """What to feed to say the end, where closing doesn't say it."""
        ...

    def close(self) -> None: ...


class PipeSink:
    """The write end of a pipe."""

    def __init__(self, write_end: int) -> None:
        self._pipe = write_end

    def fileno(self) -> int:
        return self._pipe

    def feed(self, spool: int, count: int) -> int:
        return _some(splicing.splice(spool, self._pipe, count))

    def under_way(self) -> int:
        return splicing.waiting_bytes(self._pipe)

    def settled(self) -> bool:
        return True

    def end_mark(self) -> bytes:
        return b""

    def close(self) -> None:
        os.close(self._pipe)


class TerminalSink:
    """A terminal's master side, behind a pipe of ours. The master is not ours to
    close: output still comes from it."""

    def __init__(self, master: int, read_end: int, write_end: int) -> None:
        self._master = master
        self._read_end = read_end
        self._write_end = write_end

    def fileno(self) -> int:
        return self._master

    def feed(self, spool: int, count: int) -> int:
        # A pipe's worth at a time: what is in between belongs to the terminal before the rest.
        if count and self.settled():
            _some(splicing.splice(spool, self._write_end, count))
        return splicing.splice(self._read_end, self._master, _BURST)

    def under_way(self) -> int:
        return splicing.waiting_bytes(self._read_end)

    def settled(self) -> bool:
        return self.under_way() == 0

    def end_mark(self) -> bytes:
        return terminals.end_of_file_character(self._master)

    def close(self) -> None:
        os.close(self._read_end)
        os.close(self._write_end)


def _some(moved: int) -> int:
    """A spool that is shorter than what was acknowledged must not be tried for ever."""
    if moved == 0:
        raise OSError(errno.ENODATA, "splice: the spool ends early")
    return moved


class InputFeed:
    """One process's input, from the host's frames to its pipe or terminal."""

    def __init__(
        self,
        spool: int,
        sink: Sink,
        *,
        window: int,
        space: Space,
        fed_all: Callable[[], None],
    ) -> None:
        """`spool` is ours to close; `fed_all` is called once, when the end has been fed."""
        self._spool = spool
        self._sink: Sink | None = sink
        self._window = window
        self._space = space
        self._fed_all = fed_all
        self._pulse = Pulse()
        self._loop = asyncio.get_running_loop()
        self._watching = False
        self._punched = 0
        self._told = False
        self._end: int | None = None
        self._size = os.fstat(spool).st_size

    @property
    def acknowledged(self) -> int:
        """Offset of the first byte not yet had."""
        return self._size if self._end is None else min(self._size, self._end)

    def start(self, *, end: int | None = None) -> None:
        """Begin, or go on where an earlier agent stopped; `end` as it was closed then."""
        if end is not None:
            self._set_end(end)
        self._feed()

    async def write(self, offset: int, data: bytes) -> int:
        """Take the bytes that are new; returns the acknowledged offset.

        Waits while the window is full. Raises OUT_OF_RANGE for a gap,
        INPUT_CLOSED after the end, NO_SPACE when the spools are full.
        """
        while fresh := self._fresh(offset, data):
            room = self._window - (self._size - self._fed())
            if room > 0:
                self._append(fresh[:room])
                self._feed()
            else:
                await self._pulse.wait()
        return self.acknowledged

    def check_end(self, offset: int) -> None:
        """Whether the input may end there: raises OUT_OF_RANGE unless it is all acknowledged."""
        expected = self._size if self._end is None else self._end
        if offset != expected:
            raise _out_of_range("the input can't end there", offset, expected)

    def close_at(self, offset: int) -> None:
        """The input ends once all before `offset` is fed; again with the same offset is fine."""
        self.check_end(offset)
        if self._end is None:
            self._set_end(offset)
            self._feed()

    def process_ended(self) -> None:
        """Nobody reads any more: whoever waits to write is told."""
        self._stop()
        self._pulse.beat()

    def close(self) -> None:
        self._stop()
        if self._spool >= 0:
            os.close(self._spool)
            self._spool = -1
            self._space.freed()
        self._pulse.beat()

    def _set_end(self, end: int) -> None:
        self._end = end
        mark = self._sink.end_mark() if self._sink is not None else b""
        if mark and self._size == end:
            # It goes through the spool as well, so that it is fed once, whoever dies when.
            self._append(mark)

    def _fresh(self, offset: int, data: bytes) -> bytes:
        if offset > self.acknowledged:
            raise _out_of_range("input is missing before it", offset, self.acknowledged)
        fresh = data[self.acknowledged - offset :]
        if fresh and (self._end is not None or self._sink is None):
            raise wrong_state(
                "the process's input is closed: it ended, closed it, or was told its end",
                reason=Reason.INPUT_CLOSED,
                offset=self.acknowledged,
            )
        return fresh

    def _fed(self) -> int:
        return os.lseek(self._spool, 0, os.SEEK_CUR)

    def _append(self, data: bytes) -> None:
        try:
            self._size += os.pwrite(self._spool, data, self._size)
        except OSError as error:
            if error.errno == errno.ENOSPC and self._space.reclaim():
                self._append(data)
                return
            if error.errno != errno.ENOSPC:
                raise kernel_refused(error, doing="spool input") from error
            raise exhausted(
                "the spools are full of streams that nobody reads",
                reason=Reason.NO_SPACE,
                hint="read their output, or remove containers; then send the input again",
            ) from error

    def _feed(self) -> None:
        """Feed what can be fed now; the loop calls again when there is room for more."""
        if self._sink is None:
            return
        try:
            for _ in range(_BURSTS):
                if self._all_fed():
                    break
                self._sink.feed(self._spool, min(self._size - self._fed(), _BURST))
            else:
                self._loop.call_soon(self._feed)
        except BlockingIOError:
            self._watch(self._sink)
        except OSError as error:
            # EPIPE: nobody reads the pipe any more. EIO: the same of a terminal.
            if error.errno not in (errno.EPIPE, errno.EIO):
                log.warning("input is lost from here on: %s", error)
            self._stop()
        self._trim()
        self._pulse.beat()

    def _all_fed(self) -> bool:
        if self._sink is None or self._size > self._fed() or not self._sink.settled():
            return False
        self._unwatch()
        if self._end is not None and not self._told:
            self._told = True
            self._fed_all()
        return True

    def _watch(self, sink: Sink) -> None:
        if not self._watching:
            self._loop.add_writer(sink.fileno(), self._feed)
            self._watching = True

    def _unwatch(self) -> None:
        if self._watching and self._sink is not None:
            self._loop.remove_writer(self._sink.fileno())
        self._watching = False

    def _stop(self) -> None:
        self._unwatch()
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    def _trim(self) -> None:
        """Give back what the process has: a page that still lies in the pipe is the pipe's."""
        under_way = self._sink.under_way() if self._sink is not None else 0
        end = (self._fed() - under_way) // splicing.PAGE * splicing.PAGE
        if end > self._punched:
            splicing.punch_hole(self._spool, self._punched, end - self._punched)
            self._punched = end
            self._space.freed()


def _out_of_range(what: str, offset: int, expected: int) -> AgentError:
    return AgentError(
        f"stdin, offset {offset}: {what}; acknowledged are {expected} bytes",
        code=Code.OUT_OF_RANGE,
        reason=Reason.BAD_FIELD,
        fields={"stream": "stdin", "offset": str(offset), "expected": str(expected)},
        hint=f"send from offset {expected} on",
    )
