"""The agent's real server on a unix socket, with fakes below it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from agent.core.events import EventLog
from agent.core.pid1 import Pid1Client
from agent.core.roots import Roots
from agent.core.sandbox import Sandbox
from agent.core.state import StateStore
from agent.handlers.guest.clock import Clock
from agent.handlers.guest.describe import BootPhases, Describer, Limits
from agent.handlers.guest.shutdown import Shutdown
from agent.handlers.guest.teardown import Teardown
from agent.server import app
from agent.server.health import Health, Probe
from agent.server.sandbox import Guest
from tests.fakes.agent_managers import FakeContainers, FakeDevices, FakeProcesses, FakeStorages
from tests.fakes.container_watchers import FakeListing, FakeLogs, FakeUsage
from tests.fakes.copies import FolderFiles
from tests.fakes.machine import PluggedGuest
from tests.fakes.network_manager import FakeNetwork
from tests.fakes.pid1 import FakePid1
from tests.fakes.sandbox_setup import FakeDns, SetupBench
from tests.fakes.sockets_places import SocketBench
from tests.fakes.storage_operations import FakeStorageOperations

LIMITS = Limits(
    message_bytes=16 << 20,
    stream_window_bytes=1 << 20,
    event_ring=4,
    objects=1024,
    processes_per_container=1024,
)

MOST_CALLS = 400


@dataclass(slots=True, kw_only=True)
class FakeClock:
    """A wall clock that stands still until it is set."""

    nanoseconds: int = 1_700_000_000_000_000_000
    sets: list[int] = field(default_factory=list)
    error: OSError | None = None

    def now(self) -> int:
        return self.nanoseconds

    def settime(self, _clock: int, nanoseconds: int) -> None:
        if self.error is not None:
            raise self.error
        self.sets.append(nanoseconds)
        self.nanoseconds = nanoseconds


class PoweringPid1(FakePid1):
    """Tells when it was asked to end the guest."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked_for_power = asyncio.Event()

    def _answer(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        answer = super()._answer(request, fds)
        if request["op"] == "power":
            self.asked_for_power.set()
        return answer


@dataclass(slots=True, kw_only=True)
class RunningAgent:
    """A server, a channel to it, and what is below."""

    channel: grpc.aio.Channel
    server: app.AgentServer
    roots: Roots
    pid1: PoweringPid1
    events: EventLog
    health: Health
    sandbox: Sandbox
    bench: SetupBench
    devices: FakeDevices = field(default_factory=FakeDevices)
    storages: FakeStorages = field(default_factory=FakeStorages)
    storage_operations: FakeStorageOperations
    containers: FakeContainers = field(default_factory=FakeContainers)
    processes: FakeProcesses = field(default_factory=FakeProcesses)
    usage: FakeUsage = field(default_factory=FakeUsage)
    listing: FakeListing = field(default_factory=FakeListing)
    logs: FakeLogs = field(default_factory=FakeLogs)
    files: FolderFiles
    network: FakeNetwork = field(default_factory=FakeNetwork)
    sockets: SocketBench
    clock: FakeClock = field(default_factory=FakeClock)
    seeds: list[bytes] = field(default_factory=list)
    hostnames: list[str] = field(default_factory=list)
    plugs: PluggedGuest

    async def calls_over(self) -> None:
        """Until no method of the server runs any more; gRPC names their tasks so."""
        running = {one for one in asyncio.all_tasks() if one.get_name().startswith("HandleExc")}
        if running:
            _, late = await asyncio.wait(running, timeout=10)
            assert not late

    def connect(self, **options: int) -> grpc.aio.Channel:
        """Another connection of its own; the caller closes it."""
        return connect(self.roots.agent_socket, **options)


def connect(socket: Path, **options: int) -> grpc.aio.Channel:
    """A channel that doesn't share its connection and takes messages of any size."""
    chosen = {"grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1}
    chosen |= {name.replace("__", "."): value for name, value in options.items()}
    chosen["grpc.use_local_subchannel_pool"] = 1
    return grpc.aio.insecure_channel(f"unix:{socket}", options=list(chosen.items()))


@contextlib.asynccontextmanager
async def serving_agent(
    folder: Path, *, most_calls: int = MOST_CALLS
) -> AsyncIterator[RunningAgent]:
    """Serves in `folder`, which needs a short path (sun_path has 108 bytes)."""
    roots = Roots(run=folder, proc=folder / "proc", cgroup=folder / "cgroup")
    roots.state.mkdir()
    async with PoweringPid1(roots.init_socket) as pid1:
        client = Pid1Client(roots.init_socket)
        agent, health = _assemble(roots, pid1, client, most_calls)
        health.start()
        await agent.server.start(roots.agent_socket)
        try:
            yield agent
        finally:
            await agent.channel.close()
            await agent.server.stop(0)
            agent.plugs.close()
            health.stop()
            client.close()
            await agent.sockets.close()


def _assemble(
    roots: Roots, pid1: PoweringPid1, client: Pid1Client, most_calls: int
) -> tuple[RunningAgent, Health]:
    state = StateStore(roots.state)
    events = EventLog(state, size=LIMITS.event_ring)
    health = Health(Probe(roots.state, client, ping_seconds=0.2), events)
    hostnames: list[str] = []
    devices, storages, containers = FakeDevices(), FakeStorages(), FakeContainers()
    processes, clock, seeds = FakeProcesses(), FakeClock(), list[bytes]()
    files, operations = FolderFiles(roots), FakeStorageOperations()
    network, sockets = FakeNetwork(), SocketBench()
    usage, listing, logs = FakeUsage(), FakeListing(), FakeLogs()
    plugs = PluggedGuest(roots.run / "guest", events)
    bench = SetupBench(replace(roots, sys=roots.run / "sys"), state, FakeDns(), hostnames)
    guest = Guest(
        sandbox=bench.sandbox,
        describer=_describer(roots, client),
        clock=Clock(now=clock.now, settime=clock.settime),
        seed=seeds.append,
        shutdown=Shutdown(client),
        setup=bench.setup,
        teardown=Teardown(
            containers=containers,
            storages=storages,
            devices=devices,
            dns=network,
            setup=bench.setup,
        ),
        resources=plugs.resources,
        events=events,
    )
    managers = app.Managers(
        devices=devices,
        storages=storages,
        storage_operations=operations,
        containers=containers,
        processes=processes,
        usage=usage,
        listing=listing,
        logs=logs,
        files=files,
        network=network,
        sockets=sockets.manager,
    )
    agent = RunningAgent(
        channel=connect(roots.agent_socket),
        server=app.build_server(
            guest, managers, health, hotplug_timeout=10.0, most_calls=most_calls
        ),
        roots=roots,
        pid1=pid1,
        events=events,
        health=health,
        sandbox=bench.sandbox,
        bench=bench,
        devices=devices,
        storages=storages,
        storage_operations=operations,
        containers=containers,
        processes=processes,
        usage=usage,
        listing=listing,
        logs=logs,
        files=files,
        network=network,
        sockets=sockets,
        plugs=plugs,
        clock=clock,
        seeds=seeds,
        hostnames=hostnames,
    )
    return agent, health


def _describer(roots: Roots, client: Pid1Client) -> Describer:
    async def runtime_version() -> str:
        return "crun version 1.21"

    phases = BootPhases(now=lambda: 2.5)
    phases.note("agent_serving")
    return Describer(
        roots=roots, pid1=client, phases=phases, limits=LIMITS, runtime_version=runtime_version
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A failed call, as a host's program sees it."""

    code: grpc.StatusCode
    message: str
    reason: str
    domain: str
    fields: dict[str, str]


async def refused(call: Awaitable[object]) -> Refusal:
    """The refusal that `call` must end with."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return refusal(error)
    raise AssertionError(f"answered instead of refused: {answer}")


def refusal(error: grpc.aio.AioRpcError) -> Refusal:
    """Code and ErrorInfo of a failed call; without one the reason is empty."""
    status = rpc_status.from_call(error)  # type: ignore[no-untyped-call]
    info = error_details_pb2.ErrorInfo()
    if status is not None:
        assert len(status.details) == 1
        assert status.details[0].Unpack(info)
    return Refusal(
        code=error.code(),
        message=error.details() or "",
        reason=info.reason,
        domain=info.domain,
        fields=dict(info.metadata),
    )


async def until(condition: asyncio.Event, within: float = 10.0) -> None:
    """Wait for an event that must come."""
    async with asyncio.timeout(within):
        await condition.wait()
