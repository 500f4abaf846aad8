"""How many worker processes there may be: in all, and for each thing that they work on.

A server that hangs holds every worker that is in a call on it until it answers, also those
that were given up. So one server's files may have only some of them. Taking a mount off the
tree asks nothing of its server, and is what ends such a state: for that there are some more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from agent.core.deadlines import Deadline

SPARE = 2
"""Workers beyond the limit for calls that can't wait for others."""


class WorkerSlots:
    """`limit` workers, of which each object has at most `each`."""

    def __init__(self, limit: int, *, each: int) -> None:
        self.limit = limit
        self.each = each
        self._taken = 0
        self._held: Counter[str] = Counter()
        self._changed = asyncio.Event()

    async def take(
        self, objects: Collection[str], deadline: Deadline, *, urgent: bool = False
    ) -> None:
        """Wait for room, and take it; raises TimeoutError."""
        async with deadline.limit():
            while not self._fits(objects, urgent=urgent):
                await self._changed.wait()
        self._taken += 1
        self._held.update(objects)

    def give_back(self, objects: Collection[str]) -> None:
        """One that was taken for these objects."""
        self._taken -= 1
        self._held.subtract(objects)
        self._held = +self._held
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def crowded(self, objects: Collection[str]) -> str | None:
        """One of the objects that has all that it may have."""
        return next((each for each in objects if self._held[each] >= self.each), None)

    def _fits(self, objects: Collection[str], *, urgent: bool) -> bool:
        if urgent:
            return self._taken < self.limit + SPARE
        return self._taken < self.limit and self.crowded(objects) is None
