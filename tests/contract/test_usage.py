"""Containers.Stats and WatchStats, and Processes.List, over the wire."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from agent.core import usage
from agent.core.model import ProcessRef
from agent.core.usage import (
    NO_LIMIT,
    ContainerStats,
    CpuStats,
    HugetlbStats,
    InterfaceStats,
    IoStats,
    MemoryStats,
    PidsStats,
    Pressure,
    ProcessInfo,
    Stall,
)
from agent.server.limits import STATS_CONTAINERS
from innkeeper.v1 import containers_pb2 as pb
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1.containers_pb2_grpc import ContainersStub
from innkeeper.v1.processes_pb2_grpc import ProcessesStub
from tests.fakes.agent_server import RunningAgent, refused

if TYPE_CHECKING:
    from innkeeper.v1.containers_pb2_grpc import ContainersAsyncStub
    from innkeeper.v1.processes_pb2_grpc import ProcessesAsyncStub

pytestmark = [pytest.mark.contract, pytest.mark.containers]

STALL = Stall(average_10s=1.5, average_60s=2.5, average_300s=3.5, total_micros=4)
PRESSURE = Pressure(some=STALL, full=replace(STALL, total_micros=5))
FULL = ContainerStats(
    id="web",
    at=1.5,
    cpu=CpuStats(usage_micros=1, quota_micros=NO_LIMIT, weight=100, pressure=PRESSURE),
    memory=MemoryStats(current=2, limit=NO_LIMIT, kills=3, pressure=PRESSURE),
    io=(IoStats(major=254, minor=16, name="vdb", read_bytes=7),),
    pids=PidsStats(current=4, limit=NO_LIMIT),
    hugetlb=(HugetlbStats(page_bytes=2 << 20, current=2 << 20),),
    network=(InterfaceStats(name="eth0", received_bytes=8, send_drops=9),),
    io_pressure=PRESSURE,
)


@pytest.fixture
def stub(agent: RunningAgent) -> ContainersAsyncStub:
    return ContainersStub(agent.channel)


@pytest.fixture
def listing(agent: RunningAgent) -> ProcessesAsyncStub:
    return ProcessesStub(agent.channel)


def numbered(kind: Any, number: int) -> tuple[Any, int]:
    """One of that class with another number in each member."""
    members: dict[str, Any] = {}
    for field in fields(kind):
        default = field.default
        if is_dataclass(default):
            members[field.name], number = numbered(type(default), number)
        else:
            number += 1
            members[field.name] = str(number) if field.name == "name" else number
    return kind(**members), number


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (CpuStats, pb.CpuStats),
        (MemoryStats, pb.MemoryStats),
        (IoStats, pb.IoStats),
        (PidsStats, pb.PidsStats),
        (HugetlbStats, pb.HugetlbStats),
        (InterfaceStats, pb.InterfaceStats),
        (Pressure, pb.Pressure),
        (Stall, pb.Stall),
    ],
)
def test_the_words_are_those_of_the_messages(kind: Any, message: Any) -> None:
    """A figure that only one of them has would be lost or never sent."""
    assert [field.name for field in fields(kind)] == [
        field.name for field in message.DESCRIPTOR.fields
    ]


async def test_everything_arrives(agent: RunningAgent, stub: ContainersAsyncStub) -> None:
    cpu, last = numbered(CpuStats, 0)
    memory, last = numbered(MemoryStats, last)
    agent.usage.known["web"] = replace(FULL, cpu=cpu, memory=memory)
    found = await stub.Stats(pb.ContainerStatsRequest(id="web"))
    assert (found.id, found.at_unix_micros) == ("web", 1_500_000)
    for name, sent in (("cpu", cpu), ("memory", memory)):
        got = getattr(found, name)
        for field in fields(sent):
            value = getattr(sent, field.name)
            if not is_dataclass(value):
                assert getattr(got, field.name) == value, field.name
    assert found.memory.pressure.full.average_300s == memory.pressure.full.average_300s
    assert (found.io[0].name, found.io[0].read_bytes) == ("vdb", 7)
    assert found.pids.limit == 2**64 - 1
    assert found.hugetlb[0].page_bytes == 2 << 20
    assert (found.network[0].name, found.network[0].send_drops) == ("eth0", 9)
    assert found.io_pressure.full.total_micros == 5


async def test_an_unknown_container(stub: ContainersAsyncStub) -> None:
    found = await refused(stub.Stats(pb.ContainerStatsRequest(id="nobody")))
    assert (found.code, found.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONTAINER")
    found = await refused(stub.WatchStats(pb.WatchStatsRequest(ids=["nobody"])).read())
    assert (found.code, found.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONTAINER")


async def test_watching_asks_for_each_once(agent: RunningAgent, stub: ContainersAsyncStub) -> None:
    agent.usage.known |= {"a": replace(FULL, id="a"), "b": replace(FULL, id="b")}
    call = stub.WatchStats(pb.WatchStatsRequest(ids=["b", "a", "b"], interval_seconds=0.5))
    assert [each.id async for each in call] == ["b", "a"]
    everything = stub.WatchStats(pb.WatchStatsRequest())
    assert [each.id async for each in everything] == ["a", "b"]
    assert agent.usage.watched == [(("b", "a"), 0.5), ((), 1.0)]


@pytest.mark.parametrize("seconds", [0.09, -1, 3601, math.nan, math.inf])
async def test_intervals_that_are_none(stub: ContainersAsyncStub, seconds: float) -> None:
    found = await refused(stub.WatchStats(pb.WatchStatsRequest(interval_seconds=seconds)).read())
    assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")


async def test_ids_are_checked(stub: ContainersAsyncStub, listing: ProcessesAsyncStub) -> None:
    found = await refused(stub.Stats(pb.ContainerStatsRequest(id="../x")))
    assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_ID")
    found = await refused(stub.WatchStats(pb.WatchStatsRequest(ids=["-rf"])).read())
    assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_ID")
    many = [f"c{number}" for number in range(STATS_CONTAINERS + 1)]
    found = await refused(stub.WatchStats(pb.WatchStatsRequest(ids=many)).read())
    assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    found = await refused(listing.List(processes.ListProcessesRequest()))
    assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_ID")


async def test_processes_of_a_container(agent: RunningAgent, listing: ProcessesAsyncStub) -> None:
    info = ProcessInfo(
        pid=70,
        container_pid=1,
        parent_pid=2,
        process=ProcessRef(container_id="web", exec_id="e"),
        user_id=3,
        name="sh",
        arguments=("sh", "-c"),
        state="S",
        cpu_micros=4,
        resident_bytes=5,
        threads=6,
        started=1.5,
        terminal=7,
    )
    agent.listing.known["web"] = (info, usage.ProcessInfo(pid=71, container_pid=2, parent_pid=70))
    request = processes.ListProcessesRequest(container_id="web")
    first, second = (await listing.List(request)).processes
    assert (first.pid, first.container_pid, first.parent_pid, first.user_id) == (70, 1, 2, 3)
    assert (first.process.container_id, first.process.exec_id) == ("web", "e")
    assert (first.name, list(first.arguments), first.state) == ("sh", ["sh", "-c"], "S")
    assert (first.cpu_micros, first.resident_bytes, first.threads) == (4, 5, 6)
    assert (first.started_unix_micros, first.terminal) == (1_500_000, 7)
    assert not second.HasField("process")


async def test_a_list_has_the_time_that_its_caller_has(
    agent: RunningAgent, listing: ProcessesAsyncStub
) -> None:
    agent.listing.known["web"] = ()
    request = processes.ListProcessesRequest(container_id="web")
    await listing.List(request)
    await listing.List(request, timeout=5)
    without, within = agent.listing.timeouts
    assert without is None
    assert within is not None
    assert 0 < within < 5


async def test_processes_of_an_unknown_container(listing: ProcessesAsyncStub) -> None:
    found = await refused(listing.List(processes.ListProcessesRequest(container_id="nobody")))
    assert (found.code, found.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONTAINER")
