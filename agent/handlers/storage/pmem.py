"""A file system on persistent memory, which programs may map without a page cache."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.fileops import FsMount, MountOption
from agent.core.sources import PmemSource
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.options import parse_options
from agent.handlers.storage.volumes import block_node

if TYPE_CHECKING:
    from agent.handlers.storage.job import Job

FS_TYPES = ("ext4", "xfs")
"""Those that know DAX: https://docs.kernel.org/filesystems/dax.html."""


class PmemStorage(StorageClass[PmemSource]):
    """A read-only device is mounted read-only, as for any disk."""

    name = "pmem"
    source = PmemSource

    def devices(self, source: PmemSource) -> tuple[str, ...]:
        return (source.device_id,)

    async def prepare(self, job: Job[PmemSource]) -> MountPlan:
        source, request = job.source, job.request
        if source.fs_type not in FS_TYPES:
            raise invalid(
                f"{source.fs_type!r} can't be mounted from persistent memory here: "
                f"known are {', '.join(FS_TYPES)}",
                field="source.pmem.fs_type",
            )
        device = job.device(source.device_id)
        words = parse_options(
            request.options, read_only=request.read_only, selinux=job.tools.selinux
        )
        dax = (MountOption(key="dax", value="always"),) if source.dax else ()
        return MountPlan(
            call=FsMount(
                fs_type=source.fs_type,
                source=block_node(device, "source.pmem.device_id").path,
                options=(*dax, *words.options),
                flags=words.flags,
            ),
            hints={
                errno.EINVAL: f"device {device.request.id} holds no {source.fs_type} file system, "
                "or it can't do DAX (the block size must be the page size)"
            },
        )
