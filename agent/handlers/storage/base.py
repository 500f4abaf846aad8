"""What a class of storages is.

A class is one file here and one line in the list of `__init__`: it says which
source of a request it serves, what the source needs to be there, makes what must be
made before (through the job), and returns the one mount. The manager does the
rest: mount point, mounting, ownership, table, graph, undo.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.core.deadlines import Deadline
    from agent.core.fileops import FileWorkers, MountCall
    from agent.core.hotplug import HotplugBoard
    from agent.core.model import StorageRequest
    from agent.core.roots import Roots
    from agent.handlers.devices.manager import DeviceManager
    from agent.handlers.storage.job import Job

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What classes, and those who take pieces back, may use."""

    devices: DeviceManager
    roots: Roots
    files: FileWorkers
    board: HotplugBoard

    @property
    def selinux(self) -> bool:
        return (self.roots.sys / "fs/selinux/enforce").exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlan:
    """The mount of a storage.

    `transient` are the errnos that may go away by themselves until the deadline; the
    mount is tried again when an event comes on one of the device paths in `near`
    (any, when there are none). `others` are tried in their order when the kernel says
    EPROTONOSUPPORT to the one before: a server's versions. `hints` are by errno.
    `on_file`: what is mounted is no directory.
    """

    call: MountCall
    others: tuple[MountCall, ...] = ()
    transient: frozenset[int] = frozenset()
    near: tuple[str, ...] = ()
    hints: dict[int, str] = field(default_factory=dict)
    on_file: bool = False


class Service(Protocol):
    """What goes on in a storage while it is attached; told to stop by cancellation."""

    async def fill(self, deadline: Deadline) -> bool:
        """Bring the storage up to date; whether anything changed. Once before Attach answers."""

    async def run(self) -> None:
        """Fill again whenever there is a reason, until cancelled."""


class StorageClass(ABC, Generic[S]):
    """One class of storages, by the type of `StorageRequest.source`."""

    name: ClassVar[str]
    source: ClassVar[type]

    def devices(self, source: S) -> tuple[str, ...]:  # noqa: ARG002 - for those who need some
        """Ids of attached devices, held as long as the storage is."""
        return ()

    def storages(self, source: S) -> tuple[str, ...]:  # noqa: ARG002 - for those who need some
        """Ids of the storages that it builds on, which can't be detached before it."""
        return ()

    @abstractmethod
    async def prepare(self, job: Job[S]) -> MountPlan:
        """Make what the mount needs, with `job.make`, and say what to mount.

        Raises AgentError for a request that can't be served.
        """

    def recursive(self, request: StorageRequest) -> bool:  # noqa: ARG002 - for those who are
        """Whether mounts below its root came with it: then they go with it."""
        return False

    def service(self, job: ServiceSetting, source: S) -> Service | None:  # noqa: ARG002
        """What goes on in it while it is attached."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSetting:
    """What a service knows; `locations` maps storage ids to their mount points.

    `told` is to be called when the content was switched, with the details of the event.
    """

    tools: Tools
    request: StorageRequest
    mount_point: str
    locations: dict[str, str]
    told: Callable[[Mapping[str, str]], None]
