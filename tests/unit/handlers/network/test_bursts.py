"""Sixty-four a second are told one by one, the rest as one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from agent.handlers.network.bursts import MOST, Burst, Held
from tests.fakes.timers import FakeTimers

pytestmark = [pytest.mark.unit, pytest.mark.network]


@dataclass(slots=True)
class Bench:
    """A burst and what it told."""

    timers: FakeTimers
    told: list[Held]
    burst: Burst

    def admitted(self, count: int) -> int:
        return sum(self.burst.admits() for _ in range(count))


@pytest.fixture
def bench() -> Bench:
    timers, told = FakeTimers(), list[Held]()
    return Bench(timers, told, Burst(told.append, timers=timers))


def test_sixty_four_in_a_second_are_told_one_by_one(bench: Bench) -> None:
    assert MOST == 64
    assert bench.admitted(64) == 64
    bench.timers.pass_by(5)
    assert bench.told == []
    assert not bench.timers.timers


def test_the_rest_of_the_second_is_told_at_its_end(bench: Bench) -> None:
    assert bench.admitted(100) == 64
    bench.timers.pass_by(0.9)
    assert bench.admitted(10) == 0
    assert bench.told == []
    bench.timers.pass_by(0.1)
    assert bench.told == [Held(count=46)]
    assert bench.admitted(1) == 1


def test_the_next_second_has_room_again(bench: Bench) -> None:
    bench.admitted(64)
    bench.timers.pass_by(1)
    assert bench.admitted(65) == 64
    bench.timers.pass_by(1)
    assert bench.told == [Held(count=1)]


def test_a_timer_that_is_late_holds_up_nothing(bench: Bench) -> None:
    """The loop was busy: the next one comes before the timer does."""
    bench.admitted(66)
    bench.timers.now += 3
    assert bench.admitted(1) == 1
    assert bench.told == [Held(count=2)]
    bench.timers.pass_by(0)
    assert bench.told == [Held(count=2)]


def test_what_was_lost_is_told_once_a_second(bench: Bench) -> None:
    bench.burst.lost()
    bench.burst.lost()
    assert bench.admitted(2) == 2
    bench.timers.pass_by(1)
    assert bench.told == [Held(lost=True)]


def test_nothing_is_kept_back_for_ever(bench: Bench) -> None:
    bench.admitted(70)
    bench.burst.close()
    assert bench.told == [Held(count=6)]
    bench.timers.pass_by(1)
    bench.burst.close()
    assert bench.told == [Held(count=6)]
