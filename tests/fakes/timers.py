"""An event loop's clock and timers, for tests that set the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class FakeTimer:
    """One call to come."""

    when: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass(slots=True)
class FakeTimers:
    """A clock that is set; `pass_by` calls what is due."""

    now: float = 1000.0
    timers: list[FakeTimer] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(when, callback))
        return self.timers[-1]

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        due = [one for one in self.timers if one.when <= self.now]
        self.timers = [one for one in self.timers if one.when > self.now]
        for one in due:
            if not one.cancelled:
                one.callback()
