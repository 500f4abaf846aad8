"""Being told by the kernel that a file of cgroupfs or proc has news (poll(2), POLLPRI).

asyncio waits for readable and writable alone, and these files are always both. An epoll of
one's own shows as readable when the file in it has something urgent.
"""

from __future__ import annotations

import asyncio
import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Notice:
    """Calls `told` in the running loop whenever the file has news; it owns the descriptor.

    The kernel also shows news when the group of the file goes away, and then for good:
    `told` has to find out by reading, and close.

    Each file has an epoll of its own, which is never asked what it holds: for a trigger of
    pressure the asking takes the news away (psi_trigger_poll), and asyncio's own epoll has
    asked already.
    """

    def __init__(self, fd: int, told: Callable[[], None]) -> None:
        self.fd = fd
        self._loop = asyncio.get_running_loop()
        self._news = select.epoll()
        self._news.register(fd, select.EPOLLPRI)
        self._loop.add_reader(self._news.fileno(), told)

    def read(self) -> str | None:
        """The file's text now, which also takes note of its news; None when it is gone."""
        try:
            return os.pread(self.fd, 4096, 0).decode(errors="replace")
        except OSError:
            return None

    def close(self) -> None:
        """Hear no more; a second time is fine."""
        if self._news.closed:
            return
        self._loop.remove_reader(self._news.fileno())
        self._news.close()
        os.close(self.fd)
