"""The standard health service over the wire, and reflection."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from innkeeper.v1 import sandbox_pb2
from innkeeper.v1.sandbox_pb2_grpc import SandboxStub
from tests.fakes.agent_server import RunningAgent, refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.contract, pytest.mark.operations]

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

SERVICES = {
    "innkeeper.v1.Sandbox",
    "innkeeper.v1.Devices",
    "innkeeper.v1.Storages",
    "innkeeper.v1.Network",
    "innkeeper.v1.Containers",
    "innkeeper.v1.Processes",
    "innkeeper.v1.Files",
    "innkeeper.v1.Sockets",
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
}


@pytest.fixture
def stub(agent: RunningAgent) -> Any:
    return health_pb2_grpc.HealthStub(agent.channel)  # type: ignore[no-untyped-call]


async def check(stub: Any, service: str = "") -> tuple[int, str]:
    """Status and reason."""
    call = stub.Check(health_pb2.HealthCheckRequest(service=service))
    answer = await call
    trailers = dict(await call.trailing_metadata())
    return answer.status, str(trailers.get("innkeeper-health-reason", ""))


def lose_state(agent: RunningAgent) -> None:
    """A file in its place, so that nobody makes the directory anew."""
    shutil.rmtree(agent.roots.state)
    agent.roots.state.touch()


def bring_state_back(agent: RunningAgent) -> None:
    agent.roots.state.unlink()
    agent.roots.state.mkdir()


async def test_a_ready_agent_serves_by_every_name(stub: Any) -> None:
    for service in {"", *SERVICES} - {"grpc.reflection.v1alpha.ServerReflection"}:
        assert await check(stub, service) == (SERVING, "")


async def test_the_list_has_every_name(stub: Any) -> None:
    answer = await stub.List(health_pb2.HealthListRequest())
    names = {"", *SERVICES} - {"grpc.reflection.v1alpha.ServerReflection"}
    assert {name: one.status for name, one in answer.statuses.items()} == dict.fromkeys(
        names, SERVING
    )


async def test_a_service_that_is_not_there_is_not_found(stub: Any) -> None:
    answer = await refused(stub.Check(health_pb2.HealthCheckRequest(service="x")))
    assert answer.code == grpc.StatusCode.NOT_FOUND


async def test_a_lost_state_directory_flips_health_with_a_reason(
    agent: RunningAgent, stub: Any
) -> None:
    lose_state(agent)
    status, reason = await check(stub)
    assert status == NOT_SERVING
    assert reason.startswith("the state directory cannot be used: ")
    assert str(agent.roots.state) in reason
    bring_state_back(agent)
    assert await check(stub) == (SERVING, "")


async def test_a_silent_pid_1_flips_health_with_a_reason(agent: RunningAgent, stub: Any) -> None:
    agent.pid1.silent = True
    assert await check(stub) == (NOT_SERVING, "PID 1 does not answer within 0.2 s")


async def test_a_pid_1_that_is_gone_flips_health_with_a_reason(
    agent: RunningAgent, stub: Any
) -> None:
    assert await check(stub) == (SERVING, "")
    agent.pid1.path.unlink()
    agent.pid1.drop_connections()
    status, reason = await check(stub)
    assert status == NOT_SERVING
    assert "PID 1" in reason


async def test_each_flip_is_an_event_with_its_reason(agent: RunningAgent, stub: Any) -> None:
    agent.pid1.silent = True
    await check(stub)
    agent.pid1.silent = False
    agent.pid1.drop_connections()
    await check(stub)
    events = aiter(SandboxStub(agent.channel).Watch(sandbox_pb2.WatchRequest()))
    sick, well = await anext(events), await anext(events)
    assert sick.kind == well.kind == sandbox_pb2.EVENT_KIND_HEALTH_CHANGED
    assert sick.details["status"] == "NOT_SERVING"
    assert sick.details["reason"] == "PID 1 does not answer within 0.2 s"
    assert well.details["status"] == "SERVING"


async def test_a_watcher_gets_the_state_now_and_each_change(agent: RunningAgent, stub: Any) -> None:
    watching = _watch(stub)
    assert await anext(watching) == SERVING
    lose_state(agent)
    await check(stub)
    assert await anext(watching) == NOT_SERVING
    bring_state_back(agent)
    await check(stub)
    assert await anext(watching) == SERVING


async def test_a_stall_of_the_event_loop_is_told_once_it_is_over(
    agent: RunningAgent, stub: Any
) -> None:
    """The tick is called by hand as a loop would that was blocked for 3.2 s."""
    watching = _watch(stub)
    assert await anext(watching) == SERVING
    due = asyncio.get_running_loop().time() - 3.2
    agent.health.tick(due)
    assert [await anext(watching), await anext(watching)] == [NOT_SERVING, SERVING]
    events = aiter(SandboxStub(agent.channel).Watch(sandbox_pb2.WatchRequest()))
    assert (await anext(events)).details["reason"] == "the event loop did not run for 3.2 s"


async def test_a_short_stall_is_nothing(agent: RunningAgent, stub: Any) -> None:
    watching = _watch(stub)
    assert await anext(watching) == SERVING
    agent.health.tick(asyncio.get_running_loop().time() - 2.0)
    assert agent.events.last == 0


async def test_a_watcher_of_an_unknown_service_waits_for_it(stub: Any) -> None:
    """The standard: SERVICE_UNKNOWN, and the call stays open."""
    call = stub.Watch(health_pb2.HealthCheckRequest(service="x"))
    assert (await call.read()).status == SERVICE_UNKNOWN
    assert not call.done()
    call.cancel()


async def test_watchers_that_leave_are_forgotten(agent: RunningAgent, stub: Any) -> None:
    calls = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(5)]
    for call in calls:
        await call.read()
        call.cancel()
    await agent.calls_over()
    assert agent.health.watcher_count == 0


async def _watch(stub: Any) -> AsyncIterator[int]:
    async for answer in stub.Watch(health_pb2.HealthCheckRequest()):
        yield answer.status


async def test_reflection_lists_every_service(agent: RunningAgent) -> None:
    answer = await _reflect(agent, list_services="")
    assert {one.name for one in answer.list_services_response.service} == SERVICES


async def test_reflection_describes_a_service(agent: RunningAgent) -> None:
    answer = await _reflect(agent, file_containing_symbol="innkeeper.v1.Devices")
    files = answer.file_descriptor_response.file_descriptor_proto
    assert any(b"innkeeper/v1/devices.proto" in one for one in files)


async def test_reflection_answers_an_unknown_symbol_in_its_own_words(agent: RunningAgent) -> None:
    answer = await _reflect(agent, file_containing_symbol="no.such.Thing")
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def _reflect(agent: RunningAgent, **asked: Any) -> Any:
    stub = reflection_pb2_grpc.ServerReflectionStub(agent.channel)  # type: ignore[no-untyped-call]
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(**asked))
    answer = await call.read()
    await call.done_writing()
    return answer
