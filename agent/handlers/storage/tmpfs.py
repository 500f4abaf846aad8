"""Memory: https://docs.kernel.org/filesystems/tmpfs.html."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.fileops import FsMount, MountOption
from agent.core.sources import TmpfsSource
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.options import parse_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.handlers.storage.job import Job

_TYPE = "tmpfs"
_MODES = 0o7777


class TmpfsStorage(StorageClass[TmpfsSource]):
    """Size and mode by fields, or by options in the kernel's own spelling; not by both."""

    name = "tmpfs"
    source = TmpfsSource

    async def prepare(self, job: Job[TmpfsSource]) -> MountPlan:
        request = job.request
        words = parse_options(
            request.options, read_only=request.read_only, selinux=job.tools.selinux
        )
        typed = tuple(_typed(job.source))
        _refuse_both(typed, words.options)
        return MountPlan(
            call=FsMount(
                fs_type=_TYPE,
                source=_TYPE,
                options=(*typed, *words.options),
                flags=words.flags,
            ),
            hints={errno.EINVAL: "an option is not one of tmpfs, or not as it wants it"},
        )


def _typed(source: TmpfsSource) -> Iterator[MountOption]:
    if source.mode & ~_MODES:
        raise invalid(f"{source.mode:o} is not a mode", field="source.tmpfs.mode")
    if source.size:
        yield MountOption(key="size", value=str(source.size))
    if source.mode:
        yield MountOption(key="mode", value=f"{source.mode:o}")


def _refuse_both(typed: tuple[MountOption, ...], words: tuple[MountOption, ...]) -> None:
    # nr_blocks is size in pages.
    said = {"size" if word.key == "nr_blocks" else word.key for word in words}
    for option in typed:
        if option.key in said:
            raise invalid(
                f"the {option.key} is said twice: by an option and by source.tmpfs.{option.key}",
                hint="leave one of them out",
                field=f"source.tmpfs.{option.key}",
            )
