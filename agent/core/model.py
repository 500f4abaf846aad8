"""The agent's words: requests and results as frozen values.

Protobuf is turned into these at the border (`server/convert/`) and nowhere
else; handlers take and return them. Sizes are bytes, times are seconds. A request
that is repeated with another timeout is still the same request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from agent.core.life import USUAL_STREAMS

if TYPE_CHECKING:
    from agent.core.addresses import Address
    from agent.core.kinds import Expectation, Info
    from agent.core.life import EndCause, OutOfMemory, PressureThreshold, StreamOptions
    from agent.core.network import InterfaceGrant
    from agent.core.pci import PciPath
    from agent.core.sources import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTuple:
    """A device as the host knows it: ("pci", "0000:3b:02.1"), ("path", "/dev/vfio/45")."""

    type: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """Devices.Attach: make the device at this address usable, within `timeout`."""

    id: str
    address: Address
    kind: Expectation
    host: tuple[HostTuple, ...] = ()
    load_modules: tuple[str, ...] = ()
    timeout: float | None = field(default=None, compare=False)


class NodeType(StrEnum):
    BLOCK = "b"
    CHAR = "c"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A node in the guest's /dev."""

    path: str
    type: NodeType
    major: int
    minor: int


class DeviceState(StrEnum):
    """Where a device of the table is in its life."""

    ATTACHED = "attached"
    LEAVING = "leaving"
    """Prepared for unplug: no new users, its removal is expected."""
    VANISHED = "vanished"
    """Gone without being asked for; it stays in the table until it is detached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedDevice:
    """A device that was made usable; `users` are the storages and containers that hold it.

    `pci_path` and `bdf` are those of the function that it is, or is behind of; None and
    "" where there is none. `bus_address` is its own where it is not a function itself.
    """

    request: DeviceRequest
    pci_path: PciPath | None
    bdf: str
    sysfs_path: str
    driver: str
    numa_node: int | None
    iommu_group: int | None
    nodes: tuple[DeviceNode, ...]
    info: Info
    pci_id: str = ""
    pci_class: str = ""
    bus_address: str = ""
    state: DeviceState = DeviceState.ATTACHED
    users: frozenset[str] = frozenset()


class FsGroupPolicy(StrEnum):
    """When a tree is gone through for its group."""

    ALWAYS = "always"
    ON_ROOT_MISMATCH = "on-root-mismatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class FsGroup:
    """The group that may use a storage's whole tree."""

    gid: int
    policy: FsGroupPolicy = FsGroupPolicy.ALWAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRequest:
    """Storages.Attach. Without a mount point the agent chooses one below its run directory."""

    id: str
    source: Source
    mount_point: str | None = None
    read_only: bool = False
    options: tuple[str, ...] = ()
    fs_group: FsGroup | None = None
    timeout: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedStorage:
    """A storage that is mounted now.

    `users` are the containers that hold it, `used_by` the storages that build on it;
    `fs_type` and `origin` are mountinfo's.
    """

    request: StorageRequest
    mount_point: str
    users: frozenset[str] = frozenset()
    used_by: frozenset[str] = frozenset()
    fs_type: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """How a storage went: what could not be taken away is in `left`, a line each."""

    lazily: bool = False
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageMount:
    """A storage as a container sees it."""

    storage_id: str
    destination: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrant:
    """A device that a container may use.

    `node` picks one of the device's nodes by its path in the guest. Without
    `permissions` (letters of "rwm") it is what the specification's rules allow for
    an entry that the grant claims, and all where there are none.
    """

    device_id: str
    container_path: str | None = None
    permissions: str = ""
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RootStorage:
    """The container's root is a mounted storage."""

    storage_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPath:
    """The container's root is a directory of the guest."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """Containers.Create. `spec` is the OCI runtime specification as JSON bytes."""

    id: str
    spec: bytes
    rootfs: RootStorage | RootPath
    writable_layer: bool = False
    storages: tuple[StorageMount, ...] = ()
    devices: tuple[DeviceGrant, ...] = ()
    exclusive_cpus: int = 0
    interfaces: tuple[InterfaceGrant, ...] = ()
    shared_namespaces: tuple[str, ...] = ()
    streams: StreamOptions = USUAL_STREAMS
    pressure: tuple[PressureThreshold, ...] = ()
    timeout: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUpdate:
    """Containers.Update; what is None stays as it is.

    `resources` is OCI's linux.resources as JSON bytes; `devices` and
    `exclusive_cpus` are all that the container shall have.
    """

    id: str
    resources: bytes | None = None
    devices: tuple[DeviceGrant, ...] | None = None
    exclusive_cpus: int | None = None
    pressure: tuple[PressureThreshold, ...] | None = None
    timeout: float | None = field(default=None, compare=False)


class ContainerState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus:
    """A container now; `devices` have the permissions that hold."""

    id: str
    state: ContainerState
    pid: int
    exit: ProcessExit | None = None
    devices: tuple[DeviceGrant, ...] = ()
    exclusive_cpus: tuple[int, ...] = ()
    created: float = 0.0
    started: float = 0.0
    arguments: tuple[str, ...] = ()
    cgroup: str = ""
    terminal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """Processes.Exec. `process` is OCI's process object as JSON bytes; `more_environment`
    ("NAME=value") is added to what that says or inherits."""

    container_id: str
    exec_id: str
    process: bytes
    more_environment: tuple[str, ...] = ()
    streams: StreamOptions = USUAL_STREAMS
    timeout: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRef:
    """A process by name; an empty exec id means the container's own first process."""

    container_id: str
    exec_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """How a process ended: `code` is its status, or 128 plus the signal that ended it.

    `why` is what the agent did, when it did; `stdout_bytes` and `stderr_bytes` are how much
    there was when it ended, None until that is known.
    """

    code: int
    signal: int = 0
    at: float = 0.0
    core_dumped: bool = False
    cause: EndCause | None = None
    why: str = ""
    out_of_memory: OutOfMemory | None = None
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None


class Stream(StrEnum):
    STDIN = "stdin"
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChunk:
    """Bytes of one stream from an absolute offset; `end` marks the stream's end."""

    stream: Stream
    offset: int
    data: bytes
    end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGap:
    """Bytes `start` to `end` (not included) were dropped before this reader had them."""

    stream: Stream
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSize:
    rows: int
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One numbered event of Sandbox.Watch."""

    sequence: int
    at: float
    kind: str
    subject: str
    details: dict[str, str] = field(default_factory=dict)
