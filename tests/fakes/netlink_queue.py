"""The kernel's event socket with its way of losing events (net/netlink/af_netlink.c).

When there is no more room the socket is congested: ENOBUFS is told once, before what is
queued, and everything sent from then on is dropped, room or not, until the queue has been
read empty. `FakeUevents` is simpler, and says when it loses something.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import NamedTuple

from agent.linux.uevents import Datagram
from tests.fakes.uevents import message


class _Queued(NamedTuple):
    data: bytes
    cut: bool


class NetlinkQueue:
    """A `UeventSource` with room for a number of messages."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.lost = 0
        self._queue: deque[_Queued] = deque()
        self._congested = False
        self._untold = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._bell

    def close(self) -> None:
        os.close(self._bell)

    def send(self, action: str, devpath: str, subsystem: str, *, cut: bool = False) -> None:
        """`cut`: the message arrives truncated."""
        if self._congested or len(self._queue) >= self.room:
            self.lost += 1
            self._untold |= not self._congested
            self._congested = True
        else:
            self._queue.append(_Queued(message(action, devpath, subsystem), cut))
        os.eventfd_write(self._bell, 1)

    def receive(self) -> Datagram:
        if self._untold:
            self._untold = False
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        if not self._queue:
            os.eventfd_read(self._bell)
            raise BlockingIOError
        data, cut = self._queue.popleft()
        self._congested &= bool(self._queue)
        return Datagram(data[: len(data) // 2] if cut else data, 0, cut)
