"""How a storage is written to the state directory, and read back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from agent.core import sources
from agent.core.model import FsGroup, FsGroupPolicy, MountedStorage, StorageRequest
from agent.handlers.storage.mountpoints import MountPoint
from agent.handlers.storage.pieces import Piece, PieceKind


class Phase(StrEnum):
    """MOUNTING is written before anything is made: what is left can be found after a crash."""

    MOUNTING = "mounting"
    MOUNTED = "mounted"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRecord:
    """`order` counts attachments; `mount_id` is mountinfo's, 0 before there is a mount."""

    storage: MountedStorage
    point: MountPoint
    phase: Phase
    order: int
    mount_id: int = 0
    pieces: tuple[Piece, ...] = ()


def to_data(record: StorageRecord) -> dict[str, Any]:
    storage = record.storage
    return {
        "phase": record.phase.value,
        "order": record.order,
        "mount_id": record.mount_id,
        "point": asdict(record.point),
        "pieces": [{**asdict(piece), "kind": piece.kind.value} for piece in record.pieces],
        "users": sorted(storage.users),
        "fs_type": storage.fs_type,
        "origin": storage.origin,
        "request": _request_data(storage.request),
    }


def from_data(data: dict[str, Any]) -> StorageRecord:
    """Raises KeyError, TypeError, ValueError or AgentError on another shape."""
    point = MountPoint(**data["point"])
    storage = MountedStorage(
        request=_request(data["request"]),
        mount_point=point.path,
        users=frozenset(data["users"]),
        fs_type=data["fs_type"],
        origin=data["origin"],
    )
    pieces = [Piece(**{**each, "kind": PieceKind(each["kind"])}) for each in data["pieces"]]
    return StorageRecord(
        storage=storage,
        point=point,
        phase=Phase(data["phase"]),
        order=data["order"],
        mount_id=data["mount_id"],
        pieces=tuple(pieces),
    )


def _request_data(request: StorageRequest) -> dict[str, Any]:
    group = request.fs_group
    return {
        "id": request.id,
        "source": sources.to_data(request.source),
        "mount_point": request.mount_point,
        "read_only": request.read_only,
        "options": list(request.options),
        "fs_group": [group.gid, group.policy.value] if group else None,
        "timeout": request.timeout,
    }


def _request(data: dict[str, Any]) -> StorageRequest:
    group = data["fs_group"]
    return StorageRequest(
        id=data["id"],
        source=sources.from_data(data["source"]),
        mount_point=data["mount_point"],
        read_only=data["read_only"],
        options=tuple(data["options"]),
        fs_group=FsGroup(gid=group[0], policy=FsGroupPolicy(group[1])) if group else None,
        timeout=data["timeout"],
    )
