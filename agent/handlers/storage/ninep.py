"""A directory of the host by 9p over virtio: https://docs.kernel.org/filesystems/9p.html."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from agent.core.fileops import FsMount, MountOption
from agent.core.sources import NinePSource
from agent.handlers.storage import doubled
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.options import parse_options
from agent.handlers.storage.tags import TagKind, require_fs_type, wait_for_tag

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agent.core.tree import SysfsTree
    from agent.handlers.storage.job import Job

DEFAULT_MSIZE = 512 << 10

_FIELD = "source.nine_p"


def _files(tree: SysfsTree) -> tuple[Path, ...]:
    """Documentation/ABI: the driver 9pnet_virtio shows `mount_tag` of its devices."""
    bus = tree.roots.sys / "bus/virtio/devices"
    return tuple(bus / name / "mount_tag" for name in tree.names(bus))


TAGS = TagKind(name="9p", number=9, files=_files)


class NinePStorage(StorageClass[NinePSource]):
    """The device may be plugged before or after the request.

    `cache=mmap` unless asked otherwise: of the modes that show what the host changes, it is
    the one with which a program may map a file for writing.
    """

    name = "9p"
    source = NinePSource

    async def prepare(self, job: Job[NinePSource]) -> MountPlan:
        source, request, tools = job.source, job.request, job.tools
        words = parse_options(request.options, read_only=request.read_only, selinux=tools.selinux)
        options = _options(source, words.options)
        hint = "the image's flavour generic has it, cloud has not; virtiofs is in both"
        await require_fs_type(tools.files, "9p", hint, job.deadline)
        await wait_for_tag(tools.board, TAGS, source.tag, job.deadline)
        return MountPlan(
            call=FsMount(fs_type="9p", source=source.tag, options=options, flags=words.flags),
            hints={
                errno.EBUSY: f"the tag {source.tag!r} is mounted already: the device serves one",
                errno.ENOENT: f"the device {source.tag!r} is gone",
                errno.EINVAL: "an option is not one of 9p, or its value is not possible",
            },
        )


def _options(source: NinePSource, told: Sequence[MountOption]) -> tuple[MountOption, ...]:
    msize = str(source.msize) if source.msize else ""
    doubled.refuse_both(told, ("msize",), msize, f"{_FIELD}.msize")
    usual = {
        "trans": "virtio",
        "version": "9p2000.L",
        "msize": msize or str(DEFAULT_MSIZE),
        "cache": "mmap",
    }
    mine = [
        MountOption(key=key, value=value)
        for key, value in usual.items()
        if doubled.named(told, (key,)) is None
    ]
    return (*mine, *told)
