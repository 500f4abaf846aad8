"""Room for workers: in all, for each object, and for what can't wait."""

from __future__ import annotations

import asyncio

import pytest

from agent.core.deadlines import Deadline
from agent.core.workerslots import SPARE, WorkerSlots

pytestmark = [pytest.mark.unit, pytest.mark.storage]


def ample() -> Deadline:
    return Deadline.after(60.0)


async def full(slots: WorkerSlots, *objects: str, urgent: bool = False) -> bool:
    try:
        await slots.take(objects, Deadline.after(0.0), urgent=urgent)
    except TimeoutError:
        return True
    return False


async def test_one_object_gets_its_part() -> None:
    slots = WorkerSlots(4, each=2)
    await slots.take(("a", "b"), ample())
    await slots.take(("a",), ample())
    assert await full(slots, "c", "a")
    assert slots.crowded(("c", "a")) == "a"
    assert not await full(slots, "b")
    assert not await full(slots, "c")
    assert await full(slots, "d")
    assert slots.crowded(("d",)) is None


async def test_who_waits_goes_on_when_there_is_room_again() -> None:
    slots = WorkerSlots(2, each=1)
    await slots.take(("a",), ample())
    waiting = [asyncio.ensure_future(slots.take(("a",), ample())) for _ in range(2)]
    await slots.take(("b",), ample())
    slots.give_back(("a",))
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(pending)) == (1, 1)
    slots.give_back(("a",))
    await asyncio.wait(waiting)


async def test_what_is_urgent_has_room_when_nothing_else_has() -> None:
    slots = WorkerSlots(1, each=1)
    await slots.take(("a",), ample())
    for _ in range(SPARE):
        assert await full(slots, "a")
        assert not await full(slots, "a", urgent=True)
    assert await full(slots, "a", urgent=True)
