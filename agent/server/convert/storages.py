"""Storages: requests and what is mounted."""

from __future__ import annotations

from agent.core.errors import invalid
from agent.core.model import BlockSource, MountedStorage, StorageRequest
from agent.core.names import check_id
from agent.server.convert import fields
from agent.server.routing import not_built
from innkeeper.v1 import storages_pb2

_UNBUILT = ("fs_group",)
_UNBUILT_BLOCK = ("format_if_empty", "partition", "partition_label", "verity")


def storage_request(storage: storages_pb2.Storage) -> StorageRequest:
    """What to mount."""
    fields.refuse_unbuilt(storage, _UNBUILT, "storage")
    return StorageRequest(
        id=check_id("storage", storage.id),
        source=_source(storage),
        mount_point=_mount_point(storage),
        read_only=storage.read_only,
        options=tuple(fields.plain_text(word, "storage.options") for word in storage.options),
        timeout=fields.seconds(storage.timeout_seconds, "storage.timeout_seconds"),
    )


def _mount_point(storage: storages_pb2.Storage) -> str | None:
    if not storage.mount_point:
        return None
    return fields.absolute_path(storage.mount_point, "storage.mount_point")


def _source(storage: storages_pb2.Storage) -> BlockSource:
    match fields.choice(storage, "source", "storage"):
        case "block":
            return _block(storage.block)
        case other:
            raise not_built(f"storage: a source of the kind {other}")


def _block(block: storages_pb2.BlockSource) -> BlockSource:
    fields.refuse_unbuilt(block, _UNBUILT_BLOCK, "storage.block")
    if not block.fs_type:
        raise invalid("storage.block.fs_type: a file system is needed", field="fs_type")
    return BlockSource(
        device_id=check_id("device", block.device_id),
        fs_type=fields.plain_text(block.fs_type, "storage.block.fs_type"),
    )


def attached_storage(mounted: MountedStorage) -> storages_pb2.AttachedStorage:
    """A storage that is mounted, as the host gets to know it."""
    request = mounted.request
    return storages_pb2.AttachedStorage(
        storage=storages_pb2.Storage(
            id=request.id,
            mount_point=request.mount_point or "",
            read_only=request.read_only,
            options=request.options,
            timeout_seconds=request.timeout or 0,
            block=storages_pb2.BlockSource(
                device_id=request.source.device_id, fs_type=request.source.fs_type
            ),
        ),
        mount_point=mounted.mount_point,
        users=sorted(mounted.users),
    )
