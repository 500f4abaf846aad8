"""A directory that the agent makes, and removes with all that is in it.

In a storage it gets a name that nobody can foresee, so that it is never a directory of
somebody else: of another guest that shares the storage, or one that a container left there.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from agent.core.errors import Reason, kernel_refused
from agent.core.fileops import BindMount
from agent.core.sources import LocalSource
from agent.handlers.storage import directories
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.options import parse_options
from agent.handlers.storage.pieces import Piece, PieceKind

if TYPE_CHECKING:
    from agent.handlers.storage.job import Job

_PREFIX = ".innkeeper-local"


class LocalStorage(StorageClass[LocalSource]):
    """Bind-mounted; what is mounted in it stays, and its directories with it, and is told."""

    name = "local"
    source = LocalSource

    def storages(self, source: LocalSource) -> tuple[str, ...]:
        return (source.storage_id,) if source.storage_id else ()

    async def prepare(self, job: Job[LocalSource]) -> MountPlan:
        request = job.request
        words = parse_options(
            request.options, read_only=request.read_only, selinux=job.tools.selinux, bind=True
        )
        piece = _piece(job)
        try:
            await directories.make(job, piece, mode=job.source.mode)
        except OSError as error:
            doing = f"make a directory for storage {request.id}"
            raise kernel_refused(error, doing=doing, reason=Reason.MOUNT_REFUSED) from error
        return MountPlan(call=BindMount(source=directories.location(piece), flags=words.flags))


def _piece(job: Job[LocalSource]) -> Piece:
    name = f"{job.request.id}-{secrets.token_hex(4)}"
    if job.source.storage_id:
        within = job.locations[job.source.storage_id]
        return Piece(kind=PieceKind.TREE, name=f"{_PREFIX}-{name}", within=within)
    folder = job.tools.roots.local
    # On a tmpfs of the guest, which always answers.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Piece(kind=PieceKind.TREE, name=str(folder / name))
