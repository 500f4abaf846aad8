"""A clock that goes when it is told to."""

from __future__ import annotations


class FakeClock:
    """Seconds since some moment."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
