"""Storages: what the operations on mounted ones answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.handlers.storage.health import Health
from innkeeper.v1 import storages_pb2 as pb

if TYPE_CHECKING:
    from agent.core.model import Detached
    from agent.handlers.storage.growing import ResizedStorage
    from agent.handlers.storage.health import StorageStats

_HEALTH = {
    Health.GOOD: pb.STORAGE_HEALTH_GOOD,
    Health.READ_ONLY: pb.STORAGE_HEALTH_READ_ONLY,
    Health.STALLED: pb.STORAGE_HEALTH_STALLED,
    Health.LOST: pb.STORAGE_HEALTH_LOST,
}


def storage_stats(stats: StorageStats) -> pb.StorageStatsResponse:
    return pb.StorageStatsResponse(
        size=stats.size,
        available=stats.available,
        inodes=stats.inodes,
        inodes_free=stats.inodes_free,
        used=stats.used,
        inodes_used=stats.inodes_used,
        health=_HEALTH[stats.health],
        detail=stats.detail,
    )


def resized_storage(resized: ResizedStorage) -> pb.ResizeStorageResponse:
    return pb.ResizeStorageResponse(
        size=resized.size, before=resized.before, device_size=resized.device_size
    )


def detached_storage(detached: Detached) -> pb.DetachStorageResponse:
    return pb.DetachStorageResponse(lazily=detached.lazily, left=detached.left)
