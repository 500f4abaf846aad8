"""How many things of a kind are told one by one: so many in a second, the rest as one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

MOST: Final = 64
SECONDS: Final = 1.0


class Timer(Protocol):
    """asyncio.TimerHandle"""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """asyncio's event loop: its clock, and calls at a time of that clock."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What was not told one by one: how many, and whether there were others that were lost."""

    count: int = 0
    lost: bool = False


class Burst:
    """A second begins with what comes first after the last one. `tell` is called at its
    end, if there is anything to tell."""

    def __init__(self, tell: Callable[[Held], None], *, timers: Timers | None = None) -> None:
        self._tell = tell
        self._timers = timers or asyncio.get_running_loop()
        self._end = float("-inf")
        self._told = 0
        self._held = Held()
        self._timer: Timer | None = None

    def admits(self) -> bool:
        """Whether the caller tells this one by itself; else it is held back here."""
        self._begin()
        if self._told < MOST:
            self._told += 1
            return True
        self._held = Held(count=self._held.count + 1, lost=self._held.lost)
        self._wait()
        return False

    def lost(self) -> None:
        """Some came that nobody knows of."""
        self._begin()
        self._held = Held(count=self._held.count, lost=True)
        self._wait()

    def close(self) -> None:
        """Tell what is held back now."""
        if self._timer is not None:
            self._timer.cancel()
            self._flush()

    def _begin(self) -> None:
        now = self._timers.time()
        if now < self._end:
            return
        # The timer may be due and not have run yet.
        self.close()
        self._end = now + SECONDS
        self._told = 0

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self._timers.call_at(self._end, self._flush)

    def _flush(self) -> None:
        held, self._held, self._timer = self._held, Held(), None
        self._tell(held)
