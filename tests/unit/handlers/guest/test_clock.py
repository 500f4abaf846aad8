"""Setting the wall clock."""

from __future__ import annotations

import errno
import os
import time

import pytest

from agent.core.errors import AgentError, Reason
from agent.handlers.guest.clock import LATEST, Clock

pytestmark = [pytest.mark.unit, pytest.mark.operations]


class Kernel:
    """CLOCK_REALTIME under the rules of do_settimeofday64, ten seconds after its start."""

    UPTIME = 10 * 10**9

    def __init__(self) -> None:
        self.now = 1_600_000_000 * 10**9

    def set(self, clock: int, nanoseconds: int) -> None:
        assert clock == time.CLOCK_REALTIME
        if nanoseconds < self.UPTIME:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.now = nanoseconds


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def clock(kernel: Kernel) -> Clock:
    return Clock(now=lambda: kernel.now, settime=kernel.set)


def test_the_time_is_set_to_the_microsecond(kernel: Kernel, clock: Clock) -> None:
    assert clock.set(1_700_000_000, 999_999) == 100_000_000 * 10**6 + 999_999
    assert kernel.now == 1_700_000_000_999_999_000


def test_backwards_is_negative(clock: Clock) -> None:
    assert clock.set(1_599_999_999, 0) == -(10**6)


@pytest.mark.parametrize("microseconds", [-1, 10**6])
def test_a_second_has_a_million_microseconds(
    kernel: Kernel, clock: Clock, microseconds: int
) -> None:
    before = kernel.now
    with pytest.raises(AgentError) as caught:
        clock.set(1_700_000_000, microseconds)
    assert caught.value.reason is Reason.BAD_FIELD
    assert kernel.now == before


def test_1970_is_before_the_boot_and_the_kernels_to_refuse(clock: Clock) -> None:
    with pytest.raises(AgentError) as caught:
        clock.set(0, 0)
    assert caught.value.reason is Reason.KERNEL_REFUSED
    assert caught.value.fields["errno"] == "EINVAL"
    assert caught.value.hint is not None


def test_the_latest_time_is_in_the_year_2232(clock: Clock) -> None:
    """TIME_SETTOD_SEC_MAX: 292 years of nanoseconds in 63 bits, less 30 of uptime."""
    assert time.gmtime(LATEST - 1).tm_year == 2232
    clock.set(LATEST - 1, 999_999)
    with pytest.raises(AgentError):
        clock.set(LATEST, 0)
