"""Deadlines: a point in time that a whole request shares.

A request's timeout becomes one `Deadline` on entry; every wait below takes what
is left of it, so that waits in a row never add up to more than was asked for.
The clock is CLOCK_MONOTONIC: setting the guest's time of day moves nothing.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Self

from agent.core.errors import invalid

MAX_TIMEOUT = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock, in seconds."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        return cls(time.monotonic() + seconds)

    @classmethod
    def of_request(cls, timeout: float | None, default: float) -> Self:
        """The deadline that a request asks for; raises BAD_FIELD outside 0 to 24 h."""
        if timeout is None:
            return cls.after(default)
        if not (math.isfinite(timeout) and 0 < timeout <= MAX_TIMEOUT):
            raise invalid(
                f"a timeout of {timeout} s is not above 0 and at most {MAX_TIMEOUT:.0f} s",
                field="timeout",
            )
        return cls.after(timeout)

    def left(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at

    def earlier(self, seconds: float) -> Deadline:
        """This deadline, or the one in `seconds` from now when that comes first."""
        return min(self, Deadline.after(seconds), key=lambda deadline: deadline.at)

    def limit(self) -> asyncio.Timeout:
        """`async with deadline.limit():` raises TimeoutError once the deadline is passed."""
        return asyncio.timeout(self.left())
