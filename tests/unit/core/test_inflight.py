"""Calls that are under way and shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.inflight import InFlight

pytestmark = [pytest.mark.unit, pytest.mark.operations]


@pytest.fixture(autouse=True)
async def _nothing_left() -> AsyncIterator[None]:
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Work:
    """A call that runs until it is let go, and counts."""

    def __init__(self) -> None:
        self.started = 0
        self.undone = 0
        self.go_on = asyncio.Event()

    async def __call__(self) -> str:
        self.started += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.undone += 1
            raise
        return f"answer {self.started}"


async def test_the_same_request_shares_one_call() -> None:
    calls: InFlight[str, str] = InFlight("device")
    work = Work()
    both = asyncio.gather(calls.run("d1", "r", work), calls.run("d1", "r", work))
    await asyncio.sleep(0)
    work.go_on.set()
    assert tuple(await both) == ("answer 1", "answer 1")
    assert await calls.run("d1", "other", work) == "answer 2"


async def test_another_request_under_the_same_id_is_refused() -> None:
    calls: InFlight[str, str] = InFlight("device")
    work = Work()
    first = asyncio.ensure_future(calls.run("d1", "r", work))
    await asyncio.sleep(0)
    with pytest.raises(AgentError) as caught:
        await calls.run("d1", "other", work)
    assert caught.value.reason is Reason.ID_IN_USE
    work.go_on.set()
    assert await first == "answer 1"


async def test_one_caller_may_leave_without_hurting_the_other() -> None:
    calls: InFlight[str, str] = InFlight("device")
    work = Work()
    first = asyncio.ensure_future(calls.run("d1", "r", work))
    second = asyncio.ensure_future(calls.run("d1", "r", work))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    work.go_on.set()
    assert await second == "answer 1"
    assert work.undone == 0


async def test_the_last_caller_to_leave_cancels_and_sees_the_undo() -> None:
    calls: InFlight[str, str] = InFlight("device")
    work = Work()
    only = asyncio.ensure_future(calls.run("d1", "r", work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    only.cancel()
    with pytest.raises(asyncio.CancelledError):
        await only
    assert work.undone == 1
    assert calls.requests() == {}


async def test_a_new_call_waits_for_the_undo_of_one_that_was_left() -> None:
    calls: InFlight[str, str] = InFlight("device")
    work = Work()
    first = asyncio.ensure_future(calls.run("d1", "r", work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    work.go_on.set()
    assert await calls.run("d1", "r", work) == "answer 2"
    assert work.undone == 1
    assert first.cancelled()


async def test_a_failure_reaches_every_caller() -> None:
    calls: InFlight[str, str] = InFlight("device")

    async def fail() -> str:
        await asyncio.sleep(0)
        raise ValueError("no")

    outcome = await asyncio.gather(
        calls.run("d1", "r", fail), calls.run("d1", "r", fail), return_exceptions=True
    )
    assert [str(error) for error in outcome] == ["no", "no"]
