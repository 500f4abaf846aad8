"""Limits that are counted: what is one too many is refused and nothing changes."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from agent.core.model import ContainerRequest, RootPath
from agent.server.limits import OBJECTS
from innkeeper.v1 import containers_pb2, sandbox_pb2
from innkeeper.v1.containers_pb2_grpc import ContainersStub
from innkeeper.v1.sandbox_pb2_grpc import SandboxStub
from tests.fakes.agent_server import MOST_CALLS, RunningAgent, refused

pytestmark = [pytest.mark.contract, pytest.mark.operations]


async def test_one_container_too_many_is_refused(agent: RunningAgent) -> None:
    for number in range(OBJECTS):
        await agent.containers.create(
            ContainerRequest(id=f"c{number}", spec=b"{}", rootfs=RootPath(path="/"))
        )
    stub = ContainersStub(agent.channel)
    answer = await refused(stub.Create(_create("one-more")))
    assert (answer.code, answer.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
    # A repeated request is no new container.
    assert (await stub.Create(_create("c7"))).id == "c7"


def _create(container_id: str) -> containers_pb2.CreateContainerRequest:
    return containers_pb2.CreateContainerRequest(id=container_id, spec=b"{}", path="/")


async def test_one_call_too_many_is_refused_and_room_comes_back(
    agent: RunningAgent,
) -> None:
    stub = SandboxStub(agent.channel)
    watches = [stub.Watch(sandbox_pb2.WatchRequest()) for _ in range(MOST_CALLS)]
    await asyncio.gather(*(call.initial_metadata() for call in watches))
    answer = await refused(stub.Describe(sandbox_pb2.DescribeSandboxRequest()))
    assert answer.reason == "LIMIT_REACHED"
    for call in watches:
        call.cancel()
    await agent.calls_over()
    await stub.Describe(sandbox_pb2.DescribeSandboxRequest())
