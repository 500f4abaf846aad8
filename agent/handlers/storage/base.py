"""What a class of storages is.

A class is one file here and one line in the list of `__init__`: it says which
source of a request it serves, holds what the source needs, and makes the plan of
one mount(2). The manager does the rest (mount point, mounting, table, undo).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from agent.core.model import StorageRequest
    from agent.core.roots import Roots
    from agent.handlers.devices.manager import DeviceManager
    from agent.handlers.storage.options import MountOptions

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageContext:
    """What classes may use."""

    devices: DeviceManager
    roots: Roots

    @property
    def selinux(self) -> bool:
        return (self.roots.sys / "fs/selinux/enforce").exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlan:
    """One mount(2), but for its target.

    `transient` are the errnos that may go away by themselves until the deadline; the
    mount is tried again when an event comes on one of the device paths in `near`.
    """

    source: str
    fs_type: str
    options: MountOptions
    transient: frozenset[int] = frozenset()
    near: tuple[str, ...] = ()
    hints: dict[int, str] = field(default_factory=dict)


class StorageClass(ABC, Generic[S]):
    """One class of storages, by the type of `StorageRequest.source`."""

    name: ClassVar[str]
    source: ClassVar[type]

    @abstractmethod
    def hold(self, context: StorageContext, request: StorageRequest, source: S) -> None:
        """Hold what the source needs; called at attach and again after a restart."""

    @abstractmethod
    def release(self, context: StorageContext, request: StorageRequest, source: S) -> None:
        """Take `hold` back; never fails."""

    @abstractmethod
    def plan(self, context: StorageContext, request: StorageRequest, source: S) -> MountPlan:
        """The mount to make. Raises AgentError for a request that cannot be mounted."""
