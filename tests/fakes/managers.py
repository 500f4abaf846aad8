"""Stand-ins for the managers that containers depend on: who holds what, and what was said."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from agent.core.deadlines import Deadline
from agent.core.errors import Reason, not_found
from agent.core.fileops import MountCall
from agent.core.model import (
    AttachedDevice,
    BlockExpectation,
    BlockInfo,
    BlockSource,
    DeviceNode,
    DeviceRequest,
    MountedStorage,
    NodeType,
    StorageRequest,
)
from agent.core.pci import PciPath
from agent.linux.mounting import UnmountFlag


class FakeDevices:
    """One disk, `disk`; `users` are those who hold it."""

    def __init__(self) -> None:
        path = PciPath.parse("02/00")
        node = DeviceNode(path="/dev/vdb", type=NodeType.BLOCK, major=254, minor=16)
        self.users: set[str] = set()
        self._disk = AttachedDevice(
            request=DeviceRequest(id="disk", address=path, kind=BlockExpectation()),
            pci_path=path,
            bdf="0000:01:00.0",
            sysfs_path="/sys/devices/pci0000:00/0000:00:02.0/0000:01:00.0",
            driver="virtio-pci",
            numa_node=None,
            iommu_group=None,
            nodes=(node,),
            info=BlockInfo(size=1 << 20, logical_block_size=512, read_only=False),
        )

    def hold(self, device_id: str, user: str) -> AttachedDevice:
        if device_id != "disk":
            raise not_found(f"no device {device_id}", reason=Reason.UNKNOWN_DEVICE)
        self.users.add(user)
        return self._disk

    def release(self, device_id: str, user: str) -> None:
        self.users.discard(user)


class FakeStorages:
    """Storages that are plain directories, by id."""

    def __init__(self, mount_points: Mapping[str, Path]) -> None:
        self._points = dict(mount_points)
        self.users: set[tuple[str, str]] = set()

    def acquire(self, storage_id: str, container_id: str) -> MountedStorage:
        if storage_id not in self._points:
            raise not_found(f"no storage {storage_id}", reason=Reason.UNKNOWN_STORAGE)
        self.users.add((storage_id, container_id))
        source = BlockSource(device_id="disk", fs_type="ext4")
        return MountedStorage(
            request=StorageRequest(id=storage_id, source=source),
            mount_point=str(self._points[storage_id]),
        )

    def release(self, storage_id: str, container_id: str) -> None:
        self.users.discard((storage_id, container_id))

    def keep_users(self, containers: Collection[str]) -> None:
        self.users = {user for user in self.users if user[1] in containers}


class FakeEvents:
    """Remembers what was published."""

    def __init__(self) -> None:
        self.published: list[tuple[str, str, dict[str, str]]] = []

    def publish(self, kind: str, subject: str, details: Mapping[str, str] | None = None) -> object:
        self.published.append((kind, subject, dict(details or {})))
        return None

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.published]


class FakeFiles:
    """Mounts that are only noted; `fail` are targets (last components) that refuse."""

    def __init__(self) -> None:
        self.mounts: list[MountCall] = []
        self.linked: list[tuple[str, list[str]]] = []
        self.fail: set[str] = set()

    async def mount(self, call: MountCall, deadline: Deadline) -> None:
        if Path(call.target).name in self.fail:
            raise OSError(errno.EINVAL, "mount: Invalid argument", call.target)
        self.mounts.append(call)

    async def unmount(self, target: str, flags: UnmountFlag, deadline: Deadline) -> None:
        if Path(target).name in self.fail:
            raise OSError(errno.EBUSY, "umount2: Device or resource busy", target)
        kept = [call for call in self.mounts if call.target != target]
        if len(kept) == len(self.mounts):
            raise OSError(errno.EINVAL, "umount2: Invalid argument", target)
        self.mounts = kept

    async def make_link_targets(self, root: str, paths: Sequence[str], deadline: Deadline) -> None:
        self.linked.append((root, list(paths)))

    async def check_directory(self, path: str, deadline: Deadline) -> None:
        if not os.path.isdir(path):  # noqa: ASYNC240 - a fake's own directory
            raise OSError(errno.ENOENT, "No such file or directory", path)
