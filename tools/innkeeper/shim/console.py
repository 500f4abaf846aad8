"""The guest's console, as it comes: its last lines for errors, its beginning for progress.

QEMU itself writes the whole of it to console.log, so that nothing is missing
there even when the daemon hangs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from innkeeper.shim.errors import printable

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_KEPT_LINES = 30
_LONGEST_LINE = 400
_READ = 16384


class Console:
    """Reads one end of a socket pair; QEMU's serial port has the other."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._rest = b""
        self._handlers: list[Callable[[str], None]] = []
        self.activity = asyncio.Event()
        """Set by every output; whoever waits for it clears it."""

    def on_line(self, handler: Callable[[str], None]) -> None:
        """`handler(line)` for every line from now on; it must not block."""
        self._handlers.append(handler)

    async def follow(self) -> None:
        """Reads until QEMU closes its end."""
        self._end.setblocking(False)  # noqa: FBT003 - its own signature
        loop = asyncio.get_running_loop()
        with self._end:
            while data := await self._receive(loop):
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

    async def _receive(self, loop: asyncio.AbstractEventLoop) -> bytes:
        try:
            return await loop.sock_recv(self._end, _READ)
        except ConnectionError:
            return b""

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
