"""Sandbox.SetTime: the guest's wall clock.

Only CLOCK_REALTIME is set. All waits of the agent are on CLOCK_MONOTONIC, so a
jump disturbs none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid, kernel_refused

if TYPE_CHECKING:
    from collections.abc import Callable

_MICROS: Final = 1_000_000
_NANOS_PER_MICRO: Final = 1000

# TIME_SETTOD_SEC_MAX in include/linux/time64.h: KTIME_SEC_MAX less 30 years of
# uptime; in the year 2232. The kernel answers EINVAL from there on.
LATEST: Final = 9_223_372_036 - 30 * 365 * 24 * 3600


class Clock:
    """Sets the wall clock; tests give functions of their own."""

    def __init__(
        self,
        *,
        now: Callable[[], int] = time.time_ns,
        settime: Callable[[int, int], object] = time.clock_settime_ns,
    ) -> None:
        self._now = now
        self._settime = settime

    def set(self, seconds: int, microseconds: int) -> int:
        """Set the time since 1970 (UTC); returns the jump in microseconds, negative is backwards.

        Raises BAD_FIELD out of range, and KERNEL_REFUSED: the kernel takes no
        time before its own start (do_settimeofday64 in kernel/time/timekeeping.c).
        """
        _check(seconds, microseconds)
        target = (seconds * _MICROS + microseconds) * _NANOS_PER_MICRO
        before = self._now()
        try:
            self._settime(time.CLOCK_REALTIME, target)
        except OSError as error:
            raise kernel_refused(
                error,
                doing=f"set the clock to {seconds}.{microseconds:06d}",
                hint="a time before the guest's own boot is refused",
            ) from error
        return (target - before) // _NANOS_PER_MICRO


def _check(seconds: int, microseconds: int) -> None:
    if not 0 <= seconds < LATEST:
        raise invalid(f"seconds: {seconds} is not 0 to {LATEST - 1}", field="seconds")
    if not 0 <= microseconds < _MICROS:
        raise invalid(
            f"microseconds: {microseconds} is not 0 to {_MICROS - 1}", field="microseconds"
        )
