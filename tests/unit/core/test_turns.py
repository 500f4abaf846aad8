"""One operation at a time on one object."""

from __future__ import annotations

import asyncio

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, wrong_state
from agent.core.turns import Requests, Turns

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


async def test_what_is_stopped_while_it_waits_is_not_begun_and_lets_nobody_overtake() -> None:
    log: list[str] = []
    turns = Turns()
    requests, first, third = Requests(turns), Work(log, "first"), Work(log, "third")
    soon, why = Deadline.after(60), wrong_state("it goes")
    running = asyncio.create_task(requests.take("c", first, soon, firm=True))
    waiting = asyncio.create_task(requests.take("c", Work(log, "second"), soon, wish="w"))
    await asyncio.sleep(0)
    assert requests.wished("w") == ("c",)
    requests.stop(lambda key: key == "c", why)
    last = asyncio.create_task(requests.take("c", third, soon))
    third.go.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert log == ["first begins"]
    first.go.set()
    assert [await running, await last] == ["first", "third"]
    with pytest.raises(AgentError, match="it goes"):
        await waiting
    assert log == ["first begins", "first ends", "third begins", "third ends"]


async def test_a_request_without_a_wish_goes_on_without_its_caller() -> None:
    log: list[str] = []
    turns, work = Turns(), Work(log, "work")
    caller = asyncio.create_task(Requests(turns).take("c", work, Deadline.after(60)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    work.go.set()
    await turns.all_done()
    assert log == ["work begins", "work ends"]


async def test_what_is_wished_goes_on_while_one_of_its_callers_is_there() -> None:
    log: list[str] = []
    turns, work = Turns(), Work(log, "work")
    requests = Requests(turns)
    callers = [
        asyncio.create_task(requests.take("c", work, Deadline.after(60), wish="w"))
        for _ in range(2)
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    for caller in callers:
        assert log == ["work begins"]
        assert requests.wished("w") == ("c",)
        caller.cancel()
        await asyncio.wait([caller])
    await turns.all_done()
    assert (log, requests.wished("w")) == (["work begins"], ())
