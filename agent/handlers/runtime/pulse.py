"""Waking whoever waits for "something may have changed"."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Pulse:
    """Wakes all waiters at each beat; they look again for what they need.

    Look first, then wait, without an await in between: nothing is missed then.
    """

    def __init__(self) -> None:
        self._beat = asyncio.Event()

    def beat(self) -> None:
        # A new event before the old one is set: who waits again waits for the next beat.
        beat, self._beat = self._beat, asyncio.Event()
        beat.set()

    async def wait(self) -> None:
        await self._beat.wait()


class Space:
    """Who stands still because the spools' tmpfs is full.

    Only the agent gives space back there, so nobody has to look by the clock.
    """

    def __init__(self) -> None:
        self._stalled: list[Callable[[], None]] = []

    def stalled(self, resume: Callable[[], None]) -> None:
        """Have `resume` called once, when space was given back."""
        if resume not in self._stalled:
            self._stalled.append(resume)

    def freed(self) -> None:
        stalled, self._stalled = self._stalled, []
        for resume in stalled:
            resume()
