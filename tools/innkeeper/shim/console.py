"""The guest's console, as it comes: all of it to its log, its last lines for errors,
its beginning for progress.

QEMU could write the log itself (`logfile=`), but it writes a byte once more
whenever its other end was full and it has to try again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from innkeeper.shim.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO

    from innkeeper.shim.console_log import ConsoleLog

_KEPT_LINES = 30
_LONGEST_LINE = 400
_READ = 16384


class Console:
    """Reads one end of a pipe; QEMU's serial port has the other."""

    def __init__(self, end: FileIO, log: ConsoleLog) -> None:
        self._end = end
        self._log = log
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._rest = b""
        self._handlers: list[Callable[[str], None]] = []
        self.activity = asyncio.Event()
        """Set by every output; whoever waits for it clears it."""

    def on_line(self, handler: Callable[[str], None]) -> None:
        """`handler(line)` for every line from now on; it must not block."""
        self._handlers.append(handler)

    async def follow(self) -> None:
        """Reads until QEMU closes its end, which is when everything that the guest said
        has been read, however QEMU ended."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._end
        )
        with contextlib.closing(transport), contextlib.closing(self._log):
            while data := await reader.read(_READ):
                self._log.write(data)
                self.feed(data)
        self._take_rest()

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > _LONGEST_LINE:
            self._take_rest()
        self.activity.set()

    def tail(self) -> tuple[str, ...]:
        """The last lines, without escape sequences; the unfinished one too."""
        unfinished = _clean(self._rest)
        return (*self._lines, unfinished) if unfinished else tuple(self._lines)

    def _take_rest(self) -> None:
        rest, self._rest = self._rest, b""
        self._take(rest)

    def _take(self, raw: bytes) -> None:
        line = _clean(raw)
        if not line:
            return
        self._lines.append(line)
        for handler in self._handlers:
            handler(line)


def _clean(raw: bytes) -> str:
    return printable(raw.decode(errors="replace")).rstrip()[:_LONGEST_LINE]
