"""The event loop: epoll, deadlines, and errors that don't stop it.

No asyncio: its import costs more than all of PID 1. No threads: what may hang
is done by children.
"""

from __future__ import annotations

import heapq
import select
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
HANGUP = select.EPOLLHUP | select.EPOLLERR


class Timer:
    """One call in the future; `cancel` may be called at any time."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Loop:
    """Runs callbacks; one that raises is reported to `on_error` and the loop goes on."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[int], None]] = {}
        self._timers: list[Timer] = []
        self._on_error = on_error

    def watch(self, fd: int, events: int, action: Callable[[int], None]) -> None:
        """Call `action(events seen)` while `fd` is ready; a second call changes the events."""
        if fd in self._watched:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._watched[fd] = action

    def forget(self, fd: int) -> None:
        """Stop watching; call it before the descriptor is closed."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def call_after(self, seconds: float, action: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + seconds, action)
        heapq.heappush(self._timers, timer)
        return timer

    def run_once(self) -> None:
        """Wait for the next event or deadline and handle all that is due."""
        for fd, events in self._epoll.poll(self._time_left()):
            # An earlier callback of this round may have closed it.
            action = self._watched.get(fd)
            if action is not None:
                self._guard(partial(action, events))
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            timer = heapq.heappop(self._timers)
            if timer.action is not None:
                self._guard(timer.action)

    def close(self) -> None:
        self._epoll.close()

    def _time_left(self) -> float | None:
        while self._timers and self._timers[0].action is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0].when - time.monotonic())

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - PID 1 outlives the bugs of its parts
            self._on_error(error)
