"""From a process's pipe or terminal into its spool, as the loop finds it readable.

When the process ends, the offset at which it did so is marked. What was written
until then is taken at once, also above the window, so that nobody has to wait for
it; the stream goes on until its own end, which a child left behind may hold off.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
from typing import TYPE_CHECKING, Protocol

from agent.handlers.runtime.streams.readers import RETURN
from agent.handlers.runtime.streams.spool import BURST
from agent.linux import splicing

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.handlers.runtime.streams.readers import Cursor
    from agent.handlers.runtime.streams.space import Space
    from agent.handlers.runtime.streams.spool import Spool

log = logging.getLogger(__name__)

GRACE = 0.2
"""Seconds after the exit for a terminal's last bytes, which the kernel brings over by
itself (tty_flip_buffer_push); not waited for when the terminal's end comes before."""

REST = 256 * 1024
"""So much is taken of a terminal after the exit, above the window: more than it holds."""

FULL_PATIENCE = 1.0
"""Seconds for which an exit waits for a full tmpfs to take the last bytes."""


class Source(Protocol):
    """Where a process writes to."""

    def fileno(self) -> int:
        """What becomes readable."""
        ...

    def move(self, file: int, offset: int, count: int) -> int:
        """Move up to `count` bytes into the file; 0 at the end. Raises BlockingIOError."""
        ...

    def waiting(self) -> int | None:
        """How much lies there now; None where only moving it tells."""
        ...

    def hung_up(self) -> bool:
        """Whether it is known that nothing lies there and nothing can come."""
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

    def waiting(self) -> int | None:
        return splicing.waiting_bytes(self._pipe)

    def hung_up(self) -> bool:
        poller = select.poll()
        poller.register(self._pipe, select.POLLIN)
        return [events for _, events in poller.poll(0)] == [select.POLLHUP]

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

    def waiting(self) -> int | None:
        return None

    def hung_up(self) -> bool:
        return False

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
    """Fills one spool until the stream's end; `ended` is then true for good.

    `mark` is the offset at which the process ended, once that is known.
    """

    def __init__(
        self,
        spool: Spool,
        source: Source | None,
        *,
        space: Space,
        changed: Callable[[], None],
        mark: int | None = None,
    ) -> None:
        """Without a source, what is in the spool is all there will be."""
        self.spool = spool
        self.mark = mark
        self._source = source
        self._space = space
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._watching = False
        self._over = asyncio.Event()
        self._timers: set[asyncio.TimerHandle] = set()
        for reader in spool.readers.away:
            self.forget_later(reader, RETURN)
        # Up to here bytes are taken whether there is room for them or not.
        self._goal = mark or 0

    @property
    def ended(self) -> bool:
        return self._source is None

    @property
    def settled(self) -> bool:
        """Whether it has ended, stands still until readers have come further, or has all
        that a process which has ended left."""
        if self._source is None or not self._watching:
            return True
        return self.mark is not None and not self._source.waiting()

    def resume(self) -> None:
        """Go on, when there is something to go on with: room, space, or just the start."""
        if self._source is not None and not self._watching and self._room() > 0:
            self._loop.add_reader(self._source.fileno(), self._readable)
            self._watching = True
            # A terminal's bytes may lie in our own pipe, which the loop doesn't watch.
            self._loop.call_soon(self._readable)

    def process_ended(self) -> None:
        """The process wrote nothing after this moment."""
        if self._source is None:
            self._set_mark(self.spool.size)
            return
        waiting = self._source.waiting()
        if waiting is None:
            self._goal = self.spool.size + REST
            self.resume()
        else:
            self._goal = self.spool.size + waiting
            self._set_mark(self._goal)

    async def drained(self) -> int:
        """The mark, when all that is before it is in the spool, or the tmpfs stays full."""
        if self.mark is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await self._over.wait()
        await self._drain()
        if self.mark is None or self.ended:
            self._set_mark(min(self.mark or self.spool.size, self.spool.size))
        return self.mark or 0

    def forget_later(self, reader: Cursor, seconds: float) -> None:
        """Keep the place of a reader that may come back, for so long."""
        if not self.ended:
            self._timers.add(self._loop.call_later(seconds, self._forget, reader))

    def close(self) -> None:
        """Let go of everything; the spool's bytes stay."""
        self._pause()
        for timer in self._timers:
            timer.cancel()
        if self._source is not None:
            self._source.close()
            self._source = None
        self.spool.close()
        self._over.set()

    def tail(self, count: int) -> bytes:
        """The last bytes before the mark, or so far; none when nothing is kept."""
        end = self.spool.size if self.mark is None else self.mark
        return self.spool.tail(count, end=end)

    def _forget(self, reader: Cursor) -> None:
        now = self._loop.time()
        self._timers = {each for each in self._timers if each.when() > now}
        self.spool.forget(reader)
        self.resume()

    def _set_mark(self, mark: int) -> None:
        if self.mark is None or mark < self.mark:
            self.mark = mark
        self._changed()

    def _room(self) -> int:
        return max(self.spool.room(), self._goal - self.spool.size)

    async def _drain(self) -> None:
        """Take all up to the goal."""
        until = self._loop.time() + FULL_PATIENCE
        while self._source is not None and self.spool.size < self._goal:
            try:
                self._take(self._goal - self.spool.size)
            except BlockingIOError:
                # With a terminal that is all. With a pipe somebody else has read from it.
                self._goal = self.spool.size
                self._set_mark(self.spool.size)
            except OSError as error:
                left = until - self._loop.time()
                if not self._gained(error) and (
                    self.ended or not await self._space.freed_within(left)
                ):
                    return
        if self._source is not None and self._source.hung_up():
            self._end()

    def _readable(self) -> None:
        room = self._room()
        if room <= 0:
            self._pause()
            return
        try:
            self._take(room)
        except BlockingIOError:
            return
        except OSError as error:
            self._stall(error)

    def _take(self, room: int) -> None:
        """Move once. Raises OSError."""
        if self._source is None:
            return
        moved = self._source.move(self.spool.fd, self.spool.size, min(room, BURST))
        if moved == 0:
            self._end()
            return
        self.spool.grew(moved)
        self._changed()

    def _stall(self, error: OSError) -> None:
        """A full tmpfs stops this stream until space is given back."""
        if self._gained(error):
            self._loop.call_soon(self._readable)
        elif not self.ended:
            log.warning("%s: the spools are full; its process has to wait", self.spool.path)
            self._pause()
            self._space.stalled(self.resume)

    def _gained(self, error: OSError) -> bool:
        """Whether there is space now. Another error than the lack of it is the end."""
        if error.errno == errno.ENOSPC:
            return self._space.reclaim() or self.spool.shed()
        log.error("%s: its output is lost from here on: %s", self.spool.path, error)
        self._end()
        return False

    def _pause(self) -> None:
        if self._watching and self._source is not None:
            self._loop.remove_reader(self._source.fileno())
        self._watching = False

    def _end(self) -> None:
        self.close()
        self._changed()
