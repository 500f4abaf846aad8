"""Work that others end with an error: like asyncio.timeout, but at a word."""

from __future__ import annotations

import asyncio

import pytest

from agent.core.errors import AgentError, wrong_state
from agent.handlers.sockets.interruption import Interruptible

pytestmark = [pytest.mark.unit, pytest.mark.network]


async def _work(work: Interruptible, begun: asyncio.Event) -> None:
    async with work:
        begun.set()
        await asyncio.Event().wait()


async def test_the_word_is_what_the_work_ends_with() -> None:
    work, begun = Interruptible(), asyncio.Event()
    task = asyncio.create_task(_work(work, begun))
    await begun.wait()
    work.interrupt(wrong_state("first"))
    work.interrupt(wrong_state("second"))
    with pytest.raises(AgentError, match="first"):
        await task
    assert work.over.is_set()


async def test_anybody_elses_cancellation_stays_one() -> None:
    work, begun = Interruptible(), asyncio.Event()
    task = asyncio.create_task(_work(work, begun))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_both_at_once_are_a_cancellation() -> None:
    work, begun = Interruptible(), asyncio.Event()
    task = asyncio.create_task(_work(work, begun))
    await begun.wait()
    task.cancel()
    work.interrupt(wrong_state("late"))
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_word_after_the_end_is_none() -> None:
    work = Interruptible()
    async with work:
        pass
    work.interrupt(wrong_state("late"))
    await asyncio.sleep(0)
