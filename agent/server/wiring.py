"""Puts the agent together: mechanisms, managers, services; restores, serves, stops.

The socket is bound last, so whoever can connect finds an agent that has taken
over everything an earlier one left.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agent.core import commands
from agent.core.copies import CopyWorkers
from agent.core.deadlines import Deadline
from agent.core.drivers import Drivers
from agent.core.events import RING_SIZE, EventLog
from agent.core.exits import ExitWatcher, Expectation
from agent.core.fileops import FileWorkers
from agent.core.hotplug import HotplugBoard
from agent.core.kernel_log import KernelLog
from agent.core.log_evidence import LogEvidence, tells_of_trouble
from agent.core.pid1 import Pid1Client
from agent.core.sandbox import Sandbox
from agent.core.state import StateStore
from agent.core.tree import SysfsTree
from agent.handlers.devices.manager import DeviceManager
from agent.handlers.devices.usage import Usage
from agent.handlers.guest import entropy
from agent.handlers.guest.clock import Clock
from agent.handlers.guest.describe import Describer, Limits
from agent.handlers.guest.files import Files
from agent.handlers.guest.podmemory import PodMemory
from agent.handlers.guest.resources import Resources
from agent.handlers.guest.shutdown import Shutdown
from agent.handlers.guest.teardown import Teardown
from agent.handlers.network.firewall import Firewall
from agent.handlers.network.manager import Mechanisms as NetworkMechanisms
from agent.handlers.network.manager import NetworkManager
from agent.handlers.network.resolver import Resolver
from agent.handlers.runtime.containers import Containers
from agent.handlers.runtime.context import RuntimeContext
from agent.handlers.runtime.crun import Crun
from agent.handlers.runtime.exclusive import ExclusiveCpus
from agent.handlers.runtime.nodes import ContainerNodes
from agent.handlers.runtime.processes import Processes
from agent.handlers.runtime.restore import restore as restore_containers
from agent.handlers.runtime.retention import EXEC_LIMIT
from agent.handlers.runtime.streams import WINDOW, StreamHome
from agent.handlers.sockets.manager import Sockets
from agent.handlers.sockets.places import ContainerPlaces
from agent.handlers.sockets.workers import SocketWorkers
from agent.handlers.storage.freezes import Freezes
from agent.handlers.storage.manager import StorageManager
from agent.handlers.storage.operations import StorageOperations
from agent.handlers.storage.superblocks import MountTable
from agent.linux.uevents import KernelUevents
from agent.server import app
from agent.server.health import Health, Probe
from agent.server.limits import MESSAGE_BYTES, OBJECTS
from agent.server.sandbox import Guest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from agent.core.config import AgentConfig
    from agent.core.roots import Roots
    from agent.handlers.guest.describe import BootPhases
    from agent.linux.uevents import UeventSource

log = logging.getLogger(__name__)

STOP_GRACE: Final = 3.0
"""Seconds that calls in progress have to end when the agent is stopped."""

_AGENT_KIND, _AGENT_KEY = "agent", "agent"
_AGENT_CGROUP = "/agent"
_VERSION_SECONDS = 5.0

LIMITS: Final = Limits(
    message_bytes=MESSAGE_BYTES,
    stream_window_bytes=WINDOW,
    event_ring=RING_SIZE,
    objects=OBJECTS,
    processes_per_container=EXEC_LIMIT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """What managers are made with."""

    config: AgentConfig
    roots: Roots
    state: StateStore
    events: EventLog
    pid1: Pid1Client
    exits: ExitWatcher
    files: FileWorkers
    board: HotplugBoard
    kernel_log: KernelLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The agent's objects."""

    sandbox: Sandbox
    devices: DeviceManager
    storages: StorageManager
    storage_operations: StorageOperations
    containers: Containers
    processes: Processes
    copies: CopyWorkers
    files: Files
    network: NetworkManager
    sockets: Sockets
    exclusive: ExclusiveCpus
    resources: Resources
    context: RuntimeContext


async def run(
    config: AgentConfig,
    roots: Roots,
    phases: BootPhases,
    stopping: asyncio.Event,
    *,
    uevents: Callable[[], UeventSource] = KernelUevents,
) -> None:
    """Serve until `stopping` is set. Raises AgentError when PID 1 can't be reached."""
    async with contextlib.AsyncExitStack() as stack:
        mechanisms = await _mechanisms(config, roots, uevents(), stack)
        tables = _tables(mechanisms)
        stack.push_async_callback(_close, tables)
        problems = await _restore(tables)
        await _announce(mechanisms, problems)
        health = _health(mechanisms, stack)
        server = _server(mechanisms, tables, health, phases)
        await server.start(roots.agent_socket)
        stack.push_async_callback(server.stop, STOP_GRACE)
        roots.agent_status.unlink(missing_ok=True)
        phases.note("agent_serving")
        log.info("serving", extra={"phases": phases.reached})
        # The worker is for the first mount: the first answer does not wait for it.
        await mechanisms.files.start()
        await stopping.wait()
        log.info("stopping")


