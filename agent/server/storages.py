"""innkeeper.v1.Storages"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from agent.core.deadlines import Deadline
from agent.core.errors import invalid
from agent.core.names import check_id
from agent.server.convert import fields
from agent.server.convert.storage_operations import (
    detached_storage,
    resized_storage,
    storage_stats,
)
from agent.server.convert.storages import attached_storage, storage_request
from agent.server.limits import LONGEST_TIMEOUT
from agent.server.routing import Methods, Unary
from innkeeper.v1 import storages_pb2 as pb

if TYPE_CHECKING:
    from agent.core.model import MountedStorage
    from agent.server.calls import Call
    from agent.server.facades import StorageManager, StorageOperations

STATS_SECONDS: Final = 5.0
"""A file system that takes longer to tell its size counts as stalled."""

RESIZE_SECONDS: Final = 60.0
"""For a resize whose call has no deadline."""

TRIM_SECONDS: Final = 300.0
"""For a trim whose call has no deadline: a disk may take its time."""


class StoragesService:
    """Converts, calls the manager or the operations, converts back."""

    def __init__(
        self, manager: StorageManager, operations: StorageOperations, *, timeout: float
    ) -> None:
        """`timeout` is that of a request that asks for none."""
        self._manager = manager
        self._operations = operations
        self._timeout = timeout

    @property
    def methods(self) -> Methods:
        return {
            "Attach": Unary(self.attach),
            "Detach": Unary(self.detach),
            "Get": Unary(self.get),
            "List": Unary(self.list),
            "Stats": Unary(self.stats),
            "Resize": Unary(self.resize),
            "Trim": Unary(self.trim),
            "Freeze": Unary(self.freeze),
            "Thaw": Unary(self.thaw),
            "Refresh": Unary(self.refresh),
        }

    async def attach(self, request: pb.AttachStorageRequest, call: Call) -> pb.AttachedStorage:
        if not request.HasField("storage"):
            raise invalid("storage: what to mount is not set", field="storage")
        asked = storage_request(request.storage)
        timeout = call.within(asked.timeout, default=self._timeout)
        mounted = await self._manager.attach(dataclasses.replace(asked, timeout=timeout))
        return self._shown(mounted)

    async def detach(
        self, request: pb.DetachStorageRequest, call: Call
    ) -> pb.DetachStorageResponse:
        storage_id = check_id("storage", request.id)
        timeout = fields.seconds(request.timeout_seconds, "timeout_seconds")
        timeout = call.within(timeout, default=self._timeout)
        return detached_storage(await self._manager.detach(storage_id, timeout))

    async def get(self, request: pb.GetStorageRequest, _call: Call) -> pb.AttachedStorage:
        return self._shown(self._manager.get(check_id("storage", request.id)))

    async def list(self, _request: pb.ListStoragesRequest, _call: Call) -> pb.ListStoragesResponse:
        storages = sorted(self._manager.list(), key=lambda mounted: mounted.request.id)
        return pb.ListStoragesResponse(storages=[self._shown(one) for one in storages])

    async def stats(self, request: pb.StorageStatsRequest, call: Call) -> pb.StorageStatsResponse:
        storage_id = check_id("storage", request.id)
        deadline = _soonest(call, STATS_SECONDS)
        return storage_stats(await self._operations.stats(storage_id, deadline))

    async def resize(
        self, request: pb.ResizeStorageRequest, call: Call
    ) -> pb.ResizeStorageResponse:
        storage_id = check_id("storage", request.id)
        deadline = _as_the_call_says(call, RESIZE_SECONDS)
        return resized_storage(await self._operations.resize(storage_id, deadline))

    async def trim(self, request: pb.TrimStorageRequest, call: Call) -> pb.TrimStorageResponse:
        storage_id = check_id("storage", request.id)
        deadline = _as_the_call_says(call, TRIM_SECONDS)
        return pb.TrimStorageResponse(trimmed=await self._operations.trim(storage_id, deadline))

    async def freeze(
        self, request: pb.FreezeStorageRequest, call: Call
    ) -> pb.FreezeStorageResponse:
        storage_id = check_id("storage", request.id)
        lasting = fields.seconds(request.timeout_seconds, "timeout_seconds")
        await self._operations.freeze(storage_id, lasting, _soonest(call, self._timeout))
        return pb.FreezeStorageResponse()

    async def thaw(self, request: pb.ThawStorageRequest, call: Call) -> pb.ThawStorageResponse:
        storage_id = check_id("storage", request.id)
        await self._operations.thaw(storage_id, _soonest(call, self._timeout))
        return pb.ThawStorageResponse()

    async def refresh(
        self, request: pb.RefreshStorageRequest, call: Call
    ) -> pb.RefreshStorageResponse:
        storage_id = check_id("storage", request.id)
        timeout = call.within(None, default=self._timeout)
        return pb.RefreshStorageResponse(changed=await self._manager.refresh(storage_id, timeout))

    def _shown(self, mounted: MountedStorage) -> pb.AttachedStorage:
        frozen = self._operations.frozen(mounted.request.id)
        return attached_storage(mounted, frozen=frozen)


def _soonest(call: Call, seconds: float) -> Deadline:
    """In so many seconds, or when the call ends."""
    left = call.time_left()
    return Deadline.after(seconds if left is None else min(left, seconds))


def _as_the_call_says(call: Call, seconds: float) -> Deadline:
    """When the call ends; in so many seconds when it never does."""
    left = call.time_left()
    return Deadline.after(seconds if left is None else min(left, LONGEST_TIMEOUT))
