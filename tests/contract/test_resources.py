"""Sandbox.OnlineResources over real gRPC, with a fake sysfs below."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

import grpc
import pytest

from innkeeper.v1 import sandbox_pb2 as pb
from innkeeper.v1.sandbox_pb2_grpc import SandboxStub
from tests.fakes.agent_server import RunningAgent, refused, until
from tests.fakes.hotplug import turns
from tests.fakes.machine import BLOCK

if TYPE_CHECKING:
    from innkeeper.v1.sandbox_pb2_grpc import SandboxAsyncStub

pytestmark = [pytest.mark.contract, pytest.mark.devices]

MIB = 1 << 20


@pytest.fixture
def stub(agent: RunningAgent) -> SandboxAsyncStub:
    return SandboxStub(agent.channel)


async def test_what_was_plugged_in_comes_online(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    agent.plugs.machine.add_cpu(2)
    agent.plugs.machine.add_block(32)
    answer = await stub.OnlineResources(pb.OnlineResourcesRequest())
    assert answer == pb.OnlineResourcesResponse(
        cpus_online=[0, 2],
        memory_online=640 * MIB,
        cpus_added=[2],
        blocks_added=[32],
        block_bytes=128 * MIB,
    )


async def test_those_who_watch_are_told(agent: RunningAgent, stub: SandboxAsyncStub) -> None:
    agent.plugs.machine.add_cpu(1)
    await stub.OnlineResources(pb.OnlineResourcesRequest())
    event = await anext(aiter(stub.Watch(pb.WatchRequest())))
    assert event.kind == pb.EVENT_KIND_RESOURCES_CHANGED
    assert dict(event.details) == {"cpus": "0-1", "memory": str(512 * MIB)}


async def test_it_waits_for_what_comes(agent: RunningAgent, stub: SandboxAsyncStub) -> None:
    call = stub.OnlineResources(pb.OnlineResourcesRequest(cpus=2, memory=640 * MIB))
    agent.plugs.machine.add_block(32)
    await turns()
    agent.plugs.machine.add_cpu(3)
    answer = await call
    assert (list(answer.cpus_added), list(answer.blocks_added)) == ([3], [32])


async def test_by_number_and_back(agent: RunningAgent, stub: SandboxAsyncStub) -> None:
    for number in (32, 33):
        agent.plugs.machine.add_block(number)
    request = pb.OnlineResourcesRequest(more_memory=2 * BLOCK, movable=True)
    assert list((await stub.OnlineResources(request)).blocks_added) == [32, 33]
    assert agent.plugs.machine.writes[0] == ("memory32", "online_movable")
    agent.plugs.machine.refusals["memory32"] = errno.EBUSY
    back = pb.OnlineResourcesRequest(memory=512 * MIB, allow_offline=True)
    answer = await stub.OnlineResources(back)
    assert list(answer.blocks_removed) == [33]
    assert list(answer.refused) == ["memory32 offline: Device or resource busy [EBUSY]"]
    assert answer.memory_online == 640 * MIB


async def test_exclusive_cpus_are_refused_by_name(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    agent.plugs.machine.add_cpu(3)
    await stub.OnlineResources(pb.OnlineResourcesRequest())
    agent.plugs.reserved = frozenset({3})
    answer = await stub.OnlineResources(pb.OnlineResourcesRequest(cpus=1, allow_offline=True))
    assert list(answer.refused) == ["cpu3 offline: a container has it for itself alone"]
    assert list(answer.cpus_online) == [0, 3]


async def test_at_the_deadline_all_evidence(agent: RunningAgent, stub: SandboxAsyncStub) -> None:
    agent.plugs.machine.add_cpu(1)
    request = pb.OnlineResourcesRequest(cpus=3, timeout_seconds=0.3)
    answer = await refused(stub.OnlineResources(request))
    assert answer.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert answer.reason == "RESOURCES_NOT_ONLINE"
    assert answer.fields["evidence"] == "2 of 3 CPUs are online, 2 are present"
    assert answer.fields["cpus_added"] == "1"
    assert "online cpu /devices/system/cpu/cpu1" in answer.fields["events"]


async def test_the_hosts_own_deadline_gets_an_answer_too(stub: SandboxAsyncStub) -> None:
    answer = await refused(stub.OnlineResources(pb.OnlineResourcesRequest(cpus=2), timeout=1))
    assert answer.reason == "RESOURCES_NOT_ONLINE"


async def test_never_possible_is_refused_at_once(stub: SandboxAsyncStub) -> None:
    request = pb.OnlineResourcesRequest(cpus=5, timeout_seconds=3600)
    answer = await refused(stub.OnlineResources(request))
    assert answer.code == grpc.StatusCode.FAILED_PRECONDITION
    assert (answer.reason, answer.fields["possible"]) == ("RESOURCES_NOT_ONLINE", "0-3")


async def test_a_host_that_leaves_ends_the_wait(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    agent.plugs.machine.add_cpu(1)
    agent.plugs.machine.hangs.add("cpu1")
    call = stub.OnlineResources(pb.OnlineResourcesRequest(cpus=2))
    await until(agent.plugs.machine.asked)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await agent.calls_over()
    agent.plugs.machine.hangs.clear()
    answer = await stub.OnlineResources(pb.OnlineResourcesRequest(cpus=2))
    assert list(answer.cpus_online) == [0, 1]


BAD = {
    "cpus": pb.OnlineResourcesRequest(cpus=0),
    "memory": pb.OnlineResourcesRequest(memory=0, allow_offline=True),
    "more_cpus": pb.OnlineResourcesRequest(cpus=2, more_cpus=1),
    "more_memory": pb.OnlineResourcesRequest(memory=1, more_memory=0),
    "timeout_seconds": pb.OnlineResourcesRequest(timeout_seconds=-1),
}


@pytest.mark.parametrize("field", BAD)
async def test_bad_input_is_named_and_nothing_done(
    agent: RunningAgent, stub: SandboxAsyncStub, field: str
) -> None:
    agent.plugs.machine.add_cpu(1)
    answer = await refused(stub.OnlineResources(BAD[field]))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    assert answer.fields["field"] == field
    assert agent.plugs.machine.writes == []


async def test_more_memory_than_any_machine_has_is_no_amount(stub: SandboxAsyncStub) -> None:
    request = pb.OnlineResourcesRequest(memory=2**64 - 1)
    assert (await refused(stub.OnlineResources(request))).fields["field"] == "memory"
