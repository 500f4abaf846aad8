"""Sandbox.OnlineResources: CPUs and memory that were plugged in come to life, and leave.

The kernel adds what the host plugs, but brings it online only where it was told to.
So this looks at what is there (`core.hardware`), writes the switches of what is wanted,
and waits by the hotplug board's events for the rest. What sysfs says in the end is the
answer, whoever brought it about. A write may block for long (memory that goes offline is
emptied page by page), so each runs in a worker process that is given up at the deadline.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from agent.core.cpus import spell_cpus
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, timed_out, wrong_state
from agent.core.hardware import NEAR, Kind, Unit, is_online, survey, switch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.core.hardware import Hardware
    from agent.core.hotplug import HotplugBoard, Watch

log = logging.getLogger(__name__)

# The kernel may say otherwise a little later: while it probes a PCI device it switches no
# CPU (EBUSY), and memory that is short now may be free then.
_PASSING: Final = frozenset({errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ENOMEM})

_PATIENCE: Final = 2.0
"""Seconds for a worker that was killed to leave the kernel, before the last look."""


class SlowFiles(Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def write_text(self, path: Path, text: str, deadline: Deadline) -> None: ...
    async def settled(self, obj: str, patience: float | None = None) -> bool: ...


class Publisher(Protocol):
    """What is needed of `core.events.EventLog`."""

    def publish(
        self, kind: str, subject: str, details: Mapping[str, str] | None = None
    ) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """So many units (CPUs; bytes of memory): in all, or beyond those that are online."""

    number: int
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesRequest:
    """What should be online. With neither amount: all that is there, without waiting."""

    cpus: Amount | None = None
    memory: Amount | None = None
    allow_offline: bool = False
    movable: bool = False
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesOnline:
    """What is online now, and what came and went; blocks of memory by number."""

    cpus_online: tuple[int, ...]
    memory_online: int
    cpus_added: tuple[int, ...]
    cpus_removed: tuple[int, ...]
    blocks_added: tuple[int, ...]
    blocks_removed: tuple[int, ...]
    block_bytes: int
    refused: tuple[str, ...]


class Resources:
    """Changes what is online; calls wait side by side and switch one after the other.

    `reserved` tells the CPUs that somebody has for himself: they don't go offline.
    """

    def __init__(
        self,
        *,
        board: HotplugBoard,
        files: SlowFiles,
        events: Publisher,
        default_timeout: float,
        reserved: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        self.board = board
        self.default_timeout = default_timeout
        self.reserved = reserved
        self._files = files
        self._events = events
        self._turn = asyncio.Lock()
        self._changes: set[_Change] = set()
        # Who switched what, among the calls under way.
        self._doers: dict[Unit, _Change] = {}

    async def online(self, request: ResourcesRequest) -> ResourcesOnline:
        """Bring online what is asked for, and take offline what is too much.

        Raises RESOURCES_NOT_ONLINE: at the deadline, with all evidence, or at once when
        this kernel can never have so much. What came online stays, and is told by an
        event also then. What it refuses to take offline is part of a good answer.
        """
        deadline = Deadline.of_request(request.timeout, self.default_timeout)
        with self.board.watch(NEAR) as watch:
            change = _Change(self, request, deadline, watch)
            self._changes.add(change)
            try:
                return await change.run()
            finally:
                self._tell(change.outcome())
                self._changes.discard(change)
                if not self._changes:
                    self._doers.clear()

    async def switch(
        self, change: _Change, unit: Unit, deadline: Deadline, *, online: bool, movable: bool
    ) -> None:
        """Write a unit's switch, unless it is as asked. Raises OSError, and AgentError
        when the kernel doesn't come back in time."""
        try:
            async with deadline.limit():
                await self._turn.acquire()
        except TimeoutError:
            raise timed_out("another change of CPUs or memory did not end in time") from None
        try:
            if is_online(self.board.tree, unit) is not online:
                self._doers[unit] = change
                await self._write(unit, deadline, online=online, movable=movable)
        finally:
            self._turn.release()

    def done_by_others(self, change: _Change, kind: Kind) -> frozenset[int]:
        """What calls beside this one switched."""
        doers = self._doers.items()
        return frozenset(u.number for u, doer in doers if u.kind is kind and doer is not change)

    async def _write(self, unit: Unit, deadline: Deadline, *, online: bool, movable: bool) -> None:
        path, text = switch(self.board.tree.roots, unit, online=online, movable=movable)
        try:
            await self._files.write_text(path, text, deadline)
        except AgentError:
            # Whether it took effect is known only once its worker is out of the kernel.
            await self._files.settled(str(path), _PATIENCE)
            raise

    def _tell(self, told: ResourcesOnline) -> None:
        if told.cpus_added or told.cpus_removed or told.blocks_added or told.blocks_removed:
            cpus, memory = spell_cpus(told.cpus_online), str(told.memory_online)
            log.info("CPUs online: %s, bytes of memory online: %s", cpus, memory)
            self._events.publish("resources-changed", "", {"cpus": cpus, "memory": memory})


