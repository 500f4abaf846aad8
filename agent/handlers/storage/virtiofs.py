"""A directory of the host by virtio-fs."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from agent.core.fileops import FsMount
from agent.core.sources import VirtiofsSource
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.options import parse_options
from agent.handlers.storage.tags import TagKind, require_fs_type, wait_for_tag

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.tree import SysfsTree
    from agent.handlers.storage.job import Job


def _files(tree: SysfsTree) -> tuple[Path, ...] | None:
    """Since Linux 6.9: Documentation/ABI/testing/sysfs-fs-virtiofs."""
    folder = tree.roots.sys / "fs/virtiofs"
    if not folder.is_dir():
        return None
    return tuple(folder / name / "tag" for name in tree.names(folder))


TAGS = TagKind(name="virtiofs", number=26, files=_files)


class VirtiofsStorage(StorageClass[VirtiofsSource]):
    """The device may be plugged before or after the request."""

    name = "virtiofs"
    source = VirtiofsSource

    async def prepare(self, job: Job[VirtiofsSource]) -> MountPlan:
        tag, request, tools = job.source.tag, job.request, job.tools
        words = parse_options(request.options, read_only=request.read_only, selinux=tools.selinux)
        hint = "the kernel needs CONFIG_VIRTIO_FS"
        await require_fs_type(tools.files, "virtiofs", hint, job.deadline)
        shown = await wait_for_tag(tools.board, TAGS, tag, job.deadline)
        call = FsMount(fs_type="virtiofs", source=tag, options=words.options, flags=words.flags)
        # A kernel that shows no tags says EINVAL for one that it does not know (yet).
        transient = frozenset() if shown else frozenset({errno.EINVAL})
        hints = {errno.EINVAL: f"the device {tag!r} is gone, or an option is not one of virtiofs"}
        return MountPlan(call=call, transient=transient, hints=hints)
