"""PID 1's descriptor store, without PID 1."""

from __future__ import annotations

import os
from collections.abc import Sequence


class FakeKeeper:
    """Keeps duplicates by name."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}

    async def store(self, name: str, fd: int) -> None:
        await self.drop([name])
        self.kept[name] = os.dup(fd)

    async def fetch(self, names: Sequence[str]) -> dict[str, int]:
        return {name: os.dup(self.kept[name]) for name in names if name in self.kept}

    async def drop(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self.kept:
                os.close(self.kept.pop(name))

    def close(self) -> None:
        for fd in self.kept.values():
            os.close(fd)
        self.kept.clear()
