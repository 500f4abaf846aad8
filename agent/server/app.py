"""The agent's gRPC server: all services, one socket."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health_pb2

from agent.server.containers import ContainersService
from agent.server.devices import DevicesService
from agent.server.files import FilesService
from agent.server.health import Health, HealthService
from agent.server.interceptors import Guard
from agent.server.limits import CALLS_IN_FLIGHT, TRANSPORT_BYTES
from agent.server.listing import ListingMethods
from agent.server.logs import LogMethods
from agent.server.network import NetworkService
from agent.server.processes import ProcessesService
from agent.server.reflection import SERVICE as REFLECTION
from agent.server.reflection import ReflectionService
from agent.server.routing import Methods, endless_paths, service_handler
from agent.server.sandbox import Guest, SandboxService
from agent.server.sockets import SocketsService
from agent.server.storages import StoragesService
from agent.server.usage import UsageMethods
from innkeeper.v1 import (
    containers_pb2,
    devices_pb2,
    files_pb2,
    network_pb2,
    processes_pb2,
    sandbox_pb2,
    sockets_pb2,
    storages_pb2,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor

    from agent.server.facades import (
        ContainerManager,
        DeviceManager,
        FileManager,
        ListingManager,
        LogManager,
        NetworkManager,
        ProcessManager,
        SocketManager,
        StorageManager,
        StorageOperations,
        UsageManager,
    )

# The host is trusted and may ping as often as it likes: an idle connection is
# kept, and a dead one found, by its pings.
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", TRANSPORT_BYTES),
    ("grpc.max_send_message_length", TRANSPORT_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 0),
)

HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Managers:
    """The agent's tables of objects."""

    devices: DeviceManager
    storages: StorageManager
    storage_operations: StorageOperations
    containers: ContainerManager
    usage: UsageManager
    processes: ProcessManager
    listing: ListingManager
    logs: LogManager
    files: FileManager
    network: NetworkManager
    sockets: SocketManager


def build_server(
    guest: Guest,
    managers: Managers,
    health: Health,
    *,
    hotplug_timeout: float,
    most_calls: int = CALLS_IN_FLIGHT,
) -> AgentServer:
    """The server with every service of the protocol, health and reflection; not yet bound."""
    tables = _tables(guest, managers, hotplug_timeout)
    names = [service.full_name for service in tables] + [HEALTH.full_name]
    tables[HEALTH] = HealthService(health, names).methods
    tables[REFLECTION] = ReflectionService(names).methods
    handlers = [service_handler(service, methods) for service, methods in tables.items()]
    endless = {path for table in tables.items() for path in endless_paths(*table)}
    guard = Guard(most=most_calls, endless=endless)
    server = grpc.aio.server(handlers=handlers, interceptors=[guard], options=_OPTIONS)
    return AgentServer(server, guard)


class AgentServer:
    """gRPC's server and the guard of its calls."""

    def __init__(self, server: grpc.aio.Server, guard: Guard) -> None:
        self._server = server
        self._guard = guard

    async def start(self, socket: Path) -> None:
        """Bind and serve: whoever can connect finds a ready agent.

        Only root can connect (mode 0600). A socket that an agent before left
        behind is replaced.
        """
        socket.unlink(missing_ok=True)  # noqa: ASYNC240 - one name in a tmpfs
        with _umask(0o177):
            self._server.add_insecure_port(f"unix:{socket}")
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Take no more calls; streams and waits end now, others within `grace` seconds."""
        self._guard.stop()
        await self._server.stop(grace)


def _tables(
    guest: Guest, managers: Managers, hotplug_timeout: float
) -> dict[ServiceDescriptor, Methods]:
    devices = DevicesService(managers.devices, timeout=hotplug_timeout)
    storages = StoragesService(
        managers.storages, managers.storage_operations, timeout=hotplug_timeout
    )
    network = NetworkService(managers.network, timeout=hotplug_timeout)
    return {
        _service(sandbox_pb2.DESCRIPTOR): SandboxService(guest).methods,
        _service(devices_pb2.DESCRIPTOR): devices.methods,
        _service(storages_pb2.DESCRIPTOR): storages.methods,
        _service(containers_pb2.DESCRIPTOR): {
            **ContainersService(managers.containers).methods,
            **UsageMethods(managers.usage).methods,
        },
        _service(processes_pb2.DESCRIPTOR): {
            **ProcessesService(managers.processes).methods,
            **ListingMethods(managers.listing).methods,
            **LogMethods(managers.logs).methods,
        },
        _service(network_pb2.DESCRIPTOR): network.methods,
        _service(files_pb2.DESCRIPTOR): FilesService(managers.files).methods,
        _service(sockets_pb2.DESCRIPTOR): SocketsService(managers.sockets).methods,
    }


def _service(file: FileDescriptor) -> ServiceDescriptor:
    """The one service that each of our .proto files holds."""
    (service,) = file.services_by_name.values()
    return service


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
