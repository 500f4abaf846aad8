"""What the services need of the agent's managers; contract tests give fakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from agent.core.life import Until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from agent.core.copies import Copied, CopyFrame, CopyInRules, CopyOutRules
    from agent.core.deadlines import Deadline
    from agent.core.holding import Holder
    from agent.core.kinds import Mode
    from agent.core.model import (
        AttachedDevice,
        ContainerRequest,
        ContainerStatus,
        ContainerUpdate,
        Detached,
        DeviceRequest,
        Event,
        ExecRequest,
        MountedStorage,
        OutputChunk,
        OutputGap,
        ProcessExit,
        ProcessRef,
        StorageRequest,
        Stream,
        WindowSize,
    )
    from agent.core.network import (
        DnsState,
        DnsWish,
        Family,
        FirewallFormat,
        InterfaceState,
        InterfaceWish,
        NeighborsState,
        NeighborsWish,
        RoutesState,
        RoutesWish,
    )
    from agent.core.usage import ContainerStats, ProcessInfo
    from agent.handlers.guest.files import FileRoot
    from agent.handlers.guest.resources import ResourcesOnline, ResourcesRequest
    from agent.handlers.runtime.logs.outputlog import LogPiece, LogQuery
    from agent.handlers.sockets.addresses import SocketPlace
    from agent.handlers.sockets.manager import Listener
    from agent.handlers.sockets.streams import SocketStream
    from agent.handlers.storage.growing import ResizedStorage
    from agent.handlers.storage.health import StorageStats


class DeviceManager(Protocol):
    """agent.handlers.devices.manager"""

    async def attach(self, request: DeviceRequest) -> AttachedDevice: ...
    async def prepare_detach(self, device_id: str) -> None: ...
    async def cancel_detach(self, device_id: str) -> None: ...
    async def detach(self, device_id: str, timeout: float | None) -> None: ...
    async def forget(self, device_id: str) -> None: ...
    async def release_device(self, device_id: str) -> None: ...
    async def reconfigure(
        self, device_id: str, mode: Mode, timeout: float | None
    ) -> AttachedDevice: ...
    async def holders(self, device_id: str) -> tuple[Holder, ...]: ...
    def get(self, device_id: str) -> AttachedDevice: ...
    def list(self) -> tuple[AttachedDevice, ...]: ...


class StorageManager(Protocol):
    """agent.handlers.storage.manager"""

    async def attach(self, request: StorageRequest) -> MountedStorage: ...
    async def detach(self, storage_id: str, timeout: float | None) -> Detached: ...
    async def refresh(self, storage_id: str, timeout: float | None) -> bool: ...
    def get(self, storage_id: str) -> MountedStorage: ...
    def list(self) -> tuple[MountedStorage, ...]: ...


class StorageOperations(Protocol):
    """agent.handlers.storage.operations"""

    async def stats(self, storage_id: str, deadline: Deadline) -> StorageStats: ...
    async def resize(self, storage_id: str, deadline: Deadline) -> ResizedStorage: ...
    async def trim(self, storage_id: str, deadline: Deadline) -> int: ...
    async def freeze(self, storage_id: str, seconds: float | None, deadline: Deadline) -> None: ...
    async def thaw(self, storage_id: str, deadline: Deadline) -> None: ...
    def frozen(self, storage_id: str) -> bool: ...


class ContainerManager(Protocol):
    """agent.handlers.runtime.containers"""

    async def create(self, request: ContainerRequest) -> ContainerStatus: ...
    async def start(self, container_id: str, timeout: float | None) -> ContainerStatus: ...
    async def pause(self, container_id: str, timeout: float | None) -> ContainerStatus: ...
    async def resume(self, container_id: str, timeout: float | None) -> ContainerStatus: ...
    async def update(self, change: ContainerUpdate) -> ContainerStatus: ...
    async def remove(self, container_id: str, grace: float, timeout: float | None) -> None: ...
    def list(self) -> tuple[ContainerStatus, ...]: ...


class UsageManager(Protocol):
    """agent.handlers.runtime.usage.usage"""

    async def stats(self, container_id: str) -> ContainerStats: ...
    def watch(
        self, ids: Sequence[str], interval: float
    ) -> AsyncGenerator[ContainerStats, None]: ...


class ListingManager(Protocol):
    """agent.handlers.runtime.usage.listing"""

    async def list(self, container_id: str, timeout: float | None) -> tuple[ProcessInfo, ...]: ...


class LogManager(Protocol):
    """agent.handlers.runtime.logs.outputlog"""

    def logs(self, ref: ProcessRef, query: LogQuery) -> AsyncGenerator[LogPiece, None]: ...


class ProcessManager(Protocol):
    """agent.handlers.runtime.processes"""

    async def exec(self, request: ExecRequest) -> int: ...
    async def signal(self, ref: ProcessRef, signal: int, *, all_processes: bool) -> None: ...
    async def wait(self, ref: ProcessRef) -> ProcessExit: ...
    async def resize(self, ref: ProcessRef, size: WindowSize) -> None: ...
    def output(
        self,
        ref: ProcessRef,
        offsets: Mapping[Stream, int],
        *,
        until: Until = Until.EXIT,
        may_miss: bool = False,
        reader: str = "",
    ) -> AsyncGenerator[OutputChunk | OutputGap, None]: ...
    def stderr_tail(self, ref: ProcessRef, count: int) -> bytes: ...
    def acknowledge(
        self, ref: ProcessRef, stream: Stream, offset: int, reader: str = ""
    ) -> None: ...
    async def write_input(self, ref: ProcessRef, offset: int, data: bytes) -> int: ...
    async def close_input(self, ref: ProcessRef, offset: int) -> None: ...
    def has_terminal(self, ref: ProcessRef) -> bool: ...
    def input_offset(self, ref: ProcessRef) -> int: ...


class FileManager(Protocol):
    """agent.handlers.guest.files"""

    async def copy_in(
        self, root: FileRoot, path: str, rules: CopyInRules, batches: AsyncIterator[Sequence[bytes]]
    ) -> Copied: ...
    def copy_out(
        self, root: FileRoot, path: str, rules: CopyOutRules
    ) -> AsyncGenerator[CopyFrame, None]: ...


class SocketManager(Protocol):
    """agent.handlers.sockets.manager"""

    def connected(self, place: SocketPlace) -> AbstractAsyncContextManager[SocketStream]: ...
    def listening(self, place: SocketPlace) -> AbstractAsyncContextManager[Listener]: ...
    def taken(self, number: int) -> AbstractAsyncContextManager[SocketStream]: ...


class NetworkManager(Protocol):
    """agent.handlers.network.manager"""

    async def apply_interfaces(
        self, wishes: tuple[InterfaceWish, ...], timeout: float | None
    ) -> tuple[InterfaceState, ...]: ...
    async def remove_interface(self, name: str, timeout: float | None) -> None: ...
    async def interfaces(self, timeout: float | None) -> tuple[InterfaceState, ...]: ...
    async def apply_routes(self, wish: RoutesWish, timeout: float | None) -> RoutesState: ...
    async def routes(
        self, *, table: int, family: Family | None, timeout: float | None
    ) -> RoutesState: ...
    async def apply_neighbors(
        self, wish: NeighborsWish, timeout: float | None
    ) -> NeighborsState: ...
    async def neighbors(self, timeout: float | None) -> NeighborsState: ...
    async def apply_dns(self, wish: DnsWish, timeout: float | None) -> DnsState: ...
    def dns_state(self) -> DnsState: ...
    async def apply_sysctls(
        self, values: Mapping[str, str], timeout: float | None
    ) -> tuple[Mapping[str, str], Mapping[str, str]]: ...
    async def firewall(
        self,
        format: FirewallFormat | None,  # noqa: A002 - the protocol's word
        timeout: float | None,
    ) -> tuple[FirewallFormat, bytes]: ...
    async def set_firewall(
        self,
        format: FirewallFormat,  # noqa: A002 - the protocol's word
        rules: bytes,
        timeout: float | None,
    ) -> tuple[FirewallFormat, bytes]: ...


class ResourceManager(Protocol):
    """agent.handlers.guest.resources"""

    default_timeout: float

    async def online(self, request: ResourcesRequest) -> ResourcesOnline: ...


class EventSource(Protocol):
    """agent.core.events"""

    @property
    def oldest(self) -> int: ...
    def publish(
        self, kind: str, subject: str, details: Mapping[str, str] | None = None
    ) -> Event: ...
    def watch(self, after: int | None = None) -> AsyncIterator[Event]: ...
