"""Storages: requests and what is mounted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.model import FsGroup, FsGroupPolicy, MountedStorage, StorageRequest
from agent.core.names import check_id
from agent.server.convert import fields, sources
from innkeeper.v1 import storages_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

_POLICIES = {
    storages_pb2.FS_GROUP_POLICY_UNSPECIFIED: FsGroupPolicy.ALWAYS,
    storages_pb2.FS_GROUP_POLICY_ALWAYS: FsGroupPolicy.ALWAYS,
    storages_pb2.FS_GROUP_POLICY_ON_ROOT_MISMATCH: FsGroupPolicy.ON_ROOT_MISMATCH,
}
# (gid_t) -1 means "leave it" to chown(2).
_NO_GROUP = 0xFFFFFFFF
# The kernel takes 256 bytes of one option, and a page of all where it wants them in one.
_OPTIONS = 1024
_OPTION_TEXT = 64 << 10


def storage_request(storage: storages_pb2.Storage) -> StorageRequest:
    """What to mount."""
    return StorageRequest(
        id=check_id("storage", storage.id),
        source=sources.source(storage, "storage"),
        mount_point=_mount_point(storage),
        read_only=storage.read_only,
        options=_options(storage.options),
        fs_group=_fs_group(storage),
        timeout=fields.seconds(storage.timeout_seconds, "storage.timeout_seconds"),
    )


def _options(words: Sequence[str]) -> tuple[str, ...]:
    """Bounded before anybody looks at each letter, which nothing else waits for then."""
    if len(words) > _OPTIONS or sum(map(len, words)) > _OPTION_TEXT:
        raise invalid(
            f"storage.options: more than {_OPTIONS} words, or than {_OPTION_TEXT} characters",
            field="storage.options",
        )
    return tuple(fields.plain_text(word, "storage.options") for word in words)


def _mount_point(storage: storages_pb2.Storage) -> str | None:
    if not storage.mount_point:
        return None
    return fields.absolute_path(storage.mount_point, "storage.mount_point")


def _fs_group(storage: storages_pb2.Storage) -> FsGroup | None:
    policy = _POLICIES.get(storage.fs_group_policy)
    if policy is None or storage.fs_group == _NO_GROUP:
        raise invalid("storage.fs_group: no such group or policy", field="storage.fs_group")
    return FsGroup(gid=storage.fs_group, policy=policy) if storage.fs_group else None


def attached_storage(
    mounted: MountedStorage, *, frozen: bool = False
) -> storages_pb2.AttachedStorage:
    """A storage that is mounted, as the host gets to know it."""
    request = mounted.request
    group = request.fs_group
    return storages_pb2.AttachedStorage(
        storage=storages_pb2.Storage(
            id=request.id,
            mount_point=request.mount_point or "",
            read_only=request.read_only,
            options=request.options,
            fs_group=group.gid if group else 0,
            fs_group_policy=_as_policy(group),
            timeout_seconds=request.timeout or 0,
            **sources.as_told(request.source),
        ),
        mount_point=mounted.mount_point,
        users=sorted(mounted.users),
        used_by=sorted(mounted.used_by),
        fs_type=mounted.fs_type,
        source=mounted.origin,
        frozen=frozen,
    )


def _as_policy(group: FsGroup | None) -> storages_pb2.FsGroupPolicy.ValueType:
    match group.policy if group else None:
        case FsGroupPolicy.ALWAYS:
            return storages_pb2.FS_GROUP_POLICY_ALWAYS
        case FsGroupPolicy.ON_ROOT_MISMATCH:
            return storages_pb2.FS_GROUP_POLICY_ON_ROOT_MISMATCH
        case None:
            return storages_pb2.FS_GROUP_POLICY_UNSPECIFIED
