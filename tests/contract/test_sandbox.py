"""innkeeper.v1.Sandbox over the wire."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from agent.core.errors import Reason, wrong_state
from agent.core.life import EndCause, OutOfMemory, PressureResource, PressureThreshold
from agent.core.model import ContainerRequest, Event, ProcessExit, RootPath, StorageRequest
from agent.core.network import DnsWish
from agent.core.sources import BlockSource
from agent.handlers.runtime.exitdetails import details_of
from agent.server.convert.sandbox import event as convert_event
from innkeeper.v1 import devices_pb2, network_pb2, types_pb2
from innkeeper.v1 import sandbox_pb2 as pb
from innkeeper.v1.devices_pb2_grpc import DevicesStub
from innkeeper.v1.sandbox_pb2_grpc import SandboxStub
from tests.fakes.agent_server import RunningAgent, refused, until

if TYPE_CHECKING:
    from innkeeper.v1.sandbox_pb2_grpc import SandboxAsyncStub

pytestmark = [pytest.mark.contract, pytest.mark.operations]


@pytest.fixture
def stub(agent: RunningAgent) -> SandboxAsyncStub:
    return SandboxStub(agent.channel)


async def test_create_names_the_guest(agent: RunningAgent, stub: SandboxAsyncStub) -> None:
    await stub.Create(pb.CreateSandboxRequest(id="s1", hostname="guest-1.example"))
    assert agent.hostnames == ["guest-1.example"]
    told = await stub.Describe(pb.DescribeSandboxRequest())
    assert told.sandbox_id == "s1"


async def test_create_twice_is_once_and_another_one_is_refused(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    await stub.Create(pb.CreateSandboxRequest(id="s1"))
    await stub.Create(pb.CreateSandboxRequest(id="s1"))
    for other in (
        pb.CreateSandboxRequest(id="s2"),
        pb.CreateSandboxRequest(id="s1", hostname="other"),
    ):
        answer = await refused(stub.Create(other))
        assert (answer.code, answer.reason) == (grpc.StatusCode.ALREADY_EXISTS, "ID_IN_USE")
        assert answer.fields["id"] == "s1"
    assert agent.hostnames == []


@pytest.mark.parametrize(
    "hostname",
    ["a b", "x\n127.0.0.1 evil", "-a", "a-", "é", "a" * 65, "a..b", ".a", "a.", "a_b"],
)
async def test_a_host_name_is_rfc_1123_or_refused(
    agent: RunningAgent, stub: SandboxAsyncStub, hostname: str
) -> None:
    """It gets into files, where a line feed would add a line."""
    answer = await refused(stub.Create(pb.CreateSandboxRequest(id="s1", hostname=hostname)))
    assert (answer.reason, answer.fields["field"]) == ("BAD_FIELD", "hostname")
    assert agent.sandbox.current is None
    assert agent.hostnames == []


async def test_a_bad_sandbox_id_is_refused(stub: SandboxAsyncStub) -> None:
    assert (await refused(stub.Create(pb.CreateSandboxRequest(id="../x")))).reason == "BAD_ID"


async def test_destroy_empties_the_guest(agent: RunningAgent, stub: SandboxAsyncStub) -> None:
    await _fill(agent)
    await stub.Create(pb.CreateSandboxRequest(id="s1"))
    answer = await stub.Destroy(pb.DestroySandboxRequest())
    assert not answer.leftovers
    assert (agent.containers.table, agent.storages.table, agent.devices.table) == ({}, {}, {})
    assert agent.sandbox.current is None
    await stub.Create(pb.CreateSandboxRequest(id="s2"))


async def test_destroy_goes_on_after_a_failure_and_lists_what_is_left(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    await _fill(agent)
    await stub.Create(pb.CreateSandboxRequest(id="s1"))
    agent.containers.stubborn["web"] = wrong_state(
        "a process in state D", reason=Reason.WRONG_STATE
    )
    agent.containers.stubborn["bug"] = KeyError("bug")
    held = replace(agent.storages.table["lower"], users=frozenset({"web"}))
    agent.storages.table["lower"] = held
    answer = await stub.Destroy(pb.DestroySandboxRequest(timeout_seconds=5))
    assert len(answer.leftovers) == 3
    assert "container web: a process in state D" in answer.leftovers
    assert any(one.startswith("container bug: unexpected error") for one in answer.leftovers)
    assert any(one.startswith("storage lower: ") for one in answer.leftovers)
    assert set(agent.storages.table) == {"lower"}
    assert agent.devices.table == {}
    # The sandbox is gone all the same; what is left is taken by the next Destroy.
    assert agent.sandbox.current is None
    agent.containers.stubborn.clear()
    agent.storages.table["lower"] = replace(held, users=frozenset())
    assert not (await stub.Destroy(pb.DestroySandboxRequest())).leftovers


async def test_a_container_is_told_that_the_sandbox_goes(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    await _fill(agent)
    await stub.Destroy(pb.DestroySandboxRequest())
    assert sorted(agent.containers.gone_with_sandbox) == ["bug", "web"]


EVERYTHING = pb.CreateSandboxRequest(
    id="s1",
    hostname="guest-1",
    dns=network_pb2.ApplyDnsRequest(servers=["192.0.2.53"], searches=["example.com"]),
    modules=[pb.KernelModule(name="loop", parameters=["max_loop=3"])],
    sysctls={"vm.max_map_count": "262144"},
    shared_namespaces=["uts", "pid"],
    guest_hooks="/hooks",
    pressure=[
        types_pb2.PressureThreshold(
            resource=types_pb2.PRESSURE_RESOURCE_MEMORY, stall_micros=1000, window_micros=1_000_000
        )
    ],
)


async def test_create_sets_all_of_it_up_and_destroy_takes_it_back(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    before = agent.bench.shown()
    agent.bench.programs.found = {"prestart": ["/hooks/prestart/10-a"]}
    await stub.Create(EVERYTHING)
    assert agent.bench.shown() == {
        "modules": {"loop"},
        "sysctls": {"sys/vm/max_map_count": "262144", "sys/net/ipv4/ip_forward": "0"},
        "hostname": "guest-1",
        "namespaces": (("pid", "uts"), "/pods/s1/_sandbox", "guest-1"),
        "dns": DnsWish(
            servers=(IPv4Address("192.0.2.53"),), searches=("example.com",), hostname="guest-1"
        ),
        "pressure": {
            "": (PressureThreshold(resource=PressureResource.MEMORY, stall=1000, window=1_000_000),)
        },
    }
    hooks = agent.bench.setup.guest_hooks
    assert hooks is not None
    assert hooks.programs == {"prestart": ("/hooks/prestart/10-a",)}
    assert not (await stub.Destroy(pb.DestroySandboxRequest())).leftovers
    # The resolver is Teardown's to clear, also without a sandbox.
    assert agent.bench.shown() | {"dns": None} == before
    assert agent.network.cleared == 1
    assert agent.bench.setup.guest_hooks is None
    await stub.Create(EVERYTHING)


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("dns.hostname", {"hostname": "a", "dns": {"hostname": "b"}}),
        ("modules[0].name", {"modules": [{"name": "-r"}]}),
        ("modules[1].parameters", {"modules": [{"name": "a"}, {"name": "b", "parameters": ["x"]}]}),
        ("modules", {"modules": [{"name": "a"}] * 65}),
        ("sysctls", {"sysctls": {"vm..x": "1"}}),
        ("sysctls[vm.swappiness]", {"sysctls": {"vm.swappiness": "1\n2"}}),
        ("sysctls", {"sysctls": {f"vm.x{number}": "1" for number in range(257)}}),
        ("shared_namespaces", {"shared_namespaces": ["network"]}),
        ("shared_namespaces", {"shared_namespaces": ["mount"]}),
        ("shared_namespaces", {"shared_namespaces": ["pid", "pid"]}),
        ("guest_hooks", {"guest_hooks": "hooks"}),
        ("pressure[0].resource", {"pressure": [{"stall_micros": 1, "window_micros": 500_000}]}),
        ("pressure", {"pressure": [{"resource": 1}] * 17}),
        ("timeout_seconds", {"timeout_seconds": -1}),
    ],
)
async def test_a_bad_field_is_named_and_nothing_is_done(
    agent: RunningAgent, stub: SandboxAsyncStub, field: str, request_: dict[str, Any]
) -> None:
    before = agent.bench.shown()
    answer = await refused(stub.Create(pb.CreateSandboxRequest(id="s1", **request_)))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    assert answer.fields["field"] == field
    assert agent.bench.shown() == before


async def test_a_sysctl_that_protects_the_guest_is_denied(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    request = pb.CreateSandboxRequest(
        id="s1", hostname="guest", sysctls={"kernel.core_pattern": "|/tmp/x"}
    )
    answer = await refused(stub.Create(request))
    assert (answer.code, answer.reason) == (
        grpc.StatusCode.PERMISSION_DENIED,
        "SYSCTL_NOT_ALLOWED",
    )
    assert answer.fields["name"] == "kernel.core_pattern"
    assert agent.hostnames == []


async def test_a_module_that_is_not_there_is_refused(stub: SandboxAsyncStub) -> None:
    request = pb.CreateSandboxRequest(id="s1", modules=[pb.KernelModule(name="nbd")])
    answer = await refused(stub.Create(request))
    assert (answer.code, answer.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "MODULE_REFUSED",
    )
    assert answer.fields["module"] == "nbd"


async def test_an_exit_event_tells_all_of_the_end(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    end = ProcessExit(
        code=137,
        signal=9,
        cause=EndCause.OUT_OF_MEMORY,
        out_of_memory=OutOfMemory(victim="eater", pid=42, limit=1 << 20, cgroup="/"),
        stdout_bytes=7,
        stderr_bytes=0,
    )
    agent.events.publish("process_exited", "web", details_of(end))
    told = (await anext(aiter(stub.Watch(pb.WatchRequest())))).exit
    assert (told.code, told.signal, told.cause) == (137, 9, types_pb2.END_CAUSE_OUT_OF_MEMORY)
    assert told.out_of_memory == types_pb2.OutOfMemory(
        victim="eater", pid=42, limit_bytes=1 << 20, cgroup="/"
    )
    assert (told.stdout_bytes, told.stderr_bytes) == (7, 0)
    assert not told.core_dumped


async def test_destroy_of_an_empty_guest_is_fine(
    stub: SandboxAsyncStub, agent: RunningAgent
) -> None:
    assert not (await stub.Destroy(pb.DestroySandboxRequest())).leftovers
    assert agent.network.cleared == 1


async def _fill(agent: RunningAgent) -> None:
    agent.devices.plug("02/00")
    address = devices_pb2.DeviceAddress(pci_path="02/00")
    device = devices_pb2.Device(id="d1", address=address, block=devices_pb2.BlockDevice())
    await DevicesStub(agent.channel).Attach(devices_pb2.AttachDevicesRequest(devices=[device]))
    for name in ("lower", "middle", "upper"):
        source = BlockSource(device_id="d1", fs_type="ext4")
        await agent.storages.attach(StorageRequest(id=name, source=source))
    # upper rests on middle, middle on lower: only one order works.
    agent.storages.needs = {"upper": "middle", "middle": "lower"}
    for name in ("web", "bug"):
        await agent.containers.create(
            ContainerRequest(id=name, spec=b"{}", rootfs=RootPath(path="/"))
        )


async def test_describe_tells_what_a_host_needs(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    told = await stub.Describe(pb.DescribeSandboxRequest())
    assert told.protocol == "innkeeper.v1"
    assert told.limits.message_bytes == 16 << 20
    assert told.agent_pid == os.getpid()
    assert told.runtime == "crun version 1.21"
    assert {"devices.block", "storages.block", "containers", "processes"} <= set(told.features)
    assert [(one.name, one.at_micros) for one in told.boot_phases] == [("agent_serving", 2_500_000)]


async def test_describe_answers_without_pid_1(agent: RunningAgent, stub: SandboxAsyncStub) -> None:
    agent.pid1.refusing = "ping"
    assert (await stub.Describe(pb.DescribeSandboxRequest())).protocol == "innkeeper.v1"


async def test_set_time_says_how_far_the_clock_jumped(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    watching = stub.Watch(pb.WatchRequest())
    answer = await stub.SetTime(pb.SetTimeRequest(seconds=1_700_000_060, microseconds=500_000))
    assert answer.jump_micros == 60_500_000
    assert agent.clock.sets == [1_700_000_060_500_000_000]
    back = await stub.SetTime(pb.SetTimeRequest(seconds=1_700_000_000))
    assert back.jump_micros == -60_500_000
    event = await anext(aiter(watching))
    assert event.kind == pb.EVENT_KIND_CLOCK_SET
    assert event.details["jump_micros"] == "60500000"


@pytest.mark.parametrize(
    ("seconds", "microseconds", "field"),
    [
        (1, 1_000_000, "microseconds"),
        (1, -1, "microseconds"),
        (-1, 0, "seconds"),
        (9_223_372_036, 0, "seconds"),
    ],
)
async def test_a_time_out_of_range_is_refused_and_nothing_set(
    agent: RunningAgent, stub: SandboxAsyncStub, seconds: int, microseconds: int, field: str
) -> None:
    request = pb.SetTimeRequest(seconds=seconds, microseconds=microseconds)
    answer = await refused(stub.SetTime(request))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    assert answer.fields["field"] == field
    assert agent.clock.sets == []


async def test_the_year_2200_can_be_set(agent: RunningAgent, stub: SandboxAsyncStub) -> None:
    await stub.SetTime(pb.SetTimeRequest(seconds=7_258_118_400))
    assert agent.clock.sets == [7_258_118_400 * 10**9]


async def test_what_the_kernel_refuses_is_its_errno(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    """A wall clock before the boot itself is EINVAL in do_settimeofday64."""
    agent.clock.error = OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    answer = await refused(stub.SetTime(pb.SetTimeRequest(seconds=0)))
    assert (answer.code, answer.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "KERNEL_REFUSED",
    )
    assert answer.fields["errno"] == "EINVAL"


async def test_waits_are_not_disturbed_by_a_jump(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    """Deadlines are on the monotonic clock; a jump of a year must neither end nor stretch one."""
    address = devices_pb2.DeviceAddress(pci_path="02/00")
    device = devices_pb2.Device(id="d1", address=address, block=devices_pb2.BlockDevice())
    request = devices_pb2.AttachDevicesRequest(devices=[device])
    call = DevicesStub(agent.channel).Attach(request, timeout=60)
    await agent.devices.until_waiting(1)
    await stub.SetTime(pb.SetTimeRequest(seconds=1_800_000_000))
    agent.devices.plug("02/00")
    assert len((await call).attached) == 1


async def test_entropy_reaches_the_kernel(agent: RunningAgent, stub: SandboxAsyncStub) -> None:
    await stub.SeedEntropy(pb.SeedEntropyRequest(data=b"\x01\x02"))
    assert agent.seeds == [b"\x01\x02"]


async def test_events_are_watched_from_a_number_on(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    agent.events.publish("container_created", "web")
    end = {"code": "137", "signal": "9"}
    agent.events.publish("process_exited", "web/e1", end)
    events = aiter(stub.Watch(pb.WatchRequest()))
    first, second = await anext(events), await anext(events)
    assert (first.sequence, first.kind, first.subject) == (
        1,
        pb.EVENT_KIND_CONTAINER_CREATED,
        "web",
    )
    assert (second.exit.code, second.exit.signal) == (137, 9)
    resumed = aiter(stub.Watch(pb.WatchRequest(after_sequence=1)))
    assert await anext(resumed) == second
    agent.events.publish("container_removed", "web")
    assert (await anext(resumed)).sequence == (await anext(events)).sequence == 3


async def test_events_that_are_no_longer_kept_are_out_of_range(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    for number in range(10):
        agent.events.publish("container_created", f"c{number}")
    answer = await refused(anext(aiter(stub.Watch(pb.WatchRequest(after_sequence=2)))))
    assert (answer.code, answer.reason) == (grpc.StatusCode.OUT_OF_RANGE, "OFFSET_NOT_KEPT")
    assert answer.fields["oldest"] == "7"
    # 0 means what is kept, wherever that begins.
    assert (await anext(aiter(stub.Watch(pb.WatchRequest())))).sequence == 7


async def test_a_number_from_another_boot_is_out_of_range(stub: SandboxAsyncStub) -> None:
    answer = await refused(anext(aiter(stub.Watch(pb.WatchRequest(after_sequence=99)))))
    assert answer.reason == "OFFSET_NOT_KEPT"


async def test_a_quiet_watch_is_open_at_once(stub: SandboxAsyncStub) -> None:
    call = stub.Watch(pb.WatchRequest())
    async with asyncio.timeout(10):
        await call.initial_metadata()
    call.cancel()


_KINDS = [
    ("device-attached", pb.EVENT_KIND_DEVICE_ATTACHED, {}),
    ("device-detached", pb.EVENT_KIND_DEVICE_GONE, {"asked": "yes"}),
    ("device-vanished", pb.EVENT_KIND_DEVICE_GONE, {"asked": "no"}),
    ("device-lost", pb.EVENT_KIND_DEVICE_GONE, {"asked": "no"}),
    ("storage-attached", pb.EVENT_KIND_STORAGE_ATTACHED, {}),
    ("storage-detached", pb.EVENT_KIND_STORAGE_GONE, {"asked": "yes"}),
    ("storage-lost", pb.EVENT_KIND_STORAGE_GONE, {"asked": "no"}),
    ("storage-frozen", pb.EVENT_KIND_STORAGE_FROZEN, {}),
    ("storage-refreshed", pb.EVENT_KIND_STORAGE_REFRESHED, {}),
    ("storage-thawed", pb.EVENT_KIND_STORAGE_THAWED, {}),
    ("agent-restarted", pb.EVENT_KIND_AGENT_RESTARTED, {}),
    ("interface_changed", pb.EVENT_KIND_INTERFACE_CHANGED, {}),
    ("address_changed", pb.EVENT_KIND_ADDRESS_CHANGED, {}),
    ("route_changed", pb.EVENT_KIND_ROUTE_CHANGED, {}),
    ("of-a-newer-agent", pb.EVENT_KIND_UNSPECIFIED, {}),
]


def test_every_event_that_the_agent_publishes_has_a_word(root: Path) -> None:
    """A kind without one would reach the host as UNSPECIFIED."""
    source = "".join(path.read_text() for path in (root / "agent").rglob("*.py"))
    kinds = set(re.findall(r"publish\(\s*\"([a-z_-]+)\"", source))
    assert {"container_created", "device-attached", "storage-lost"} <= kinds
    happened = (Event(sequence=1, at=0.0, kind=kind, subject="x") for kind in kinds)
    nameless = {each.kind for each in happened if not convert_event(each).kind}
    assert nameless == set()


@pytest.mark.parametrize(("kind", "word", "details"), _KINDS)
async def test_each_kind_of_event_has_its_word(
    agent: RunningAgent,
    stub: SandboxAsyncStub,
    kind: str,
    word: pb.EventKind.ValueType,
    details: dict[str, str],
) -> None:
    agent.events.publish(kind, "x")
    event = await anext(aiter(stub.Watch(pb.WatchRequest())))
    assert (event.kind, dict(event.details)) == (word, details)
    assert event.exit == types_pb2.ExitStatus()


@pytest.mark.parametrize(
    ("action", "asked"),
    [
        (pb.SHUTDOWN_ACTION_UNSPECIFIED, "off"),
        (pb.SHUTDOWN_ACTION_POWER_OFF, "off"),
        (pb.SHUTDOWN_ACTION_REBOOT, "reboot"),
    ],
)
async def test_shutdown_answers_first_and_then_asks_pid_1(
    agent: RunningAgent, stub: SandboxAsyncStub, action: pb.ShutdownAction.ValueType, asked: str
) -> None:
    await stub.Shutdown(pb.ShutdownRequest(action=action))
    await until(agent.pid1.asked_for_power)
    assert agent.pid1.powered == [asked]


async def test_an_unknown_action_shuts_nothing_down(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    request = pb.ShutdownRequest(action=9)  # type: ignore[arg-type]
    assert (await refused(stub.Shutdown(request))).reason == "BAD_FIELD"
    assert agent.pid1.powered == []


async def test_shutdown_without_pid_1_is_unavailable(
    agent: RunningAgent, stub: SandboxAsyncStub
) -> None:
    agent.pid1.refusing = "ping"
    answer = await refused(stub.Shutdown(pb.ShutdownRequest()))
    assert answer.code == grpc.StatusCode.FAILED_PRECONDITION
    assert agent.pid1.powered == []
