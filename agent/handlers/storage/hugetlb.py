"""Huge pages as files: https://docs.kernel.org/admin-guide/mm/hugetlbpage.html."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from agent.core.errors import Reason, invalid, wrong_state
from agent.core.fileops import FsMount, MountOption
from agent.core.sources import HugetlbSource
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.hugepages import allocate, page_sizes
from agent.handlers.storage.options import parse_options
from agent.handlers.storage.sizes import one_size
from agent.linux.pseudo import read_optional

if TYPE_CHECKING:
    from agent.core.roots import Roots
    from agent.handlers.storage.job import Job

_TYPE = "hugetlbfs"
_SIZES = ("pagesize", "size")
_DEFAULT = re.compile(r"^Hugepagesize:\s*([0-9]+) kB$", re.MULTILINE)


class HugetlbStorage(StorageClass[HugetlbSource]):
    """Its size is added to the pool before the mount and given back after the unmount; without
    one, the mount may use what the pool has."""

    name = "hugetlb"
    source = HugetlbSource

    async def prepare(self, job: Job[HugetlbSource]) -> MountPlan:
        request, source = job.request, job.source
        words = parse_options(
            request.options, read_only=request.read_only, selinux=job.tools.selinux
        )
        asked = one_size(source.page_size, words.options, "pagesize", "source.hugetlb.page_size")
        page_size = _page_size(job.tools.roots, asked)
        size = one_size(source.size, words.options, "size", "source.hugetlb.size")
        pages = _pages(size, page_size)
        if pages:
            await allocate(job, page_size, pages)
        others = [word for word in words.options if word.key.lower() not in _SIZES]
        sizes = [MountOption(key="pagesize", value=str(page_size))]
        sizes += [MountOption(key="size", value=str(size))] if size else []
        return MountPlan(
            call=FsMount(fs_type=_TYPE, source=_TYPE, options=(*sizes, *others), flags=words.flags),
            hints={errno.EINVAL: "an option is not one of hugetlbfs, or not as it wants it"},
        )


def _page_size(roots: Roots, asked: int) -> int:
    known = page_sizes(roots)
    if not known:
        raise wrong_state("this guest's kernel has no huge pages", reason=Reason.NO_HUGE_PAGES)
    size = asked or _default(roots) or known[0]
    if size not in known:
        raise invalid(
            f"this guest's kernel has no huge pages of {size} bytes: it has those of "
            f"{', '.join(map(str, known))}",
            field="source.hugetlb.page_size",
            known=",".join(map(str, known)),
        )
    return size


def _default(roots: Roots) -> int:
    found = _DEFAULT.search(read_optional(roots.proc / "meminfo") or "")
    return int(found[1]) << 10 if found else 0


def _pages(size: int, page_size: int) -> int:
    pages, rest = divmod(size, page_size)
    if rest:
        raise invalid(
            f"a size of {size} bytes is not a whole number of pages of {page_size} bytes",
            hint=f"the next ones are {pages * page_size} and {(pages + 1) * page_size}",
            field="source.hugetlb.size",
        )
    return pages
