"""Worker processes for paths: late ones are given up, and no container holds up all."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.handlers.sockets.places import GUEST, Inside
from agent.handlers.sockets.workers import EACH, SocketWorkers
from tests.fakes.sockets_servers import serving

pytestmark = [pytest.mark.unit, pytest.mark.network]

HANGS = (sys.executable, "-IS", "-c", "import signal; signal.pause()")
DIES = (sys.executable, "-IS", "-c", "")


async def test_a_worker_is_used_again(tmp_path: Path) -> None:
    workers = SocketWorkers()
    async with serving(path=tmp_path / "s"):
        for _ in range(2):
            sock = await workers.connect(GUEST, str(tmp_path / "s"), Deadline.after(20))
            assert not sock.getblocking()
            sock.close()
    with pytest.raises(ConnectionRefusedError):
        await workers.connect(GUEST, str(tmp_path / "s"), Deadline.after(20))
    await workers.close()


async def test_one_that_is_late_is_given_up() -> None:
    workers = SocketWorkers(argv=HANGS)
    with pytest.raises(AgentError) as caught:
        await workers.connect(GUEST, "/s", Deadline.after(0.2))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    await workers.close()


async def test_one_that_dies_is_an_error() -> None:
    workers = SocketWorkers(argv=DIES)
    with pytest.raises(OSError, match=r"its worker died|Broken pipe|reset"):
        await workers.connect(GUEST, "/s", Deadline.after(20))
    await workers.close()


async def test_a_roots_calls_leave_workers_for_others(tmp_path: Path) -> None:
    """As many as one root may have hang; another's call still gets its turn."""
    workers = SocketWorkers(argv=HANGS)
    stuck = [
        asyncio.create_task(workers.connect(GUEST, "/s", Deadline.after(20))) for _ in range(EACH)
    ]
    await asyncio.sleep(0)
    with pytest.raises(AgentError) as crowded:
        await workers.connect(GUEST, "/s", Deadline.after(0.1))
    assert crowded.value.reason is Reason.OPERATION_TIMED_OUT
    other = Inside(root=str(tmp_path))
    started = asyncio.create_task(workers.connect(other, "/s", Deadline.after(20)))
    await asyncio.sleep(0)
    assert not started.done()
    for task in (*stuck, started):
        task.cancel()
    await asyncio.gather(*stuck, started, return_exceptions=True)
    await workers.close()


async def test_a_root_whose_process_has_ended_is_nobodys(tmp_path: Path) -> None:
    """Its number may be another's by now: ESRCH, and nothing is connected to."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    pidfd = os.pidfd_open(process.pid)
    process.kill()
    await process.wait()
    workers = SocketWorkers()
    try:
        async with serving(path=tmp_path / "s") as server:
            inside = Inside(root=str(tmp_path), process=pidfd)
            with pytest.raises(ProcessLookupError):
                await workers.connect(inside, "/s", Deadline.after(20))
            assert not server.connected.is_set()
    finally:
        os.close(pidfd)
        await workers.close()
