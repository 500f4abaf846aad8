"""A file system on an attached block device."""

from __future__ import annotations

import errno

from agent.core.errors import invalid
from agent.core.model import BlockSource, NodeType, StorageRequest
from agent.handlers.storage.base import MountPlan, StorageClass, StorageContext
from agent.handlers.storage.options import parse_options

FS_TYPES = frozenset(
    [
        "btrfs",
        "erofs",
        "exfat",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "iso9660",
        "ntfs3",
        "squashfs",
        "udf",
        "vfat",
        "xfs",
    ]
)
"""Types that live on one block device. Whether this kernel has one is its own to say:
mount(2) loads the module."""

# ENOENT: no node yet. ENOMEM: the disk still shows the stub size it was plugged with.
_TRANSIENT = frozenset({errno.ENOENT, errno.ENOMEM})


class BlockStorage(StorageClass[BlockSource]):
    """Held while mounted, so that the device cannot be detached under the file system."""

    name = "block"
    source = BlockSource

    def hold(self, context: StorageContext, request: StorageRequest, source: BlockSource) -> None:
        context.devices.hold(source.device_id, _user(request))

    def release(
        self, context: StorageContext, request: StorageRequest, source: BlockSource
    ) -> None:
        context.devices.release(source.device_id, _user(request))

    def plan(
        self, context: StorageContext, request: StorageRequest, source: BlockSource
    ) -> MountPlan:
        if source.fs_type not in FS_TYPES:
            raise invalid(
                f"{source.fs_type!r} is not a file system of block devices: "
                f"known are {', '.join(sorted(FS_TYPES))}",
                field="source.block.fs_type",
            )
        device = context.devices.get(source.device_id)
        disk = next((node for node in device.nodes if node.type is NodeType.BLOCK), None)
        if disk is None:
            raise invalid(
                f"device {source.device_id} has no block device: nothing can be mounted from it",
                field="source.block.device_id",
                hint="Devices.Get shows what it is, and in which mode",
            )
        options = parse_options(
            request.options, read_only=request.read_only, selinux=context.selinux
        )
        return MountPlan(
            source=disk.path,
            fs_type=source.fs_type,
            options=options,
            transient=_TRANSIENT,
            near=(device.sysfs_path.removeprefix(str(context.roots.sys)),),
            hints=_hints(source),
        )


def _user(request: StorageRequest) -> str:
    return f"storage {request.id}"


def _hints(source: BlockSource) -> dict[int, str]:
    read_only = f"device {source.device_id} is read-only: ask for read_only"
    return {
        errno.EINVAL: (
            f"device {source.device_id} holds no {source.fs_type} file system, or an option "
            "is not one of its own: see the kernel log"
        ),
        errno.ENODEV: f"this kernel has no {source.fs_type} and no module of that name",
        errno.EACCES: read_only,
        errno.EROFS: read_only,
        errno.EBUSY: f"device {source.device_id} is mounted already, with other options",
    }
