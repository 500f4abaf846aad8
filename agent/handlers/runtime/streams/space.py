"""The spools' tmpfs when it is full: who can give some back, and who stands still.

Only the agent takes and gives space there, so nobody has to look by the clock.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Giver(Protocol):
    """Holds space that it could do without."""

    def give_back(self) -> bool:
        """Give it back; whether there was any."""
        ...


class Space:
    """One tmpfs that many streams share."""

    def __init__(self) -> None:
        self.givers: set[Giver] = set()
        self._stalled: list[Callable[[], None]] = []

    @property
    def short(self) -> bool:
        """Whether somebody stands still for lack of space."""
        return bool(self._stalled)

    def reclaim(self) -> bool:
        """Take from all givers what they can do without; whether there was any."""
        gave = [giver.give_back() for giver in self.givers]
        return any(gave)

    def stalled(self, resume: Callable[[], None]) -> None:
        """Have `resume` called once, when space was given back."""
        if resume not in self._stalled:
            self._stalled.append(resume)

    async def freed_within(self, seconds: float) -> bool:
        """Whether space is given back before so much time has gone."""
        given = asyncio.Event()
        self._stalled.append(given.set)
        try:
            async with asyncio.timeout(seconds):
                await given.wait()
        except TimeoutError:
            return False
        finally:
            if given.set in self._stalled:
                self._stalled.remove(given.set)
        return True

    def freed(self) -> None:
        stalled, self._stalled = self._stalled, []
        for resume in stalled:
            resume()
