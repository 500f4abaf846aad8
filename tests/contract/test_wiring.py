"""The agent as a whole, on a host without its kernel: restores, serves, stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agent.core.config import AgentConfig
from agent.core.roots import Roots
from agent.core.state import StateStore
from agent.handlers.guest.describe import BootPhases
from agent.server import wiring
from innkeeper.v1 import containers_pb2, sandbox_pb2
from innkeeper.v1.containers_pb2_grpc import ContainersStub
from innkeeper.v1.sandbox_pb2_grpc import SandboxStub
from tests.fakes.agent_server import connect, refused
from tests.fakes.pid1 import FakePid1
from tests.fakes.uevents import FakeUevents

pytestmark = [pytest.mark.contract, pytest.mark.boot]


@pytest.fixture
async def pid1() -> AsyncIterator[FakePid1]:
    """PID 1 outlives agents, as in a guest."""
    before = asyncio.all_tasks()
    with tempfile.TemporaryDirectory(prefix="ik-") as folder:
        async with FakePid1(Path(folder) / "init.sock") as running:
            yield running
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=5)
    assert not left, f"left running: {left}"


def _roots(pid1: FakePid1) -> Roots:
    run = pid1.path.parent
    return Roots(
        run=run, sys=run / "sys", dev=run / "dev", proc=run / "proc", cgroup=run / "cgroup"
    )


@contextlib.asynccontextmanager
async def running(pid1: FakePid1) -> AsyncIterator[grpc.aio.Channel]:
    """A whole agent, and a channel to it once it serves."""
    stopping = asyncio.Event()
    config, phases, roots = AgentConfig(), BootPhases(), _roots(pid1)
    agent = asyncio.create_task(
        wiring.run(config, roots, phases, stopping, uevents=FakeUevents), name="agent"
    )
    backoff = {f"grpc__{name}_reconnect_backoff_ms": 50 for name in ("initial", "min", "max")}
    async with connect(roots.agent_socket, **backoff) as channel:
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        check = stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=20)
        assert (await check).status == health_pb2.HealthCheckResponse.SERVING
        yield channel
    stopping.set()
    async with asyncio.timeout(20):
        await agent


async def test_an_agent_serves_what_it_is_made_of(pid1: FakePid1) -> None:
    async with running(pid1) as channel:
        told = await SandboxStub(channel).Describe(sandbox_pb2.DescribeSandboxRequest())
        assert "agent_serving" in {one.name for one in told.boot_phases}
        assert told.limits.message_bytes == 16 << 20
        request = containers_pb2.ListContainersRequest()
        assert not (await ContainersStub(channel).List(request)).containers
        unknown = containers_pb2.StartContainerRequest(id="nobody")
        answer = await refused(ContainersStub(channel).Start(unknown))
        assert answer.reason == "UNKNOWN_CONTAINER"


async def test_the_first_agent_of_a_boot_is_no_restart(pid1: FakePid1) -> None:
    async with running(pid1) as channel:
        await SandboxStub(channel).Describe(sandbox_pb2.DescribeSandboxRequest())
    assert StateStore(_roots(pid1).state).load("events", "cursor") is None


async def test_a_new_agent_tells_how_the_one_before_ended(pid1: FakePid1) -> None:
    async with running(pid1):
        pass
    pid1.exits(os.getpid(), "/agent", code=137, signal=9)
    async with running(pid1) as channel:
        event = await anext(aiter(SandboxStub(channel).Watch(sandbox_pb2.WatchRequest())))
    assert event.kind == sandbox_pb2.EVENT_KIND_AGENT_RESTARTED
    assert event.details["cause"] == f"agent {os.getpid()} was ended by signal 9"


async def test_an_end_that_the_journal_lost_is_said_to_be_unknown(pid1: FakePid1) -> None:
    # The same pid in another cgroup is somebody else.
    async with running(pid1):
        pass
    pid1.exits(os.getpid(), "/pods/s/c", code=1)
    async with running(pid1) as channel:
        event = await anext(aiter(SandboxStub(channel).Watch(sandbox_pb2.WatchRequest())))
    assert "not in the journal" in event.details["cause"]


async def test_the_sandbox_outlives_the_agent(pid1: FakePid1) -> None:
    async with running(pid1) as channel:
        await SandboxStub(channel).Create(sandbox_pb2.CreateSandboxRequest(id="s1"))
    async with running(pid1) as channel:
        told = await SandboxStub(channel).Describe(sandbox_pb2.DescribeSandboxRequest())
        assert told.sandbox_id == "s1"
        other = sandbox_pb2.CreateSandboxRequest(id="s2")
        assert (await refused(SandboxStub(channel).Create(other))).reason == "ID_IN_USE"


async def test_a_socket_that_a_killed_agent_left_is_replaced(pid1: FakePid1) -> None:
    _roots(pid1).agent_socket.touch()
    async with running(pid1) as channel:
        await SandboxStub(channel).Describe(sandbox_pb2.DescribeSandboxRequest())


async def test_an_agent_that_serves_takes_the_reason_away_why_it_did_not(pid1: FakePid1) -> None:
    """PID 1 leaves it; a relay that finds it would tell callers of an end long past."""
    _roots(pid1).agent_status.write_text("restarting; last exit: signal 9\n", encoding="utf-8")
    async with running(pid1) as channel:
        await SandboxStub(channel).Describe(sandbox_pb2.DescribeSandboxRequest())
        assert not _roots(pid1).agent_status.exists()


async def test_damaged_state_does_not_keep_the_agent_away(pid1: FakePid1) -> None:
    for kind in ("devices", "storages", "containers", "processes", "sandbox", "agent"):
        folder = _roots(pid1).state / kind
        folder.mkdir(parents=True)
        (folder / "x.json").write_text("{", encoding="utf-8")
        (folder / f"{kind}.json").write_text('{"schema": 99}', encoding="utf-8")
    async with running(pid1) as channel:
        await SandboxStub(channel).Describe(sandbox_pb2.DescribeSandboxRequest())


async def test_without_pid_1_the_agent_does_not_serve() -> None:
    with tempfile.TemporaryDirectory(prefix="ik-") as folder:
        roots = Roots(run=Path(folder), sys=Path(folder), proc=Path(folder))
        with pytest.raises(Exception, match="PID 1"):
            await wiring.run(
                AgentConfig(), roots, BootPhases(), asyncio.Event(), uevents=FakeUevents
            )
        assert not roots.agent_socket.exists()
