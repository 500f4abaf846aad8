"""Huge pages added to the kernel's pool for a storage.

Adding and giving back are `agent.linux.hugepages`: its book knows how far an addition came
that was cut off, so that a piece is never given back twice nor pages that were never made.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Reason, exhausted, kernel_refused
from agent.core.fileops import PageShare
from agent.handlers.storage.pieces import Piece, PieceKind
from agent.linux.pseudo import read_optional

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.roots import Roots
    from agent.handlers.storage.base import Tools
    from agent.handlers.storage.job import Job

_POOLS = "kernel/mm/hugepages"
_PREFIX, _SUFFIX = "hugepages-", "kB"
_LINE = re.compile(r"^(MemAvailable):\s*([0-9]+) kB$", re.MULTILINE)

# What the guest itself goes on with: the kernel gives away the last page, and kills for more.
_RESERVE = 64 << 20


def page_sizes(roots: Roots) -> tuple[int, ...]:
    """Bytes of the pages that this kernel has, the smallest first."""
    names = [path.name for path in (roots.sys / _POOLS).glob(f"{_PREFIX}*{_SUFFIX}")]
    return tuple(
        sorted(int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX)) << 10 for name in names)
    )


def piece(page_size: int, pages: int, storage_id: str) -> Piece:
    """What a storage adds to the pool."""
    return Piece(kind=PieceKind.HUGE_PAGES, name=f"{page_size}/{storage_id}", amount=pages)


async def allocate(job: Job[object], page_size: int, pages: int) -> None:
    """Add pages for the storage; raises NO_HUGE_PAGES with none added when there are too few."""
    _refuse_more_than_there_is(job.tools.roots, page_size, pages)
    made = piece(page_size, pages, job.request.id)
    share = _share(job.tools, made)
    try:
        got = await job.make(
            made, lambda: job.tools.files.add_huge_pages(share, pages, job.deadline)
        )
    except OSError as error:
        doing = f"add {pages} huge pages of {page_size} bytes"
        raise kernel_refused(error, doing=doing, reason=Reason.NO_HUGE_PAGES) from error
    if got < pages:
        raise _too_few(
            f"the kernel found only {got} of {pages} huge pages of {page_size} bytes",
            page_size=page_size,
            pages=pages,
            got=got,
        )


def _refuse_more_than_there_is(roots: Roots, page_size: int, pages: int) -> None:
    """The kernel would move memory about for minutes before it says so."""
    found = dict(_LINE.findall(read_optional(roots.proc / "meminfo") or ""))
    if "MemAvailable" not in found:
        return
    available = int(found["MemAvailable"]) << 10
    if page_size * pages > available - _RESERVE:
        raise _too_few(
            f"{pages} huge pages of {page_size} bytes are more than the guest can spare: "
            f"{available} bytes are available, of which it needs {_RESERVE}",
            page_size=page_size,
            pages=pages,
            got=0,
        )


def _too_few(message: str, *, page_size: int, pages: int, got: int) -> AgentError:
    return exhausted(
        message,
        reason=Reason.NO_HUGE_PAGES,
        hint="ask for less, give the guest more memory, or set them aside at its boot, "
        "when memory is not yet in pieces",
        wanted=pages,
        got=got,
        page_size=page_size,
    )


async def take_back(tools: Tools, made: Piece, deadline: Deadline) -> None:
    try:
        await tools.files.drop_huge_pages(_share(tools, made), deadline)
    except OSError as error:
        # A kernel without such pages has none of ours either.
        if error.errno != errno.ENOENT:
            raise


def _share(tools: Tools, made: Piece) -> PageShare:
    size, _, owner = made.name.partition("/")
    pool = f"{_PREFIX}{int(size) >> 10}{_SUFFIX}"
    return PageShare(
        path=str(tools.roots.sys / _POOLS / pool),
        book=str(tools.roots.huge_pages / f"{pool}.json"),
        owner=owner,
    )
