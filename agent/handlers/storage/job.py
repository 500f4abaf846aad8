"""One attachment of a storage, as its class sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from agent.core.fileops import Location

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.core.deadlines import Deadline
    from agent.core.model import AttachedDevice, StorageRequest
    from agent.core.sources import StorageDirectory
    from agent.core.undo import UndoStack
    from agent.handlers.storage.base import Tools
    from agent.handlers.storage.pieces import Piece

S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where pieces are written down, and how they are taken back."""

    note: Callable[[Piece], None]
    take_back: Callable[[Piece], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[S_co]):
    """`locations` maps the ids of the storages that it builds on to their mount points."""

    request: StorageRequest
    source: S_co
    deadline: Deadline
    tools: Tools
    undo: UndoStack
    ledger: Ledger
    locations: dict[str, str]

    async def make(self, piece: Piece, how: Callable[[], Awaitable[T]]) -> T:
        """Make a piece, written down before; taken back when the attachment fails."""
        self.ledger.note(piece)
        self.undo.push(f"take back the {piece}", lambda: self.ledger.take_back(piece))
        return await how()

    def device(self, device_id: str) -> AttachedDevice:
        """One of the devices that the storage holds."""
        return self.tools.devices.get(device_id)

    def location(self, directory: StorageDirectory) -> Location:
        """A directory in one of the storages that it builds on."""
        return Location(root=self.locations[directory.storage_id], path=directory.path)
