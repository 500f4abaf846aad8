"""Layers over one another: https://docs.kernel.org/filesystems/overlayfs.html.

What takes the writes is made when it is missing: its directory and, beside it, the one that
the kernel works in. Both are named without links, so that they are where the request says.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Reason, invalid, kernel_refused, wrong_state
from agent.core.fileops import Location, OverlayMount
from agent.core.sources import OverlaySource, StorageDirectory
from agent.core.state import StateStore
from agent.handlers.storage import directories
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.guestpaths import leads_outside, not_opened
from agent.handlers.storage.options import parse_options
from agent.handlers.storage.pieces import Piece, PieceKind
from agent.handlers.storage.records import StorageRecord, from_data

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.core.fileops import FileKind
    from agent.handlers.storage.job import Job

LAYER_LIMIT = 500
"""OVL_MAX_STACK (fs/overlayfs/params.c)."""

_FIELD = "source.overlay"
# Of the records of storages, as the manager names them.
_RECORDS = "storages"

_HINTS = {
    errno.EINVAL: "upper and work must lie apart, on one file system, and not on an overlay or a "
    "network share; or an option is not one of overlay: see the kernel log",
    errno.ELOOP: "one layer lies in another, or is named twice",
    errno.ESTALE: "the upper layer was made for other lower layers: take a new one",
    errno.EBUSY: "the upper or the work directory is used by another overlay",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Where an overlay's writes go, with the defaults filled in and the paths made plain."""

    upper: StorageDirectory
    work: StorageDirectory


class OverlayStorage(StorageClass[OverlaySource]):
    """Without an upper layer it is read-only."""

    name = "overlay"
    source = OverlaySource

    def storages(self, source: OverlaySource) -> tuple[str, ...]:
        named = [*source.lower, source.upper, source.work]
        return tuple(dict.fromkeys(each.storage_id for each in named if each is not None))

    async def prepare(self, job: Job[OverlaySource]) -> MountPlan:
        request, source = job.request, job.source
        _refuse_number(len(source.lower))
        words = parse_options(
            request.options, read_only=request.read_only, selinux=job.tools.selinux
        )
        upper = work = None
        writing = writing_of(source)
        if writing is not None:
            _refuse_shared(job, writing)
            upper = await _made(job, writing.upper, PieceKind.DIRECTORY)
            work = await _made(job, writing.work, PieceKind.TREE)
        return MountPlan(
            call=OverlayMount(
                lowers=tuple(job.location(each) for each in source.lower),
                upper=upper,
                work=work,
                options=words.options,
                flags=words.flags,
            ),
            hints=_HINTS,
        )


def writing_of(source: OverlaySource) -> Writing | None:
    """None for an overlay without an upper layer."""
    if source.upper is None:
        return None
    upper = _plain(source.upper, "upper")
    beside = f"{upper.path.rpartition('/')[0]}/work".lstrip("/")
    work = StorageDirectory(storage_id=upper.storage_id, path=beside)
    if source.work is not None:
        work = _plain(source.work, "work")
    if upper == work:
        raise invalid(f"upper and work are the same directory {upper.path!r}", field=_FIELD)
    return Writing(upper=upper, work=work)


def _plain(directory: StorageDirectory, default: str) -> StorageDirectory:
    # Without links, ".." says the same to us as to the kernel.
    path = os.path.normpath(f"/{directory.path or default}").lstrip("/")
    if not path:
        raise invalid(
            f"the root of storage {directory.storage_id} can't be {default}: the kernel needs "
            "a directory beside it",
            hint="name a directory in it",
            field=f"{_FIELD}.{default}",
        )
    return StorageDirectory(storage_id=directory.storage_id, path=path)


def _refuse_number(layers: int) -> None:
    if not layers:
        raise invalid("at least one lower layer is needed", field=f"{_FIELD}.lower")
    if layers > LAYER_LIMIT:
        raise invalid(
            f"{layers} layers are more than the kernel stacks: {LAYER_LIMIT}",
            field=f"{_FIELD}.lower",
            limit=LAYER_LIMIT,
        )


def _refuse_shared(job: Job[OverlaySource], writing: Writing) -> None:
    """Two overlays that write to one directory spoil it; the kernel only logs that."""
    mine = {writing.upper, writing.work}
    for other, theirs in _others(job):
        if shared := mine & {theirs.upper, theirs.work}:
            place = shared.pop()
            raise wrong_state(
                f"storage {other} has {place.path!r} of storage {place.storage_id} as its upper or "
                "work directory",
                reason=Reason.STILL_IN_USE,
                hint=f"choose another directory, or detach {other} first",
                id=other,
            )


def _others(job: Job[OverlaySource]) -> Iterator[tuple[str, Writing]]:
    """Overlays that were asked for before, attached or on the way, by the records."""
    records: dict[str, StorageRecord] = {}
    for name, data in StateStore(job.tools.roots.state).load_all(_RECORDS).items():
        # One of another shape is of a storage that nobody knows any more.
        with suppress(AgentError, KeyError, TypeError, ValueError):
            records[name] = from_data(data)
    mine = records[job.request.id].order
    for name, record in records.items():
        source = record.storage.request.source
        if record.order < mine and isinstance(source, OverlaySource):
            writing = writing_of(source)
            if writing is not None:
                yield name, writing


async def _made(job: Job[OverlaySource], directory: StorageDirectory, kind: PieceKind) -> Location:
    """The directory, with all of its path; what is made is the user's once the mount is."""
    within = job.locations[directory.storage_id]
    parts = directory.path.split("/")
    try:
        for number in range(1, len(parts) + 1):
            piece = Piece(
                kind=kind if number == len(parts) else PieceKind.DIRECTORY,
                name="/".join(parts[:number]),
                within=within,
                lasts=False,
            )
            await _ensure(job, piece, directory)
    except OSError as error:
        raise _not_made(error, directory) from error
    return Location(root=within, path=directory.path, links=False)


async def _ensure(job: Job[OverlaySource], piece: Piece, directory: StorageDirectory) -> None:
    try:
        found = await job.tools.files.kind_of(directories.location(piece), job.deadline)
    except FileNotFoundError:
        await directories.make(job, piece)
        return
    if piece.name == directory.path:
        _refuse_unfit(found, directory)


def _refuse_unfit(found: FileKind, directory: StorageDirectory) -> None:
    place = f"{directory.path} of storage {directory.storage_id}"
    if found.kind != "directory":
        raise invalid(f"{place} is no directory but a {found.kind}", field=_FIELD)
    if found.read_only:
        raise _not_writable(place)


def _not_made(error: OSError, directory: StorageDirectory) -> AgentError:
    place = f"{directory.path} of storage {directory.storage_id}"
    match error.errno:
        case errno.ELOOP:
            return leads_outside(f"{place} has a symbolic link in it", _FIELD)
        case errno.EROFS:
            return _not_writable(place)
        case errno.ENOTDIR:
            where = Location(root=directory.storage_id, path=directory.path)
            return not_opened(error, where, _FIELD)
    return kernel_refused(error, doing=f"make {place}", reason=Reason.MOUNT_REFUSED)


def _not_writable(place: str) -> AgentError:
    return wrong_state(
        f"{place} can't be written to: its storage is read-only",
        reason=Reason.MOUNT_REFUSED,
        hint="take upper from a storage that is attached for writing, or leave it out",
        field=f"{_FIELD}.upper",
    )
