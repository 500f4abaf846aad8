"""How a storage is written to the state directory, and read back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from agent.core.model import BlockSource, MountedStorage, StorageRequest
from agent.handlers.storage.mountpoints import MountPoint


class Phase(StrEnum):
    """MOUNTING is written before mount(2): what it may have left can be found after a crash."""

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


def to_data(record: StorageRecord) -> dict[str, Any]:
    request = record.storage.request
    return {
        "phase": record.phase.value,
        "order": record.order,
        "mount_id": record.mount_id,
        "point": asdict(record.point),
        "users": sorted(record.storage.users),
        "request": {
            "id": request.id,
            "source": {"class": "block", **asdict(request.source)},
            "mount_point": request.mount_point,
            "read_only": request.read_only,
            "options": list(request.options),
            "timeout": request.timeout,
        },
    }


def from_data(data: dict[str, Any]) -> StorageRecord:
    """Raises KeyError, TypeError or ValueError on another shape."""
    request = data["request"]
    source = {name: value for name, value in request["source"].items() if name != "class"}
    point = MountPoint(**data["point"])
    parsed = StorageRequest(
        id=request["id"],
        source=BlockSource(**source),
        mount_point=request["mount_point"],
        read_only=request["read_only"],
        options=tuple(request["options"]),
        timeout=request["timeout"],
    )
    return StorageRecord(
        storage=MountedStorage(
            request=parsed, mount_point=point.path, users=frozenset(data["users"])
        ),
        point=point,
        phase=Phase(data["phase"]),
        order=data["order"],
        mount_id=data["mount_id"],
    )
