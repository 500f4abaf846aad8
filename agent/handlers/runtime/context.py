"""What containers are made with; `agent/__main__.py` puts it together, tests with fakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agent.handlers.runtime.cgroup import Cgroup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from agent.core.deadlines import Deadline
    from agent.core.exits import ExitWatcher
    from agent.core.life import OutOfMemory, PressureThreshold
    from agent.core.model import AttachedDevice, MountedStorage
    from agent.core.network import DnsState, LendingOrder
    from agent.core.roots import Roots
    from agent.handlers.runtime.bundle import Files
    from agent.handlers.runtime.grants import PlacedNode
    from agent.handlers.runtime.hooks import GuestHooks
    from agent.handlers.runtime.nodes import Place
    from agent.handlers.runtime.runtime import Runtime
    from agent.handlers.runtime.spec.support import Support
    from agent.handlers.runtime.streams.streams import StreamHome

LAYER_SIZE = 256 << 20
"""Bytes that a container may write over its root, in memory (`writable_layer`)."""


class Devices(Protocol):
    """What is needed of `handlers.devices.manager.DeviceManager`."""

    def hold(self, device_id: str, user: str) -> AttachedDevice: ...
    def release(self, device_id: str, user: str) -> None: ...


class Storages(Protocol):
    """What is needed of `handlers.storage.manager.StorageManager`."""

    async def awaited(self, storage_id: str, timeout: float | None = None) -> None: ...
    def acquire(self, storage_id: str, container_id: str) -> MountedStorage: ...
    def release(self, storage_id: str, container_id: str) -> None: ...
    def keep_users(self, containers: Collection[str]) -> None: ...


class State(Protocol):
    """What is needed of `core.state.StateStore`."""

    def save(self, kind: str, key: str, data: dict[str, Any]) -> None: ...
    def delete(self, kind: str, key: str) -> None: ...
    def load_all(self, kind: str) -> dict[str, dict[str, Any]]: ...


class Events(Protocol):
    """What is needed of `core.events.EventLog`."""

    def publish(
        self, kind: str, subject: str, details: Mapping[str, str] | None = None
    ) -> object: ...


class ExclusiveCpus(Protocol):
    """What is needed of `exclusive.ExclusiveCpus`; granting again re-asserts the partition."""

    async def grant(self, container_id: str, cgroup: str, count: int) -> tuple[int, ...]: ...
    async def release(self, container_id: str) -> None: ...
    def of(self, container_id: str) -> tuple[int, ...]: ...
    async def restore(self, granted: Mapping[str, tuple[str, int]]) -> None: ...


class Network(Protocol):
    """What is needed of `handlers.network.manager.NetworkManager`.

    `dns` is what the sandbox's resolv.conf, hosts and hostname say, None before anybody
    asked for that. See `handlers.network.lending` for the others.
    """

    @property
    def dns(self) -> DnsState | None: ...
    async def lend(self, order: LendingOrder, deadline: Deadline) -> None: ...
    async def take_back(
        self, container_id: str, deadline: Deadline, *, undone: bool = False
    ) -> None: ...


class Pressure(Protocol):
    """What is needed of `pressure.PressureWatch`; `subject` is the container's id."""

    def set(self, subject: str, cgroup: str, thresholds: Sequence[PressureThreshold]) -> None: ...
    def drop(self, subject: str) -> None: ...


class OomKills(Protocol):
    """What is needed of `oom.OomWatch`."""

    def track(self, container_id: str, cgroup: str) -> None: ...
    def untrack(self, container_id: str) -> None: ...
    def kill_of(self, pid: int, cgroup: str) -> OutOfMemory | None: ...


class SharedNamespaces(Protocol):
    """What is needed of `holder.NamespaceHolder`: paths that crun can open while the block
    runs, by the namespace's kind. Raises WRONG_STATE."""

    def paths(self, kinds: Sequence[str]) -> AbstractContextManager[Mapping[str, str]]: ...


class Nodes(Protocol):
    """What is needed of `nodes.ContainerNodes`."""

    def check(self, place: Place) -> None: ...
    async def change(
        self,
        place: Place,
        *,
        remove: Sequence[PlacedNode],
        make: Sequence[PlacedNode],
        deadline: Deadline,
    ) -> None: ...


class Group(Protocol):
    """What is needed of `cgroup.Cgroup`."""

    def limits(self) -> dict[str, str]: ...
    def set_limits(self, wanted: Mapping[str, str]) -> None: ...
    def bound(self, unified: Mapping[str, str]) -> None: ...
    def members(self) -> tuple[int, ...]: ...
    @property
    def frozen(self) -> bool: ...
    async def freeze(self, deadline: Deadline) -> None: ...
    async def thaw(self, deadline: Deadline) -> None: ...
    def thaw_all(self) -> None: ...
    def kill(self) -> None: ...
    async def wait_empty(self, deadline: Deadline) -> None: ...
    def remove(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeContext:
    """The mechanisms; `parent` tells the cgroup of the sandbox, `/pods/SANDBOX`,
    `support` what runtime and kernel can do, `guest_hooks` those of Sandbox.Create."""

    roots: Roots
    runtime: Runtime
    exits: ExitWatcher
    state: State
    events: Events
    files: Files
    devices: Devices
    storages: Storages
    exclusive: ExclusiveCpus
    network: Network
    nodes: Nodes
    pressure: Pressure
    oom: OomKills
    namespaces: SharedNamespaces
    support: Callable[[], Awaitable[Support]]
    guest_hooks: Callable[[], GuestHooks | None]
    streams: StreamHome
    parent: Callable[[], str]
    layer_size: int = LAYER_SIZE
    cgroup: Callable[[Roots, str], Group] = Cgroup
