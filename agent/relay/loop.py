"""One thread, one epoll: who is called when a descriptor, a moment or a turn comes.

Everything is watched edge-triggered, once, for reading and writing. So a
callback takes an event as a hint only: it tries until the kernel says EAGAIN,
or asks for another turn.
"""

from __future__ import annotations

import heapq
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

EDGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
"""For all that is read or written until EAGAIN."""


class Timer:
    """A call in the future that can be called off."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Watches, timers and turns; `clock` is in seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: list[Timer] = []
        self._again: list[Callable[[], None]] = []
        self._dead: list[int] = []

    def watch(self, fd: int, callback: Callable[[int], None], events: int = EDGES) -> None:
        """Call `callback(event bits)`; a second watch of the same fd replaces the callback."""
        if fd not in self._callbacks:
            self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def unwatch(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def dispose(self, fd: int) -> None:
        """Stop watching, and close it at the end of this turn.

        Not at once: a new descriptor with the same number would get the
        events that this turn still holds for the old one.
        """
        self.unwatch(fd)
        self._dead.append(fd)

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self._clock() + seconds, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def again(self, callback: Callable[[], None]) -> None:
        """Call back in the next turn, after the others had theirs."""
        self._again.append(callback)

    def turn(self) -> None:
        """Wait for something, then call all that is due."""
        events = self._epoll.poll(self._patience())
        again, self._again = self._again, []
        for fd, bits in events:
            if callback := self._callbacks.get(fd):
                callback(bits)
        for resume in again:
            resume()
        self._expire()
        self._bury()

    def close(self) -> None:
        """Let go of epoll; what is watched stays its owner's."""
        self._bury()
        self._epoll.close()

    def _patience(self) -> float | None:
        """How long poll may wait: not at all, until the next timer, or for ever."""
        if self._again or self._dead:
            return 0
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0].when - self._clock())

    def _expire(self) -> None:
        now = self._clock()
        while self._timers and self._timers[0].when <= now:
            if callback := heapq.heappop(self._timers).callback:
                callback()

    def _bury(self) -> None:
        dead, self._dead = self._dead, []
        for fd in dead:
            os.close(fd)
