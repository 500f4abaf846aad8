"""Health's own rules, without gRPC: one probe for many, when a stall is one, what is told."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.events import EventLog
from agent.core.state import StateStore
from agent.server.health import PROBE_TICKS, Health, Probe, Verdict

pytestmark = [pytest.mark.unit, pytest.mark.operations]


class Pid1:
    def __init__(self) -> None:
        self.pings = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: AgentError | None = None

    async def ping(self) -> dict[str, Any]:
        self.pings += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return {}


class Bench:
    """Health with a clock that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.state.mkdir()
        self.pid1 = Pid1()
        self.events = EventLog(StateStore(folder / "events"))
        self.time = 100.0
        probe = Probe(self.state, self.pid1, ping_seconds=5.0)
        self.health = Health(probe, self.events, now=lambda: self.time)

    def told(self) -> list[str]:
        return [event.details["status"] for event in self.events._ring]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_the_probe_leaves_one_file_and_reads_back_what_it_wrote(bench: Bench) -> None:
    for _ in range(3):
        assert (await bench.health.check()).healthy
    assert os.listdir(bench.state) == [".health"]


async def test_callers_at_the_same_time_share_one_probe(bench: Bench) -> None:
    bench.pid1.gate.clear()
    checks = [asyncio.create_task(bench.health.check()) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    bench.pid1.gate.set()
    assert all(one.healthy for one in await asyncio.gather(*checks))
    assert bench.pid1.pings == 1


async def test_one_caller_who_leaves_does_not_end_the_others_probe(bench: Bench) -> None:
    bench.pid1.gate.clear()
    leaving = asyncio.create_task(bench.health.check())
    staying = asyncio.create_task(bench.health.check())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    bench.pid1.gate.set()
    assert (await staying).healthy
    assert leaving.cancelled()


async def test_a_flip_is_told_once_with_each_new_reason(bench: Bench) -> None:
    bench.pid1.error = _away("first")
    for _ in range(3):
        assert (await bench.health.check()).reason == "first"
    bench.pid1.error = _away("second")
    await bench.health.check()
    bench.pid1.error = None
    await bench.health.check()
    assert bench.told() == ["NOT_SERVING", "NOT_SERVING", "SERVING"]


def _away(reason: str) -> AgentError:
    return AgentError(reason, code=Code.UNAVAILABLE, reason=Reason.KERNEL_REFUSED)


@pytest.mark.parametrize(("late", "stalled"), [(0.0, False), (2.4, False), (2.6, True), (9, True)])
async def test_three_seconds_without_a_turn_are_a_stall(
    bench: Bench, late: float, stalled: bool
) -> None:
    """Late by 2.5 s or more: the half second before the tick was due may belong to it."""
    bench.health.tick(bench.time - late)
    bench.health.stop()
    assert bench.told() == (["NOT_SERVING", "SERVING"] if stalled else [])


async def test_a_stall_does_not_hide_what_was_wrong_before(bench: Bench) -> None:
    bench.pid1.error = _away("PID 1 is away")
    await bench.health.check()
    bench.health.tick(bench.time - 4)
    bench.health.stop()
    assert bench.told() == ["NOT_SERVING"] * 3
    assert (await bench.health.check()).reason == "PID 1 is away"


async def test_a_watcher_learns_of_a_fault_that_nobody_checked_for(bench: Bench) -> None:
    heard: asyncio.Queue[Verdict] = asyncio.Queue()
    watching = asyncio.create_task(bench.health.follow(heard.put))
    assert (await heard.get()).healthy
    bench.pid1.error = _away("gone")
    for _ in range(PROBE_TICKS):
        bench.health.tick(bench.time)
    assert (await heard.get()).reason == "gone"
    watching.cancel()
    await asyncio.wait({watching})
    bench.health.stop()
    assert bench.health.watcher_count == 0


async def test_nobody_watching_costs_no_probes(bench: Bench) -> None:
    for _ in range(3 * PROBE_TICKS):
        bench.health.tick(bench.time)
    bench.health.stop()
    assert bench.pid1.pings == 0
