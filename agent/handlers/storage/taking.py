"""Taking pieces back: by kind, newest first, on past errors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from agent.core.errors import AgentError
from agent.handlers.storage import claimed, directories, hugepages, mappings
from agent.handlers.storage.pieces import PieceKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from agent.core.deadlines import Deadline
    from agent.handlers.storage.base import Tools
    from agent.handlers.storage.pieces import Piece

log = logging.getLogger(__name__)

_BY_KIND: Mapping[PieceKind, Callable[[Tools, Piece, Deadline], Awaitable[None]]] = {
    PieceKind.MAPPING: mappings.take_back,
    PieceKind.DEVICE: claimed.take_back,
    PieceKind.HUGE_PAGES: hugepages.take_back,
    PieceKind.DIRECTORY: directories.take_back,
    PieceKind.TREE: directories.take_back,
}


async def take_back(tools: Tools, piece: Piece, deadline: Deadline) -> None:
    """Raises AgentError or OSError when it can't be; fine when it is not there."""
    await _BY_KIND[piece.kind](tools, piece, deadline)


class Left(NamedTuple):
    """A piece that stays, and why."""

    piece: Piece
    why: AgentError | OSError

    def __str__(self) -> str:
        return f"the {self.piece}: {self.why}"


async def take_back_all(
    tools: Tools, pieces: Iterable[Piece], deadline: Deadline, *, lazily: bool = False
) -> tuple[Left, ...]:
    """Newest first, on past errors; returns those that stay.

    `lazily`: the mount was only detached from the tree, so that a mapping may be in use
    for as long as the file system is; the kernel removes it after that.
    """
    left: list[Left] = []
    for piece in reversed(tuple(pieces)):
        try:
            if lazily and piece.kind is PieceKind.MAPPING:
                await mappings.take_back(tools, piece, deadline, deferred=True)
            else:
                await take_back(tools, piece, deadline)
        except (AgentError, OSError) as error:
            log.warning("the %s stays: %s", piece, error)
            left.append(Left(piece, error))
    return tuple(left)
