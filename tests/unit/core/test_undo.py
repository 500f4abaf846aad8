"""Taking steps back."""

from __future__ import annotations

import asyncio

import pytest

from agent.core.errors import AgentError, wrong_state
from agent.core.undo import UndoStack

pytestmark = [pytest.mark.unit, pytest.mark.operations]


async def test_a_failure_takes_steps_back_in_reverse_order() -> None:
    done: list[str] = []

    async def last() -> None:
        await asyncio.sleep(0)
        done.append("second")

    with pytest.raises(ValueError, match="third"):  # noqa: PT012 - the block is what is tested
        async with UndoStack("test") as undo:
            undo.push("first", lambda: done.append("first"))
            undo.push("second", last)
            raise ValueError("third")
    assert done == ["second", "first"]


async def test_commit_keeps_everything() -> None:
    done: list[str] = []
    async with UndoStack("test") as undo:
        undo.push("a", lambda: done.append("a"))
        undo.commit()
    assert done == []


async def test_leaving_without_commit_takes_back() -> None:
    done: list[str] = []
    async with UndoStack("test") as undo:
        undo.push("a", lambda: done.append("a"))
    assert done == ["a"]


async def test_a_step_that_cannot_be_undone_does_not_stop_the_others_and_is_told() -> None:
    done: list[str] = []

    def fail() -> None:
        raise OSError(16, "busy")

    with pytest.raises(AgentError) as caught:  # noqa: PT012 - the block is what is tested
        async with UndoStack("test") as undo:
            undo.push("a", lambda: done.append("a"))
            undo.push("unmount /x", fail)
            raise wrong_state("no")
    assert done == ["a"]
    assert "unmount /x" in caught.value.fields["not_undone"]
    assert "unmount /x" in caught.value.__notes__[0]


async def test_cancelling_twice_does_not_cut_the_undo_short() -> None:
    done: list[str] = []
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        entered.set()
        await go_on.wait()
        done.append("undone")

    async def work() -> None:
        async with UndoStack("test") as undo:
            undo.push("slow", slow)
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await entered.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["undone"]
