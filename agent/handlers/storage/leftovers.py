"""Pieces that could not be taken back, so that they are not forgotten.

A mapping whose file system is still in use, pages that are still mapped: the storage is
gone for its host, and what stays of it is tried again when the id is attached again,
and by the next agent.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agent.core.errors import AgentError, Reason, wrong_state
from agent.handlers.storage.pieces import Piece, PieceKind
from agent.handlers.storage.taking import take_back_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.deadlines import Deadline
    from agent.core.state import StateStore
    from agent.handlers.storage.base import Tools

log = logging.getLogger(__name__)

_KIND = "storage-leftovers"


class Leftovers:
    """By the id of the storage that they were of."""

    def __init__(self, tools: Tools, state: StateStore) -> None:
        self._tools = tools
        self._state = state

    def keep(self, storage_id: str, pieces: Iterable[Piece]) -> None:
        """Remember pieces that stay, the newest first, besides those that did before.

        But not those in a storage of the user's that would be the user's own: by the
        next time there may be something else of the same name.
        """
        known = self._pieces(self._state.load(_KIND, storage_id))
        new = (piece for piece in pieces if piece.lasts)
        self._save(storage_id, tuple(dict.fromkeys((*known, *new))))

    async def clear(self, storage_id: str, deadline: Deadline) -> None:
        """Try again; raises WRONG_STATE naming what still stays."""
        pieces = self._pieces(self._state.load(_KIND, storage_id))
        if not pieces:
            return
        left = await take_back_all(self._tools, reversed(pieces), deadline)
        self._save(storage_id, tuple(each.piece for each in left))
        if left:
            what = "; ".join(str(each) for each in left)
            raise wrong_state(
                f"of an earlier storage {storage_id} something stays: {what}",
                reason=Reason.WRONG_STATE,
                hint="choose another id, or end what uses it",
                id=storage_id,
            )

    async def clear_all(self, deadline: Deadline) -> None:
        """Try again with all, on past those that stay."""
        for storage_id in self._state.load_all(_KIND):
            try:
                await self.clear(storage_id, deadline)
            except AgentError as error:
                log.warning("%s", error)

    def _save(self, storage_id: str, pieces: tuple[Piece, ...]) -> None:
        if pieces:
            self._state.save(_KIND, storage_id, {"pieces": [_plain(each) for each in pieces]})
        else:
            self._state.delete(_KIND, storage_id)

    def _pieces(self, data: dict[str, Any] | None) -> tuple[Piece, ...]:
        try:
            saved = (data or {}).get("pieces", ())
            return tuple(Piece(**{**each, "kind": PieceKind(each["kind"])}) for each in saved)
        except (KeyError, TypeError, ValueError) as error:
            log.warning("what was left of a storage is saved in another shape: %r", error)
            return ()


def _plain(piece: Piece) -> dict[str, Any]:
    return {**asdict(piece), "kind": piece.kind.value}