async def _mechanisms(
    config: AgentConfig,
    roots: Roots,
    uevents: UeventSource,
    stack: contextlib.AsyncExitStack,
) -> Mechanisms:
    roots.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = StateStore(roots.state)
    files = FileWorkers()
    stack.push_async_callback(files.close)
    # Bound before anything is looked up in sysfs (DESIGN D7).
    kernel_log = KernelLog.open(roots)
    kernel_log.start()
    stack.callback(kernel_log.close)
    tree = SysfsTree(roots=roots, log=LogEvidence(kernel_log))
    drivers = Drivers(tree)
    stack.push_async_callback(drivers.close)
    board = HotplugBoard(tree=tree, source=uevents, files=files, drivers=drivers)
    board.start()
    stack.callback(board.close)
    stack.enter_context(kernel_log.listening(tells_of_trouble(board.look_again)))
    pods = PodMemory(roots)
    board.listen(pods.on_event)
    pods.fit()
    pid1 = Pid1Client(roots.init_socket)
    stack.callback(pid1.close)
    exits = ExitWatcher(pid1)
    await exits.start()
    stack.push_async_callback(exits.stop)
    return Mechanisms(
        config=config,
        roots=roots,
        state=state,
        events=EventLog(state),
        pid1=pid1,
        exits=exits,
        files=files,
        board=board,
        kernel_log=kernel_log,
    )


def _tables(parts: Mechanisms) -> Tables:
    timeout = parts.config.hotplug_timeout
    sandbox = Sandbox(parts.state)
    devices = DeviceManager(
        board=parts.board,
        state=parts.state,
        events=parts.events,
        default_timeout=timeout,
        holders=Usage(parts.files, parts.board.tree),
    )
    storages = _storages(parts, devices)
    exclusive = ExclusiveCpus(roots=parts.roots, events=parts.events, board=parts.board)
    network = _network(parts, devices)
    context = _runtime_context(parts, sandbox, devices, storages, exclusive, network)
    containers = Containers(context)
    devices.on_vanished(containers.device_vanished)
    network.resolver.listen(containers.dns_applied)
    copies = CopyWorkers()
    return Tables(
        sandbox=sandbox,
        devices=devices,
        storages=storages,
        storage_operations=_storage_operations(parts, storages),
        containers=containers,
        processes=Processes(context, containers),
        copies=copies,
        files=_files(parts.roots, copies, storages, containers),
        network=network,
        sockets=_sockets(parts, containers),
        exclusive=exclusive,
        resources=Resources(
            board=parts.board,
            files=parts.files,
            events=parts.events,
            default_timeout=timeout,
            reserved=exclusive.reserved,
        ),
        context=context,
    )


def _storages(parts: Mechanisms, devices: DeviceManager) -> StorageManager:
    return StorageManager(
        devices=devices,
        board=parts.board,
        files=parts.files,
        state=parts.state,
        events=parts.events,
        default_timeout=parts.config.hotplug_timeout,
    )


def _files(
    roots: Roots, copies: CopyWorkers, storages: StorageManager, containers: Containers
) -> Files:
    files = Files(workers=copies, storages=storages, containers=containers.table, roots=roots)
    containers.before_removal(files.leave)
    return files


def _network(parts: Mechanisms, devices: DeviceManager) -> NetworkManager:
    network = NetworkManager(
        NetworkMechanisms(
            board=parts.board,
            state=parts.state,
            events=parts.events,
            keeper=parts.pid1,
            devices=devices,
            hotplug_timeout=parts.config.hotplug_timeout,
        ),
        resolver=Resolver(parts.roots, workers=parts.files, state=parts.state),
        firewall=Firewall(),
    )
    devices.on_attached(network.on_attached)
    return network


def _sockets(parts: Mechanisms, containers: Containers) -> Sockets:
    sockets = Sockets(
        places=ContainerPlaces(containers.table, parts.roots),
        workers=SocketWorkers(),
        resolver=parts.files,
    )
    containers.before_removal(sockets.leave)
    return sockets


def _storage_operations(parts: Mechanisms, storages: StorageManager) -> StorageOperations:
    freezes = Freezes(
        files=parts.files,
        mounts=MountTable(parts.roots),
        state=parts.state,
        events=parts.events,
    )
    operations = StorageOperations(
        storages=storages,
        files=parts.files,
        board=parts.board,
        freezes=freezes,
        log=parts.kernel_log,
    )
    storages.before_unmount.append(operations.before_unmount)
    return operations


