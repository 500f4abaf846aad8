"""innkeeper.v1.Storages"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.names import check_id
from agent.server.convert import fields
from agent.server.convert.storages import attached_storage, storage_request
from agent.server.routing import Methods, Unary
from innkeeper.v1 import storages_pb2 as pb

if TYPE_CHECKING:
    from agent.server.calls import Call
    from agent.server.facades import StorageManager


class StoragesService:
    """Converts, calls the manager, converts back."""

    def __init__(self, manager: StorageManager, *, timeout: float) -> None:
        """`timeout` is that of a request that asks for none."""
        self._manager = manager
        self._timeout = timeout

    @property
    def methods(self) -> Methods:
        return {
            "Attach": Unary(self.attach),
            "Detach": Unary(self.detach),
            "Get": Unary(self.get),
            "List": Unary(self.list),
        }

    async def attach(self, request: pb.AttachStorageRequest, call: Call) -> pb.AttachedStorage:
        if not request.HasField("storage"):
            raise invalid("storage: what to mount is not set", field="storage")
        asked = storage_request(request.storage)
        timeout = call.within(asked.timeout, default=self._timeout)
        mounted = await self._manager.attach(dataclasses.replace(asked, timeout=timeout))
        return attached_storage(mounted)

    async def detach(
        self, request: pb.DetachStorageRequest, call: Call
    ) -> pb.DetachStorageResponse:
        storage_id = check_id("storage", request.id)
        timeout = fields.seconds(request.timeout_seconds, "timeout_seconds")
        await self._manager.detach(storage_id, call.within(timeout, default=self._timeout))
        return pb.DetachStorageResponse()

    async def get(self, request: pb.GetStorageRequest, _call: Call) -> pb.AttachedStorage:
        return attached_storage(self._manager.get(check_id("storage", request.id)))

    async def list(self, _request: pb.ListStoragesRequest, _call: Call) -> pb.ListStoragesResponse:
        storages = sorted(self._manager.list(), key=lambda mounted: mounted.request.id)
        return pb.ListStoragesResponse(storages=[attached_storage(one) for one in storages])
