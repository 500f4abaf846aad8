"""How processes of containers ended: PID 1's journal, indexed for waiters.

The journal is the only source of an exit (DESIGN D2). Before a process is made
its maker notes the journal's newest sequence; when the pid is known, the first
entry above it with that pid, and with a cgroup of the container, is the one.
So it doesn't matter whether the process ended before its pid was read, or while
no agent was there. A pid alone could be somebody else's who had it before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent.core.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent.core.pid1 import JournalEntry

log = logging.getLogger(__name__)

KEPT_ENTRIES = 4096
"""As many as PID 1 keeps: more could never be asked for after a restart either."""

RETRY = 0.5
"""Seconds between attempts to follow the journal again."""


class Journal(Protocol):
    """What is needed of `core.pid1.Pid1Client`."""

    async def journal_sequence(self) -> int: ...

    def follow(self, after: int) -> AsyncIterator[JournalEntry]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """An exit to come (or that came already): which entry of the journal it is."""

    pid: int
    cgroup: str
    after: int

    def matches(self, entry: JournalEntry) -> bool:
        """Whether `entry` is this process's end, given that no earlier one was.

        An entry without a cgroup (PID 1 could not read it) counts by pid alone:
        the first end of that pid after the note is ours unless all pids were
        used up in between, and a waiter must not wait for ever.
        """
        if entry.pid != self.pid or entry.sequence <= self.after:
            return False
        return not entry.cgroup or is_within(entry.cgroup, self.cgroup)


def is_within(path: str, parent: str) -> bool:
    """Whether a cgroup is `parent` or below it, by whole components."""
    return path == parent or path.startswith(parent.rstrip("/") + "/")


class ExitWatcher:
    """Follows the journal and answers waiters; one per agent."""

    def __init__(self, journal: Journal, *, retry: float = RETRY) -> None:
        self._journal = journal
        self._retry = retry
        self._entries: deque[JournalEntry] = deque(maxlen=KEPT_ENTRIES)
        self._waiters: dict[int, list[tuple[Expectation, asyncio.Future[JournalEntry]]]] = {}
        self._reached: list[tuple[int, asyncio.Future[None]]] = []
        self._last = 0
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Follow the journal from its start, and return once what is there now is known."""
        target = await self._journal.journal_sequence()
        self._task = asyncio.create_task(self._follow(), name="exit journal")
        await self.reached(target)

    async def stop(self) -> None:
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def note(self) -> int:
        """The sequence to remember before a process is made."""
        return await self._journal.journal_sequence()

    async def reached(self, sequence: int) -> None:
        """Wait until the journal is known up to `sequence`."""
        if self._last >= sequence:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (sequence, future)
        self._reached.append(place)
        try:
            await future
        finally:
            self._reached.remove(place)

    def find(self, expectation: Expectation) -> JournalEntry | None:
        """The entry, when it is there already."""
        return next((entry for entry in self._entries if expectation.matches(entry)), None)

    async def wait(self, expectation: Expectation) -> JournalEntry:
        """The entry, when it comes. Has no deadline of its own: a process may run for ever."""
        if (entry := self.find(expectation)) is not None:
            return entry
        future: asyncio.Future[JournalEntry] = asyncio.get_running_loop().create_future()
        place = (expectation, future)
        self._waiters.setdefault(expectation.pid, []).append(place)
        try:
            return await future
        finally:
            self._leave(expectation.pid, place)

    def _leave(self, pid: int, place: tuple[Expectation, asyncio.Future[JournalEntry]]) -> None:
        others = self._waiters[pid]
        others.remove(place)
        if not others:
            del self._waiters[pid]

    async def _follow(self) -> None:
        """Never ends by itself: a follower that was dropped comes back from its last entry."""
        while not self._stopping.is_set():
            try:
                async for entry in self._journal.follow(self._last):
                    self._add(entry)
            except AgentError as error:
                log.warning("exit journal, following again after entry %d: %s", self._last, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._retry):
                    await self._stopping.wait()

    def _add(self, entry: JournalEntry) -> None:
        if entry.sequence <= self._last:
            return
        if entry.sequence > self._last + 1 and self._last:
            log.warning("exit journal: entries after %d are lost", self._last)
        self._last = entry.sequence
        self._entries.append(entry)
        for expectation, future in self._waiters.get(entry.pid, ()):
            if not future.done() and expectation.matches(entry):
                future.set_result(entry)
        for sequence, reached in self._reached:
            if sequence <= self._last and not reached.done():
                reached.set_result(None)