class _Change:
    """One call, from the first look to the last."""

    def __init__(
        self, owner: Resources, request: ResourcesRequest, deadline: Deadline, watch: Watch
    ) -> None:
        self._owner = owner
        self._request = request
        self._deadline = deadline
        self._watch = watch
        self._before = self._look()
        self._goals = _goals(request, self._before)
        # By unit: what it should have become, and why it did not.
        self._refused: dict[Unit, tuple[str, str]] = {}
        # Refused, and not worth another try before there is news (True) or at all.
        self._resting: dict[Unit, bool] = {}
        self._taken: set[Unit] = set()

    async def run(self) -> ResourcesOnline:
        self._require_possible()
        await self._bring()
        if self._request.allow_offline:
            await self._take_away()
        return self.outcome()

    def outcome(self) -> ResourcesOnline:
        """What has changed so far."""
        now, before = self._look(), self._before
        cpus, blocks = now.cpus.online, now.memory.online
        others = {kind: self._owner.done_by_others(self, kind) for kind in Kind}
        taken = {kind: {u.number for u in self._taken if u.kind is kind} for kind in Kind}
        return ResourcesOnline(
            cpus_online=_ordered(cpus),
            memory_online=now.memory_online,
            cpus_added=_ordered(cpus - before.cpus.online - others[Kind.CPU]),
            cpus_removed=_ordered((before.cpus.online - cpus) & taken[Kind.CPU]),
            blocks_added=_ordered(blocks - before.memory.online - others[Kind.MEMORY]),
            blocks_removed=_ordered((before.memory.online - blocks) & taken[Kind.MEMORY]),
            block_bytes=now.block_bytes,
            refused=tuple(self._refusals()),
        )

    def _refusals(self) -> Iterator[str]:
        """Without those that were overtaken: the kernel did it later, by itself."""
        for unit, (word, why) in sorted(self._refused.items()):
            if is_online(self._owner.board.tree, unit) is not (word == "online"):
                yield f"{unit} {word}: {why}"

    def _look(self) -> Hardware:
        return survey(self._owner.board.tree)

    def _require_possible(self) -> None:
        """What can't be until the next boot is refused now, not at the deadline."""
        cpus, memory = self._goals.get(Kind.CPU, 0), self._goals.get(Kind.MEMORY, 0)
        room = self._before.possible
        if room and cpus > len(room):
            raise wrong_state(
                f"resources: {cpus} CPUs can't be online: this kernel has room for "
                f"{len(room)} ({spell_cpus(room)}) until its next boot",
                reason=Reason.RESOURCES_NOT_ONLINE,
                hint="start the VM with a larger maximum of CPUs",
                possible=spell_cpus(room),
            )
        if memory and not self._before.block_bytes:
            raise wrong_state(
                "resources: this kernel has no hot-plug of memory (no block_size_bytes)",
                reason=Reason.RESOURCES_NOT_ONLINE,
            )

    async def _bring(self) -> None:
        """Until enough is online; without goals, until all that is there was tried once."""
        relooks = iter(self._owner.board.relooks)
        while True:
            self._watch.reset()
            late = self._deadline.passed
            now = self._look()
            if not late and await self._switch_on(now):
                relooks = iter(self._owner.board.relooks)
                continue
            if not self._goals or not self._missing(now):
                return
            if late:
                raise self._expired(now)
            if await self._news(relooks):
                relooks = iter(self._owner.board.relooks)

    async def _news(self, relooks: Iterator[float]) -> bool:
        """Sleep until there may be something new; what may pass is tried again after it."""
        passing = any(self._resting.values())
        # What ends the kernel's EBUSY is told by an event of any device.
        self._watch.look_near(() if passing else NEAR)
        pause = next(relooks, None)
        until = self._deadline if pause is None else self._deadline.earlier(pause)
        news = await self._watch.news(until)
        self._resting = {unit: passes for unit, passes in self._resting.items() if not passes}
        return news

    def _missing(self, now: Hardware) -> dict[Kind, int]:
        short = {kind: goal - len(now.stocks[kind].online) for kind, goal in self._goals.items()}
        return {kind: count for kind, count in short.items() if count > 0}

    def _wanted(self, now: Hardware) -> list[Unit]:
        """What to bring online now, the lowest numbers first."""
        missing = self._missing(now)
        units: list[Unit] = []
        for kind in Kind:
            waiting = [Unit(kind, number) for number in sorted(now.stocks[kind].waiting)]
            able = [unit for unit in waiting if unit not in self._resting]
            units += able[: missing.get(kind, 0)] if self._goals else able
        return units

    async def _switch_on(self, now: Hardware) -> bool:
        """Whether any of what is wanted came online by it."""
        done = False
        for unit in self._wanted(now):
            if self._deadline.passed:
                break
            done |= await self._switch(unit, self._deadline, online=True)
        return done

    async def _take_away(self) -> None:
        """As many as are too many, the highest numbers first.

        What is refused stays, and no other goes instead of it: a host that wants a DIMM
        back has nothing from the memory that was there at boot.
        """
        units = self._excess(self._look())
        for index, unit in enumerate(units):
            # One that takes long to empty must not have the time of all the others.
            share = self._deadline.left() / (len(units) - index)
            await self._switch(unit, self._deadline.earlier(share), online=False)

    def _excess(self, now: Hardware) -> list[Unit]:
        reserved = self._owner.reserved()
        units: list[Unit] = []
        for kind, goal in self._goals.items():
            stock = now.stocks[kind]
            highest = sorted(stock.removable, reverse=True)[: max(0, len(stock.online) - goal)]
            for unit in (Unit(kind, number) for number in highest):
                if kind is Kind.CPU and unit.number in reserved:
                    self._refuse(unit, "offline", "a container has it for itself alone")
                else:
                    units.append(unit)
        return units

    async def _switch(self, unit: Unit, deadline: Deadline, *, online: bool) -> bool:
        """Whether the unit is as asked after it, whoever did it."""
        word = "online" if online else "offline"
        passes, why = False, f"the kernel took the order, but it is not {word}"
        try:
            await self._owner.switch(
                self, unit, deadline, online=online, movable=self._request.movable
            )
        except OSError as error:
            passes, why = error.errno in _PASSING, _errno(error)
        except AgentError as error:
            why = error.message
        if is_online(self._owner.board.tree, unit) is online:
            self._succeeded(unit, online=online)
            return True
        self._refuse(unit, word, why)
        self._resting[unit] = passes
        return False

    def _succeeded(self, unit: Unit, *, online: bool) -> None:
        self._refused.pop(unit, None)
        self._resting.pop(unit, None)
        if not online:
            self._taken.add(unit)

    def _refuse(self, unit: Unit, word: str, why: str) -> None:
        self._refused[unit] = (word, why)
        log.warning("%s %s: %s", unit, word, why)

    def _expired(self, now: Hardware) -> AgentError:
        outcome = self.outcome()
        seen = ", ".join(self._watch.seen) or "none"
        refused = "; ".join(outcome.refused) or "none"
        evidence = ", ".join(_shortfall(now, kind, goal) for kind, goal in self._goals.items())
        return timed_out(
            f"resources: deadline passed: {evidence}; refused by the kernel: {refused}; "
            f"events seen: {seen}",
            reason=Reason.RESOURCES_NOT_ONLINE,
            hint="what came online stays; was as much plugged in?",
            evidence=evidence,
            cpus_present=spell_cpus(now.cpus.present),
            cpus_online=spell_cpus(now.cpus.online),
            cpus_added=spell_cpus(outcome.cpus_added),
            blocks_present=spell_cpus(now.memory.present),
            blocks_online=spell_cpus(now.memory.online),
            blocks_added=spell_cpus(outcome.blocks_added),
            block_bytes=now.block_bytes,
            memory_online=now.memory_online,
            refused=refused,
            events=seen,
            events_seen=self._watch.total,
            events_lost=self._owner.board.counters.overflows,
        )


def _goals(request: ResourcesRequest, now: Hardware) -> dict[Kind, int]:
    """How many units of each kind that is asked for should be online in all."""
    goals: dict[Kind, int] = {}
    if request.cpus is not None:
        base = len(now.cpus.online) if request.cpus.more else 0
        goals[Kind.CPU] = base + request.cpus.number
    if request.memory is not None:
        base = len(now.memory.online) if request.memory.more else 0
        # Without hot-plug of memory any number stands for "some": it is refused.
        goals[Kind.MEMORY] = base - (-request.memory.number // (now.block_bytes or 1))
    return goals


def _shortfall(now: Hardware, kind: Kind, goal: int) -> str:
    stock = now.stocks[kind]
    what = "CPUs" if kind is Kind.CPU else f"blocks of memory ({now.block_bytes} bytes each)"
    return f"{len(stock.online)} of {goal} {what} are online, {len(stock.present)} are present"


def _ordered(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(numbers))


def _errno(error: OSError) -> str:
    number = error.errno or 0
    return f"{os.strerror(number)} [{errno.errorcode.get(number, number)}]"
