"""How fast bytes come: from the first of them to the last."""

from __future__ import annotations

import time


class Meter:
    """An end that forgets what it gets. What starting takes is not in its rate: the clock
    runs from the first bytes on, which are not counted."""

    def __init__(self) -> None:
        self.size = 0
        self._first = 0
        self._began = self._ended = 0.0

    async def write(self, data: bytes) -> None:
        self._ended = time.perf_counter()
        if not self.size:
            self._began, self._first = self._ended, len(data)
        self.size += len(data)

    def rate(self, size: int) -> float:
        """Bytes a second. Raises RuntimeError unless exactly `size` came, and not at once."""
        if self.size != size or self._ended <= self._began:
            raise RuntimeError(f"{self.size} bytes came where {size} were to come, in pieces")
        return (size - self._first) / (self._ended - self._began)
