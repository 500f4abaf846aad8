"""One operation at a time on one object."""

from __future__ import annotations

import asyncio

import pytest

from agent.core.turns import Turns

pytestmark = [pytest.mark.unit, pytest.mark.containers]


class Work:
    """Notes when it begins and ends; ends when told to."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log = log
        self._name = name
        self.go = asyncio.Event()

    async def __call__(self) -> str:
        self._log.append(f"{self._name} begins")
        await self.go.wait()
        self._log.append(f"{self._name} ends")
        return self._name


async def test_work_under_one_key_is_done_in_order() -> None:
    log: list[str] = []
    turns, first, second = Turns(), Work(log, "first"), Work(log, "second")
    tasks = [asyncio.create_task(turns.take("c", work)) for work in (first, second)]
    second.go.set()
    for _ in range(5):
        await asyncio.sleep(0)
    first.go.set()
    assert [await task for task in tasks] == ["first", "second"]
    assert log == ["first begins", "first ends", "second begins", "second ends"]


async def test_other_keys_do_not_wait() -> None:
    turns, stuck, free = Turns(), Work([], "stuck"), Work([], "free")
    waiting = asyncio.create_task(turns.take("c1", stuck))
    free.go.set()
    assert await turns.take("c2", free) == "free"
    stuck.go.set()
    await waiting


async def test_a_caller_that_leaves_does_not_stop_the_work() -> None:
    log: list[str] = []
    turns, work = Turns(), Work(log, "work")
    caller = asyncio.create_task(turns.take("c", work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    work.go.set()
    await turns.all_done()
    assert log == ["work begins", "work ends"]


async def test_failed_work_lets_the_next_one_go_on() -> None:
    turns, after = Turns(), Work([], "after")
    after.go.set()

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await turns.take("c", fail)
    assert await turns.take("c", after) == "after"
    assert turns._last == {}


async def test_waiting_for_keys_by_their_prefix() -> None:
    turns, one, other = Turns(), Work([], "one"), Work([], "other")
    mine = turns.enqueue("c1:e1", one)
    turns.enqueue("c10:e1", other)
    one.go.set()
    await turns.quiet("c1:", 10)
    assert mine.done()
    await turns.quiet("c10:", 0)
    other.go.set()
    await turns.all_done()
