"""A file system on a block device, on a partition of it, or below dm-verity or dm-crypt."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.fileops import FsMount
from agent.core.sources import BlockSource
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.claimed import claim
from agent.handlers.storage.crypt import make_crypt
from agent.handlers.storage.format import MAKERS, Below, format_if_empty
from agent.handlers.storage.options import parse_options
from agent.handlers.storage.partitions import partition_node
from agent.handlers.storage.verity import make_verity
from agent.handlers.storage.volumes import block_node

if TYPE_CHECKING:
    from agent.core.model import AttachedDevice, DeviceNode
    from agent.core.sources import VeritySetup
    from agent.handlers.storage.job import Job

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
    """Its devices are held while it is mounted, so that none is detached under it."""

    name = "block"
    source = BlockSource

    def devices(self, source: BlockSource) -> tuple[str, ...]:
        hashes = source.verity.hash_device_id if source.verity else ""
        return tuple(dict.fromkeys(each for each in (source.device_id, hashes) if each))

    async def prepare(self, job: Job[BlockSource]) -> MountPlan:
        source, request = job.source, job.request
        _refuse_impossible(job)
        words = parse_options(
            request.options, read_only=request.read_only, selinux=job.tools.selinux
        )
        device = await _device(job)
        node = await _formatted(job, await _volume(job, device))
        return MountPlan(
            call=FsMount(
                source=node.path,
                fs_type=source.fs_type,
                options=words.options,
                flags=words.flags,
            ),
            transient=_TRANSIENT,
            near=(device.sysfs_path.removeprefix(str(job.tools.roots.sys)),),
            hints=mount_hints(device.request.id, source),
        )


def _refuse_impossible(job: Job[BlockSource]) -> None:
    source = job.source
    if source.fs_type not in FS_TYPES:
        raise invalid(
            f"{source.fs_type!r} is not a file system of block devices: "
            f"known are {', '.join(sorted(FS_TYPES))}",
            field="source.block.fs_type",
        )
    if source.verity is not None and not job.request.read_only:
        raise invalid(
            "what dm-verity proves can't be written: ask for read_only", field="read_only"
        )
    if source.verity is not None and (source.crypt is not None or source.format_if_empty):
        raise invalid(
            "dm-verity goes neither with dm-crypt nor with format_if_empty",
            field="source.block.verity",
        )
    if source.format_if_empty and job.request.read_only:
        raise invalid(
            "a storage that is read-only can't be formatted", field="source.block.format_if_empty"
        )


async def _device(job: Job[BlockSource]) -> AttachedDevice:
    if job.source.address is not None:
        return await claim(job, job.source.address)
    return job.device(job.source.device_id)


async def _volume(job: Job[BlockSource], device: AttachedDevice) -> DeviceNode:
    """The disk, or its partition."""
    source = job.source
    if source.partition or source.partition_label:
        return await partition_node(
            job.tools, device, source.partition, source.partition_label, job.deadline
        )
    return block_node(device, "source.block.device_id")


async def _formatted(job: Job[BlockSource], node: DeviceNode) -> DeviceNode:
    """What is mounted: the volume or what is mapped over it, with a file system if asked for."""
    source, below = job.source, None
    if source.verity is not None:
        return await make_verity(job, node, _hashes(job, node, source.verity), source.verity)
    if source.crypt is not None:
        below = Below(node=node, offset=source.crypt.offset)
        node = await make_crypt(job, node, source.crypt)
    if source.format_if_empty:
        await format_if_empty(
            job.tools, node, source.fs_type, job.deadline, read_only=False, below=below
        )
    return node


def _hashes(job: Job[BlockSource], node: DeviceNode, verity: VeritySetup) -> DeviceNode:
    if not verity.hash_device_id:
        return node
    return block_node(job.device(verity.hash_device_id), "source.block.verity.hash_device_id")


def mount_hints(device_id: str, source: BlockSource) -> dict[int, str]:
    """What the errnos of the mount mean, as a rule."""
    read_only = f"device {device_id} is read-only: ask for read_only"
    hints = {
        errno.EINVAL: _no_file_system(device_id, source),
        errno.ENODEV: f"this kernel has no {source.fs_type} and no module of that name",
        errno.EACCES: read_only,
        errno.EROFS: read_only,
        errno.EBUSY: f"device {device_id}, or a partition of it, is mounted already, "
        "with other options",
    }
    if source.verity is not None:
        hints[errno.EIO] = (
            "the root hash does not fit, or the data were changed: see the kernel log"
        )
    return hints


def _no_file_system(device_id: str, source: BlockSource) -> str:
    new = source.fs_type in MAKERS and source.verity is None and not source.format_if_empty
    return (
        f"device {device_id} holds no {source.fs_type} file system"
        f"{' (new? ask for format_if_empty)' if new else ''}, "
        f"{'or the key is another one, ' if source.crypt else ''}"
        "or an option is not one of its own: see the kernel log"
    )
