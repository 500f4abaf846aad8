"""Directories that the agent makes in storages and in the guest's memory."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from agent.core.deadlines import Deadline
from agent.core.errors import Reason, wrong_state
from agent.core.fileops import Location
from agent.handlers.storage.pieces import Piece, PieceKind

if TYPE_CHECKING:
    from agent.handlers.storage.base import Tools
    from agent.handlers.storage.job import Job

# A hundred thousand files take seconds, under emulation ten times as many.
_TREE_SECONDS = 60.0
_GONE = (errno.ENOENT, errno.ENOTDIR)


async def make(job: Job[object], piece: Piece, *, mode: int = 0o755) -> None:
    """Make a DIRECTORY or TREE; raises OSError, EEXIST too."""
    where = location(piece)
    files = job.tools.files
    await job.make(piece, lambda: files.make_directory(where, job.deadline, mode=mode))


async def take_back(tools: Tools, piece: Piece, deadline: Deadline) -> None:
    """Remove a DIRECTORY if it is empty, a TREE with all but what is mounted in it."""
    where = location(piece)
    try:
        if piece.kind is PieceKind.DIRECTORY:
            await tools.files.remove_directory(where, deadline)
            return
        left = await tools.files.remove_tree(where, Deadline.after(_TREE_SECONDS))
    except OSError as error:
        if error.errno in _GONE:
            return
        raise
    if left:
        raise wrong_state(
            f"not removed from {where}: {'; '.join(left)}", reason=Reason.STILL_IN_USE
        )


def location(piece: Piece) -> Location:
    """Without links: what is made and removed is just what the piece names."""
    return Location(root=piece.within or "/", path=piece.name.lstrip("/"), links=False)
