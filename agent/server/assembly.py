"""The agent's parts: mechanisms, and the managers that are made with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.copies import CopyWorkers
from agent.core.drivers import Drivers
from agent.core.events import EventLog
from agent.core.exits import ExitWatcher
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
from agent.handlers.guest.files import Files
from agent.handlers.guest.podmemory import PodMemory
from agent.handlers.guest.resources import Resources
from agent.handlers.guest.setup import SandboxSetup, SetupTools
from agent.handlers.network.firewall import Firewall
from agent.handlers.network.manager import Mechanisms as NetworkMechanisms
from agent.handlers.network.manager import NetworkManager
from agent.handlers.network.resolver import Resolver
from agent.handlers.runtime.containers import Containers
from agent.handlers.runtime.context import RuntimeContext
from agent.handlers.runtime.cpus.exclusive import ExclusiveCpus
from agent.handlers.runtime.crun import Crun
from agent.handlers.runtime.holder import NamespaceHolder
from agent.handlers.runtime.logs.outputlog import ProcessLogs
from agent.handlers.runtime.nodes import ContainerNodes
from agent.handlers.runtime.processes import Processes
from agent.handlers.runtime.spec.support import SupportAsked
from agent.handlers.runtime.streams.streams import StreamHome
from agent.handlers.runtime.usage.listing import Listing
from agent.handlers.runtime.usage.oom import OomWatch
from agent.handlers.runtime.usage.pressure import PressureWatch
from agent.handlers.runtime.usage.usage import Usage as ContainerUsage
from agent.handlers.sockets.manager import Sockets
from agent.handlers.sockets.places import ContainerPlaces
from agent.handlers.sockets.workers import SocketWorkers
from agent.handlers.storage.freezes import Freezes
from agent.handlers.storage.manager import StorageManager
from agent.handlers.storage.operations import StorageOperations
from agent.handlers.storage.superblocks import MountTable

if TYPE_CHECKING:
    import contextlib

    from agent.core.config import AgentConfig
    from agent.core.roots import Roots
    from agent.linux.uevents import UeventSource


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
class Watchers:
    """Who tells of what happens to containers, and the namespaces that they share."""

    pressure: PressureWatch
    oom: OomWatch
    namespaces: NamespaceHolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What containers hold."""

    devices: DeviceManager
    storages: StorageManager
    network: NetworkManager
    exclusive: ExclusiveCpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Containers, and all that is told of them."""

    context: RuntimeContext
    watchers: Watchers
    setup: SandboxSetup
    containers: Containers
    processes: Processes
    usage: ContainerUsage
    listing: Listing
    logs: ProcessLogs


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The agent's objects."""

    devices: DeviceManager
    storages: StorageManager
    storage_operations: StorageOperations
    runtime: Runtime
    copies: CopyWorkers
    files: Files
    network: NetworkManager
    sockets: Sockets
    exclusive: ExclusiveCpus
    resources: Resources


async def make_mechanisms(
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


def make_tables(parts: Mechanisms) -> Tables:
    devices = DeviceManager(
        board=parts.board,
        state=parts.state,
        events=parts.events,
        default_timeout=parts.config.hotplug_timeout,
        holders=Usage(parts.files, parts.board.tree),
    )
    storages = _storages(parts, devices)
    exclusive = ExclusiveCpus(roots=parts.roots, events=parts.events, board=parts.board)
    network = _network(parts, devices)
    held = Held(devices=devices, storages=storages, network=network, exclusive=exclusive)
    runtime = _runtime(parts, held)
    copies = CopyWorkers()
    return Tables(
        devices=devices,
        storages=storages,
        storage_operations=_storage_operations(parts, storages),
        runtime=runtime,
        copies=copies,
        files=_files(parts.roots, copies, storages, runtime.containers),
        network=network,
        sockets=_sockets(parts, runtime.containers),
        exclusive=exclusive,
        resources=_resources(parts, exclusive),
    )


def _runtime(parts: Mechanisms, held: Held) -> Runtime:
    watchers = _watchers(parts)
    setup = _setup(parts, held.network, watchers)
    context = _runtime_context(parts, setup, watchers, held)
    containers = Containers(context)
    held.devices.on_vanished(containers.device_vanished)
    held.network.resolver.listen(containers.dns_applied)
    return Runtime(
        context=context,
        watchers=watchers,
        setup=setup,
        containers=containers,
        processes=Processes(context, containers),
        usage=ContainerUsage(containers.table, parts.roots),
        listing=Listing(containers.table, parts.roots, parts.files),
        logs=ProcessLogs(containers.table, parts.roots),
    )


def _resources(parts: Mechanisms, exclusive: ExclusiveCpus) -> Resources:
    return Resources(
        board=parts.board,
        files=parts.files,
        events=parts.events,
        default_timeout=parts.config.hotplug_timeout,
        reserved=exclusive.reserved,
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


def _watchers(parts: Mechanisms) -> Watchers:
    return Watchers(
        pressure=PressureWatch(parts.roots, parts.events),
        oom=OomWatch(parts.kernel_log, parts.events, roots=parts.roots, state=parts.state),
        namespaces=NamespaceHolder(
            roots=parts.roots,
            runtime=Crun(parts.roots),
            exits=parts.exits,
            state=parts.state,
            events=parts.events,
            files=parts.files,
        ),
    )


def _setup(parts: Mechanisms, network: NetworkManager, watchers: Watchers) -> SandboxSetup:
    return SandboxSetup(
        SetupTools(
            roots=parts.roots,
            sandbox=Sandbox(parts.state),
            state=parts.state,
            dns=network.resolver,
            holder=watchers.namespaces,
            pressure=watchers.pressure,
            files=parts.files,
        )
    )


def _runtime_context(
    parts: Mechanisms, setup: SandboxSetup, watchers: Watchers, held: Held
) -> RuntimeContext:
    def parent() -> str:
        sandbox = setup.sandbox.current
        return f"/pods/{sandbox.id if sandbox else 'default'}"

    return RuntimeContext(
        roots=parts.roots,
        runtime=Crun(parts.roots),
        exits=parts.exits,
        state=parts.state,
        events=parts.events,
        files=parts.files,
        devices=held.devices,
        storages=held.storages,
        exclusive=held.exclusive,
        network=held.network,
        nodes=ContainerNodes(parts.roots),
        pressure=watchers.pressure,
        oom=watchers.oom,
        namespaces=watchers.namespaces,
        support=SupportAsked(parts.roots),
        guest_hooks=lambda: setup.guest_hooks,
        streams=StreamHome(
            keeper=parts.pid1,
            spools=parts.roots.spools,
            pipe_size=parts.config.container_pipe_size,
        ),
        parent=parent,
    )
