"""Waking whoever waits for "something may have changed"."""

from __future__ import annotations

import asyncio


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
