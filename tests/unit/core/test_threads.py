"""Work in a thread whose caller leaves."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from agent.core.threads import to_its_end

pytestmark = [pytest.mark.unit, pytest.mark.boot]


async def test_the_result_and_the_failure_are_the_works() -> None:
    def fails() -> None:
        raise ValueError("no")

    assert await to_its_end(lambda: 7, threading.Event()) == 7
    with pytest.raises(ValueError, match="no"):
        await to_its_end(fails, threading.Event())


async def test_a_caller_that_leaves_waits_for_what_is_told_to_stop() -> None:
    """And what it fails with then is no complaint of the loop's about a forgotten error."""
    loop, complaints = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    began, stop, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert stop.wait(20)
        ended.set()
        raise ValueError("stopped")

    task = asyncio.create_task(to_its_end(work, stop))
    assert await asyncio.to_thread(began.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    del task
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
