"""Deadlines of requests."""

from __future__ import annotations

import asyncio
import math

import pytest

from agent.core.deadlines import MAX_TIMEOUT, Deadline
from agent.core.errors import AgentError, Reason

pytestmark = [pytest.mark.unit, pytest.mark.operations]


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.nan, math.inf, MAX_TIMEOUT + 1])
def test_a_timeout_must_be_a_real_length_of_time(timeout: float) -> None:
    with pytest.raises(AgentError) as caught:
        Deadline.of_request(timeout, 10.0)
    assert caught.value.reason is Reason.BAD_FIELD


def test_without_a_timeout_the_default_counts() -> None:
    left = Deadline.of_request(None, 1000.0).left()
    assert 900 < left <= 1000


def test_a_passed_deadline_has_nothing_left() -> None:
    deadline = Deadline.after(-5.0)
    assert deadline.passed
    assert deadline.left() == 0.0


def test_the_earlier_of_two() -> None:
    deadline = Deadline.after(1000.0)
    assert deadline.earlier(5000.0) is deadline
    assert deadline.earlier(1.0).left() <= 1.0


async def test_limit_ends_a_wait() -> None:
    with pytest.raises(TimeoutError):
        async with Deadline.after(0.0).limit():
            await asyncio.Event().wait()
