"""Numbered events of the sandbox, for any number of watchers.

Numbers start at 1, have no gaps and go on after a restart of the agent (the last
one is kept in the state directory); the events themselves are kept in a bounded
ring. A watcher names the last number it has and gets everything after it, or is
told that the ring no longer reaches back that far: it then looks at the lists
once and watches from the newest number.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Code, Reason
from agent.core.model import Event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from agent.core.state import StateStore

log = logging.getLogger(__name__)

RING_SIZE = 4096

_KIND, _KEY = "events", "cursor"


class EventLog:
    """Publishes events and lets watchers follow them."""

    def __init__(self, state: StateStore, *, size: int = RING_SIZE) -> None:
        self._state = state
        self._ring: deque[Event] = deque(maxlen=size)
        self._last = _saved_number(state)
        self._news = asyncio.Event()

    @property
    def last(self) -> int:
        """The newest number given out; 0 before the first."""
        return self._last

    @property
    def oldest(self) -> int:
        """The number of the oldest event still kept; `last + 1` when none is."""
        return self._ring[0].sequence if self._ring else self._last + 1

    def publish(self, kind: str, subject: str, details: Mapping[str, str] | None = None) -> Event:
        """Number the event, keep it and wake the watchers; never fails for lack of space."""
        self._last += 1
        event = Event(
            sequence=self._last,
            at=time.time(),
            kind=kind,
            subject=subject,
            details=dict(details or {}),
        )
        self._ring.append(event)
        self._save()
        # Replaced before it is set, so a watcher that looks after this sees the next one.
        news, self._news = self._news, asyncio.Event()
        news.set()
        return event

    async def watch(self, after: int | None = None) -> AsyncIterator[Event]:
        """Events with numbers above `after`, for ever; None starts with the next one.

        Raises OUT_OF_RANGE with reason OFFSET_NOT_KEPT, also midway for a watcher that
        fell behind by more than the ring, and for a number that was never given out.
        """
        seen = self._last if after is None else after
        while True:
            news = self._news
            event = self._next(seen)
            if event is None:
                await news.wait()
            else:
                seen = event.sequence
                yield event

    def _next(self, seen: int) -> Event | None:
        if not self.oldest - 1 <= seen <= self._last:
            raise self._not_kept(seen)
        return None if seen == self._last else self._ring[seen + 1 - self.oldest]

    def _not_kept(self, seen: int) -> AgentError:
        return AgentError(
            f"events after number {seen} are not kept: numbers {self.oldest} to {self._last} are",
            code=Code.OUT_OF_RANGE,
            reason=Reason.OFFSET_NOT_KEPT,
            fields={"after": str(seen), "oldest": str(self.oldest), "last": str(self._last)},
            hint=f"list what you watch, then watch after {self._last}",
        )

    def _save(self) -> None:
        try:
            self._state.save(_KIND, _KEY, {"last": self._last})
        except AgentError as error:
            log.warning("the number of the last event could not be saved: %s", error)


def _saved_number(state: StateStore) -> int:
    saved = state.load(_KIND, _KEY) or {}
    last = saved.get("last", 0)
    return last if isinstance(last, int) and last >= 0 else 0
