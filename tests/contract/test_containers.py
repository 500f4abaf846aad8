"""innkeeper.v1.Containers over the wire."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from agent.core.life import (
    EndCause,
    LogOptions,
    OutOfMemory,
    PressureResource,
    PressureThreshold,
    StreamOptions,
    WhenFull,
)
from agent.core.model import (
    ContainerState,
    DeviceGrant,
    ProcessExit,
    RootPath,
    RootStorage,
    StorageMount,
)
from agent.core.network import InterfaceGrant
from agent.server.limits import OBJECTS
from innkeeper.v1 import containers_pb2 as pb
from innkeeper.v1 import types_pb2
from innkeeper.v1.containers_pb2_grpc import ContainersStub
from tests.fakes.agent_server import RunningAgent, refused

if TYPE_CHECKING:
    from innkeeper.v1.containers_pb2_grpc import ContainersAsyncStub

pytestmark = [pytest.mark.contract, pytest.mark.containers]

SPEC = b'{"ociVersion": "1.1.0"}'


@pytest.fixture
def stub(agent: RunningAgent) -> ContainersAsyncStub:
    return ContainersStub(agent.channel)


def web(**members: object) -> pb.CreateContainerRequest:
    chosen = {"id": "web", "spec": SPEC, "path": "/usr/lib/innkeeper/rootfs"} | members
    return pb.CreateContainerRequest(**chosen)  # type: ignore[arg-type]


def grant_interface(name: str, container_name: str) -> pb.InterfaceGrant:
    return pb.InterfaceGrant(name=name, container_name=container_name)


async def test_a_container_from_created_to_stopped(
    agent: RunningAgent, stub: ContainersAsyncStub
) -> None:
    created = await stub.Create(web())
    assert (created.state, created.pid) == (pb.CONTAINER_STATE_CREATED, 42)
    started = await stub.Start(pb.StartContainerRequest(id="web"))
    assert started.state == pb.CONTAINER_STATE_RUNNING
    agent.containers.stop("web", ProcessExit(code=137, signal=9, at=1.5))
    (stopped,) = (await stub.List(pb.ListContainersRequest())).containers
    assert stopped.state == pb.CONTAINER_STATE_STOPPED
    end = stopped.exit
    assert (end.code, end.signal, end.at_unix_micros) == (137, 9, 1_500_000)


async def test_everything_that_was_asked_for_arrives(
    agent: RunningAgent, stub: ContainersAsyncStub
) -> None:
    await stub.Create(
        web(
            writable_layer=True,
            storages=[pb.StorageMount(storage_id="s", destination="/data", options=["ro"])],
            devices=[
                pb.DeviceGrant(device_id="d1"),
                pb.DeviceGrant(
                    device_id="d2", container_path="/dev/x", permissions="r", node="/dev/vdb1"
                ),
            ],
            exclusive_cpus=2,
            interfaces=[
                pb.InterfaceGrant(name="eth1", container_name="eth0"),
                pb.InterfaceGrant(name="the-alternative-name-of-an-interface"),
            ],
            timeout_seconds=7,
        )
    )
    request = agent.containers.table["web"][0]
    assert request.spec == SPEC
    assert request.rootfs == RootPath(path="/usr/lib/innkeeper/rootfs")
    assert request.writable_layer
    assert request.timeout == 7
    assert request.storages == (StorageMount(storage_id="s", destination="/data", options=("ro",)),)
    assert request.devices == (
        DeviceGrant(device_id="d1"),
        DeviceGrant(device_id="d2", container_path="/dev/x", permissions="r", node="/dev/vdb1"),
    )
    assert request.exclusive_cpus == 2
    assert request.interfaces == (
        InterfaceGrant(name="eth1", container_name="eth0"),
        InterfaceGrant(name="the-alternative-name-of-an-interface"),
    )


async def test_a_root_from_a_storage(agent: RunningAgent, stub: ContainersAsyncStub) -> None:
    await stub.Create(pb.CreateContainerRequest(id="web", spec=SPEC, storage_id="root"))
    assert agent.containers.table["web"][0].rootfs == RootStorage(storage_id="root")


async def test_the_same_request_twice_and_another_one(stub: ContainersAsyncStub) -> None:
    first = await stub.Create(web())
    assert await stub.Create(web()) == first
    answer = await refused(stub.Create(web(writable_layer=True)))
    assert (answer.code, answer.reason) == (grpc.StatusCode.ALREADY_EXISTS, "ID_IN_USE")


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (web(id="-rf"), "BAD_ID"),
        (web(id="../x"), "BAD_ID"),
        (web(id="a b"), "BAD_ID"),
        (web(spec=b""), "BAD_SPEC"),
        (pb.CreateContainerRequest(id="web", spec=SPEC), "BAD_FIELD"),
        (web(path="relative"), "BAD_FIELD"),
        (web(storages=[pb.StorageMount(storage_id="s", destination="data")]), "BAD_FIELD"),
        (web(storages=[pb.StorageMount(storage_id="", destination="/data")]), "BAD_ID"),
        (web(devices=[pb.DeviceGrant(device_id="d", permissions="rx")]), "BAD_FIELD"),
        (web(devices=[pb.DeviceGrant(device_id="d", permissions="rr")]), "BAD_FIELD"),
        (web(devices=[pb.DeviceGrant(device_id="d", container_path="x")]), "BAD_FIELD"),
        (web(devices=[pb.DeviceGrant(device_id="d", node="vda")]), "BAD_FIELD"),
        (web(devices=[pb.DeviceGrant(device_id="../d")]), "BAD_ID"),
        (web(timeout_seconds=-0.5), "BAD_FIELD"),
        (web(interfaces=[pb.InterfaceGrant()]), "BAD_FIELD"),
        (web(interfaces=[pb.InterfaceGrant(name="eth 0")]), "BAD_FIELD"),
        (web(interfaces=[pb.InterfaceGrant(name="x" * 128)]), "BAD_FIELD"),
        (web(interfaces=[grant_interface("eth0", "ä" * 8)]), "BAD_FIELD"),
        (web(interfaces=[grant_interface("eth0", "eth%d")]), "BAD_FIELD"),
        (web(interfaces=[grant_interface("a", "x"), grant_interface("b", "x")]), "BAD_FIELD"),
        (web(interfaces=[grant_interface("a", "x"), grant_interface("a", "y")]), "BAD_FIELD"),
        (web(interfaces=[grant_interface("a", "b"), grant_interface("b", "")]), "BAD_FIELD"),
        (web(interfaces=[grant_interface(f"e{n}", "") for n in range(65)]), "BAD_FIELD"),
    ],
)
async def test_bad_input_is_named_and_changes_nothing(
    agent: RunningAgent, stub: ContainersAsyncStub, request_: pb.CreateContainerRequest, reason: str
) -> None:
    """crun itself lets `../x`, `-rf` and `a b` through its own check of ids."""
    answer = await refused(stub.Create(request_))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert agent.containers.table == {}


async def test_what_is_not_built_is_not_ignored(stub: ContainersAsyncStub) -> None:
    answer = await refused(stub.Create(web(cdi_devices=["v.com/c=n"])))
    assert (answer.code, answer.reason) == (grpc.StatusCode.UNIMPLEMENTED, "NOT_BUILT_YET")


async def test_a_stopped_container_is_not_started(
    agent: RunningAgent, stub: ContainersAsyncStub
) -> None:
    await stub.Create(web())
    agent.containers.stop("web", ProcessExit(code=0))
    answer = await refused(stub.Start(pb.StartContainerRequest(id="web")))
    assert (answer.code, answer.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")


async def test_an_update_arrives_whole_and_its_outcome_comes_back(
    agent: RunningAgent, stub: ContainersAsyncStub
) -> None:
    await stub.Create(web())
    await stub.Start(pb.StartContainerRequest(id="web"))
    grant = pb.DeviceGrant(device_id="d", container_path="/dev/x", permissions="r", node="/dev/y")
    updated = await stub.Update(
        pb.UpdateContainerRequest(
            id="web",
            resources=b'{"memory": {"limit": 1}}',
            devices=pb.DeviceGrants(grants=[grant]),
            exclusive_cpus=2,
        )
    )
    (change,) = agent.containers.updates
    assert change.resources == b'{"memory": {"limit": 1}}'
    assert change.devices == (
        DeviceGrant(device_id="d", container_path="/dev/x", permissions="r", node="/dev/y"),
    )
    assert change.exclusive_cpus == 2
    assert (updated.state, list(updated.devices)) == (pb.CONTAINER_STATE_RUNNING, [grant])
    assert list(updated.exclusive_cpus) == [1, 2]


async def test_what_an_update_leaves_out_is_not_the_same_as_nothing(
    agent: RunningAgent, stub: ContainersAsyncStub
) -> None:
    """An empty list revokes all grants, 0 gives all CPUs back; absent fields change nothing."""
    await stub.Create(web())
    await stub.Update(pb.UpdateContainerRequest(id="web"))
    await stub.Update(
        pb.UpdateContainerRequest(id="web", devices=pb.DeviceGrants(), exclusive_cpus=0)
    )
    nothing, all_back = agent.containers.updates
    assert (nothing.resources, nothing.devices, nothing.exclusive_cpus) == (None, None, None)
    assert (all_back.resources, all_back.devices, all_back.exclusive_cpus) == (None, (), 0)


@pytest.mark.parametrize(
    ("grant", "reason"),
    [
        (pb.DeviceGrant(), "BAD_ID"),
        (pb.DeviceGrant(device_id="d", permissions="rx"), "BAD_FIELD"),
        (pb.DeviceGrant(device_id="d", container_path="x"), "BAD_FIELD"),
        (pb.DeviceGrant(device_id="d", node="x"), "BAD_FIELD"),
        (pb.DeviceGrant(device_id="d", node="/dev/\0"), "BAD_FIELD"),
    ],
)
async def test_bad_grants_of_an_update_are_named_and_change_nothing(
    agent: RunningAgent, stub: ContainersAsyncStub, grant: pb.DeviceGrant, reason: str
) -> None:
    await stub.Create(web())
    asked = pb.UpdateContainerRequest(id="web", devices=pb.DeviceGrants(grants=[grant]))
    answer = await refused(stub.Update(asked))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert "devices.grants[0]" in answer.message or reason == "BAD_ID"
    assert agent.containers.updates == []


async def test_grants_without_end_are_refused(
    agent: RunningAgent, stub: ContainersAsyncStub
) -> None:
    """As many as there may be devices."""
    await stub.Create(web())
    for count, fine in ((OBJECTS, True), (OBJECTS + 1, False)):
        grants = [pb.DeviceGrant(device_id=f"d{number}") for number in range(count)]
        asked = pb.UpdateContainerRequest(id="web", devices=pb.DeviceGrants(grants=grants))
        if fine:
            assert len((await stub.Update(asked)).devices) == count
            continue
        for call in (stub.Update(asked), stub.Create(web(id="more", devices=grants))):
            answer = await refused(call)
            expected = (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
            assert (answer.code, answer.reason) == expected


async def test_a_stopped_container_is_not_updated(
    agent: RunningAgent, stub: ContainersAsyncStub
) -> None:
    await stub.Create(web())
    agent.containers.stop("web", ProcessExit(code=0))
    answer = await refused(stub.Update(pb.UpdateContainerRequest(id="web")))
    assert (answer.code, answer.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")


async def test_remove_passes_grace_and_timeout_on(
    agent: RunningAgent, stub: ContainersAsyncStub
) -> None:
    await stub.Create(web())
    await stub.Remove(pb.RemoveContainerRequest(id="web", grace_seconds=2, timeout_seconds=9))
    assert agent.containers.removals == [("web", 2, 9)]
    assert not (await stub.List(pb.ListContainersRequest())).containers


async def test_unknown_and_bad_ids(stub: ContainersAsyncStub) -> None:
    unknown = [
        await refused(stub.Start(pb.StartContainerRequest(id="x"))),
        await refused(stub.Update(pb.UpdateContainerRequest(id="x"))),
        await refused(stub.Remove(pb.RemoveContainerRequest(id="x"))),
    ]
    assert {one.reason for one in unknown} == {"UNKNOWN_CONTAINER"}
    bad = [
        await refused(stub.Start(pb.StartContainerRequest(id=""))),
        await refused(stub.Update(pb.UpdateContainerRequest(id="a/b"))),
        await refused(stub.Remove(pb.RemoveContainerRequest(id=""))),
        await refused(stub.Remove(pb.RemoveContainerRequest(id="web", grace_seconds=-1))),
    ]
    assert [one.reason for one in bad] == ["BAD_ID", "BAD_ID", "BAD_ID", "BAD_FIELD"]


async def test_a_pause_and_its_end(agent: RunningAgent, stub: ContainersAsyncStub) -> None:
    await stub.Create(web())
    started = await stub.Start(pb.StartContainerRequest(id="web", timeout_seconds=3))
    paused = await stub.Pause(pb.PauseContainerRequest(id="web", timeout_seconds=4))
    resumed = await stub.Resume(pb.ResumeContainerRequest(id="web"))
    states = [one.state for one in (started, paused, resumed)]
    running = pb.CONTAINER_STATE_RUNNING
    assert states == [running, pb.CONTAINER_STATE_PAUSED, running]
    assert agent.containers.timeouts == [3, 4, None]


async def test_bad_times_and_ids_of_a_pause(stub: ContainersAsyncStub) -> None:
    for answer in (
        await refused(stub.Pause(pb.PauseContainerRequest(id="a/b"))),
        await refused(stub.Resume(pb.ResumeContainerRequest(id=""))),
    ):
        assert answer.reason == "BAD_ID"
    for late in (
        await refused(stub.Start(pb.StartContainerRequest(id="web", timeout_seconds=-1))),
        await refused(stub.Pause(pb.PauseContainerRequest(id="web", timeout_seconds=-1))),
    ):
        assert late.reason == "BAD_FIELD"
    unknown = await refused(stub.Pause(pb.PauseContainerRequest(id="web")))
    assert unknown.reason == "UNKNOWN_CONTAINER"


CPU = types_pb2.PressureThreshold(
    resource=types_pb2.PRESSURE_RESOURCE_CPU, stall_micros=1000, window_micros=1_000_000
)


async def test_streams_namespaces_and_pressure_arrive(
    agent: RunningAgent, stub: ContainersAsyncStub
) -> None:
    options = types_pb2.StreamOptions(
        buffer_bytes=1 << 16,
        when_full=types_pb2.WHEN_FULL_DROP,
        log=types_pb2.OutputLog(max_bytes=4096),
    )
    await stub.Create(web(streams=options, shared_namespaces=["uts", "pid"], pressure=[CPU]))
    request = agent.containers.table["web"][0]
    assert request.streams == StreamOptions(
        window=1 << 16, when_full=WhenFull.DROP, log=LogOptions(max_bytes=4096)
    )
    assert request.shared_namespaces == ("pid", "uts")
    threshold = PressureThreshold(resource=PressureResource.CPU, stall=1000, window=1_000_000)
    assert request.pressure == (threshold,)
    for pressure, expected in ((None, None), ([], ()), ([CPU], (threshold,))):
        asked = pb.UpdateContainerRequest(id="web", timeout_seconds=6)
        if pressure is not None:
            asked.pressure.CopyFrom(pb.PressureThresholds(thresholds=pressure))
        await stub.Update(asked)
        assert agent.containers.updates[-1].pressure == expected
        assert agent.containers.updates[-1].timeout == 6


@pytest.mark.parametrize(
    "members",
    [
        {"streams": types_pb2.StreamOptions(buffer_bytes=5)},
        {"streams": types_pb2.StreamOptions(log=types_pb2.OutputLog(files=17))},
        {"shared_namespaces": ["mount"]},
        {"shared_namespaces": ["pid", "pid"]},
        {"pressure": [types_pb2.PressureThreshold()]},
        {"pressure": [CPU] * 2},
    ],
)
async def test_bad_options_are_named(stub: ContainersAsyncStub, members: dict[str, Any]) -> None:
    answer = await refused(stub.Create(web(**members)))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")


async def test_all_of_a_status_is_told(agent: RunningAgent, stub: ContainersAsyncStub) -> None:
    await stub.Create(web())
    request, status = agent.containers.table["web"]
    kill = OutOfMemory(victim="java", pid=5, limit=1 << 20, cgroup="/in")
    end = ProcessExit(
        code=137,
        signal=9,
        cause=EndCause.OUT_OF_MEMORY,
        out_of_memory=kill,
        stdout_bytes=0,
    )
    told = replace(
        status,
        state=ContainerState.STOPPED,
        exit=end,
        created=1.5,
        started=2.5,
        arguments=("sh", "-c"),
        cgroup="/pods/s/web",
        terminal=True,
    )
    agent.containers.table["web"] = (request, told)
    (one,) = (await stub.List(pb.ListContainersRequest())).containers
    assert (one.created_unix_micros, one.started_unix_micros) == (1_500_000, 2_500_000)
    assert (list(one.arguments), one.cgroup, one.terminal) == (["sh", "-c"], "/pods/s/web", True)
    assert one.exit.cause == types_pb2.END_CAUSE_OUT_OF_MEMORY
    killed = one.exit.out_of_memory
    assert (killed.victim, killed.pid, killed.limit_bytes) == ("java", 5, 1 << 20)
    assert killed.cgroup == "/in"
    assert one.exit.HasField("stdout_bytes")
    assert not one.exit.HasField("stderr_bytes")