def _runtime_context(
    parts: Mechanisms,
    sandbox: Sandbox,
    devices: DeviceManager,
    storages: StorageManager,
    exclusive: ExclusiveCpus,
    network: NetworkManager,
) -> RuntimeContext:
    def parent() -> str:
        return f"/pods/{sandbox.current.id if sandbox.current else 'default'}"

    return RuntimeContext(
        roots=parts.roots,
        runtime=Crun(parts.roots),
        exits=parts.exits,
        state=parts.state,
        events=parts.events,
        files=parts.files,
        devices=devices,
        storages=storages,
        exclusive=exclusive,
        network=network,
        nodes=ContainerNodes(parts.roots),
        streams=StreamHome(
            keeper=parts.pid1,
            spools=parts.roots.spools,
            pipe_size=parts.config.container_pipe_size,
        ),
        parent=parent,
    )


async def _restore(tables: Tables) -> dict[str, str]:
    """Take over what an earlier agent left; what went wrong, by kind of object.

    A kind that can't be restored must not keep the agent away from all others.
    """
    steps: dict[str, Callable[[], Awaitable[None]]] = {
        "devices": tables.devices.restore,
        "storages": tables.storages.restore,
        "network": tables.network.restore,
        "freezes": tables.storage_operations.restore,
        "containers": partial(restore_containers, tables.context, tables.containers),
    }
    problems: dict[str, str] = {}
    for kind, restore in steps.items():
        try:
            await restore()
        except Exception as error:
            log.exception("%s could not be restored", kind)
            problems[kind] = str(error) or repr(error)
    return problems


async def _announce(parts: Mechanisms, problems: dict[str, str]) -> None:
    """Tell when an earlier agent was here, and how it ended; leave our own mark."""
    before = parts.state.load(_AGENT_KIND, _AGENT_KEY)
    if before is not None:
        cause = _cause(parts.exits, before)
        log.warning("taking over from an earlier agent: %s", cause)
        parts.events.publish("agent_restarted", "", {"cause": cause, **problems})
    mark = {"pid": os.getpid(), "after": await parts.exits.note()}
    parts.state.save(_AGENT_KIND, _AGENT_KEY, mark)


def _cause(exits: ExitWatcher, before: dict[str, Any]) -> str:
    pid = int(before.get("pid", 0))
    after = int(before.get("after", 0))
    entry = exits.find(Expectation(pid=pid, cgroup=_AGENT_CGROUP, after=after))
    if entry is None:
        return f"agent {pid} is gone, its end is not in the journal"
    if entry.signal:
        return f"agent {pid} was ended by signal {entry.signal}"
    return f"agent {pid} ended with status {entry.code}"


def _health(parts: Mechanisms, stack: contextlib.AsyncExitStack) -> Health:
    health = Health(Probe(parts.roots.state, parts.pid1), parts.events)
    health.start()
    stack.callback(health.stop)
    return health


def _server(
    parts: Mechanisms, tables: Tables, health: Health, phases: BootPhases
) -> app.AgentServer:
    guest = Guest(
        sandbox=tables.sandbox,
        describer=Describer(
            roots=parts.roots,
            pid1=parts.pid1,
            phases=phases,
            limits=LIMITS,
            runtime_version=RuntimeVersion(),
        ),
        clock=Clock(),
        seed=partial(entropy.seed, parts.roots),
        shutdown=Shutdown(parts.pid1),
        teardown=Teardown(
            containers=tables.containers,
            storages=tables.storages,
            devices=tables.devices,
            dns=tables.network.resolver,
        ),
        resources=tables.resources,
        events=parts.events,
    )
    managers = app.Managers(
        devices=tables.devices,
        storages=tables.storages,
        storage_operations=tables.storage_operations,
        containers=tables.containers,
        processes=tables.processes,
        files=tables.files,
        network=tables.network,
        sockets=tables.sockets,
    )
    timeout = parts.config.hotplug_timeout
    return app.build_server(guest, managers, health, hotplug_timeout=timeout)


class RuntimeVersion:
    """The first line of `crun --version`, asked for once."""

    def __init__(self) -> None:
        self._known = ""

    async def __call__(self) -> str:
        """Raises AgentError when crun can't be run."""
        if not self._known:
            deadline = Deadline.after(_VERSION_SECONDS)
            result = await commands.run(["crun", "--version"], deadline=deadline)
            self._known = result.stdout.decode(errors="replace").partition("\n")[0]
        return self._known


async def _close(tables: Tables) -> None:
    """Let go of everything and change nothing: the next agent takes it over."""
    await tables.copies.close()
    await tables.sockets.close()
    await tables.containers.close()
    await tables.network.close()
    await tables.exclusive.close()
    await tables.storage_operations.close()
    await tables.storages.close()
    await tables.devices.close()
