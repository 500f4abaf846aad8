"""The loop: errors are reported and it goes on, deadlines come in order."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from agent.pid1.loop import READ, Loop

pytestmark = [pytest.mark.unit, pytest.mark.boot]


class Turned:
    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.loop = Loop(self.errors.append)
        self.happened: list[str] = []


@pytest.fixture
def turned() -> Iterator[Turned]:
    turned = Turned()
    yield turned
    turned.loop.close()


def test_timers_come_in_order_and_cancelled_ones_never(turned: Turned) -> None:
    turned.loop.call_after(0.01, lambda: turned.happened.append("late"))
    turned.loop.call_after(0, lambda: turned.happened.append("early"))
    turned.loop.call_after(0.005, lambda: turned.happened.append("never")).cancel()
    while len(turned.happened) < 2:
        turned.loop.run_once()
    assert turned.happened == ["early", "late"]


def test_a_callback_that_raises_does_not_stop_the_others(turned: Turned) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    turned.loop.call_after(0, fail)
    turned.loop.call_after(0, lambda: turned.happened.append("next"))
    while not turned.happened:
        turned.loop.run_once()
    assert [str(error) for error in turned.errors] == ["a bug"]


def test_a_descriptor_closed_by_an_earlier_callback_is_not_called(turned: Turned) -> None:
    pipes = [os.pipe() for _ in range(2)]

    def first_one(mine: int, other: int) -> None:
        turned.happened.append("called")
        turned.loop.forget(mine)
        turned.loop.forget(other)

    readers = [reader for reader, _ in pipes]
    turned.loop.watch(readers[0], READ, lambda _events: first_one(readers[0], readers[1]))
    turned.loop.watch(readers[1], READ, lambda _events: first_one(readers[1], readers[0]))
    for _, writer in pipes:
        os.write(writer, b"x")
    turned.loop.run_once()
    assert turned.happened == ["called"]
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)
