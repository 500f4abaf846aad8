"""Processes that the kernel killed for lack of memory: who, when, and whose limit it was.

The kernel's log tells it (oomlines.py). Each container's own count of kills (memory.events)
is the check: of what the log has lost, it says at least that it was.

A kill is told as an event once, also across a restart of the agent: up to which record of the
log is saved.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from agent.core.errors import AgentError
from agent.core.exits import is_within
from agent.core.life import OutOfMemory
from agent.handlers.runtime.usage import cgroupfiles
from agent.handlers.runtime.usage.notices import Notice
from agent.handlers.runtime.usage.oomgroups import Kill, OomGroups, as_seen, is_of
from agent.handlers.runtime.usage.oomlines import OomLines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.core.kernel_log import KernelLog
    from agent.core.roots import Roots
    from agent.linux.kmsg import KernelRecord

log = logging.getLogger(__name__)

KIND = "out_of_memory"

KEPT = 1024
"""Kills that are kept for those who ask how a process ended."""

_STATE, _KEY = "oom", "cursor"


class Events(Protocol):
    """What is needed of `core.events.EventLog`."""

    def publish(
        self, kind: str, subject: str, details: Mapping[str, str] | None = None
    ) -> object: ...


class State(Protocol):
    """What is needed of `core.state.StateStore`."""

    def save(self, kind: str, key: str, data: dict[str, Any]) -> None: ...
    def load(self, kind: str, key: str) -> dict[str, Any] | None: ...


@dataclass(slots=True, kw_only=True)
class _Tracked:
    """A container: how many kills its own count had at first, and how many were told since."""

    id: str
    cgroup: str
    events: Path
    before: int
    lost: int
    told: int = 0
    notice: Notice | None = field(default=None)


class OomWatch:
    """Follows the kernel's log; runs in the event loop."""

    def __init__(
        self, kernel_log: KernelLog, events: Events, *, roots: Roots, state: State | None = None
    ) -> None:
        self._log = kernel_log
        self._events = events
        self._state = state
        self._groups = OomGroups(roots)
        self._lines = OomLines(self._groups.is_group)
        self._kills: deque[Kill] = deque(maxlen=KEPT)
        self._unplaced: deque[Kill] = deque(maxlen=KEPT)
        self._untold: deque[Kill] = deque(maxlen=KEPT)
        self._departed: deque[str] = deque(maxlen=KEPT)
        self._tracked: dict[str, _Tracked] = {}
        self._cursor = _saved(state)
        self._answered = 0
        self._stack = ExitStack()

    def start(self) -> None:
        """Take what the log has, then listen; before containers are restored."""
        for record in self._log.kept:
            self._take(record, live=False)
        self._stack.enter_context(self._log.listening(self._take))

    def close(self) -> None:
        self._stack.close()
        for container_id in tuple(self._tracked):
            self.untrack(container_id)

    def track(self, container_id: str, cgroup: str) -> None:
        """Tell of kills in that group from now on, and of those that no agent has told of."""
        self.untrack(container_id)
        events = self._groups.directory(cgroup) / "memory.events"
        tracked = _Tracked(
            id=container_id,
            cgroup=cgroup,
            events=events,
            before=_count(cgroupfiles.text(events)),
            lost=self._log.lost,
        )
        self._tracked[container_id] = tracked
        tracked.notice = self._notice(tracked)
        for kill in self._take_untold(cgroup):
            self._tell(tracked, kill)
        # These were in the count already.
        tracked.told = 0

    def untrack(self, container_id: str) -> None:
        """Its group is no more; fine where it was not tracked."""
        tracked = self._tracked.pop(container_id, None)
        if tracked is None:
            return
        if tracked.notice is not None:
            tracked.notice.close()
        self._departed.append(tracked.cgroup)

    def kill_of(self, pid: int, cgroup: str) -> OutOfMemory | None:
        """The kill that ended that process of that group (or of one in it), if one did.

        It is answered once: afterwards the number may be another process's.
        """
        # What was logged before the process was seen to end is in the log by now.
        _ = self._log.position
        kill = self._logged(pid, cgroup) or self._expected(pid, cgroup)
        if kill is None:
            return None
        tracked = self._container_of(cgroup)
        if kill in self._unplaced and tracked is not None:
            self._unplaced.remove(kill)
            self._tell(tracked, kill)
        return as_seen(kill, tracked.cgroup if tracked else cgroup)

    def _logged(self, pid: int, cgroup: str) -> Kill | None:
        kill = next((each for each in self._kills if is_of(each, pid, cgroup)), None)
        if kill is not None:
            self._kills.remove(kill)
        return kill

    def _expected(self, pid: int, cgroup: str) -> Kill | None:
        line = self._lines.expected(pid)
        kill = self._groups.kill(line, live=False) if line is not None else None
        if kill is None or not is_of(kill, pid, cgroup):
            return None
        self._answered = pid
        return kill

    def _take(self, record: KernelRecord, *, live: bool = True) -> None:
        line = self._lines.take(record.text)
        if line is None:
            return
        kill = self._groups.kill(line, live=live)
        if line.pid != self._answered:
            self._kills.append(kill)
        self._answered = 0
        if record.sequence <= self._cursor:
            return
        self._place(kill)
        self._remember(record.sequence)

    def _place(self, kill: Kill) -> None:
        found = self._container_of(kill.group)
        if not kill.group:
            self._unplaced.append(kill)
            for tracked in tuple(self._tracked.values()):
                self._settle(tracked)
        elif found is not None:
            self._tell(found, kill)
        elif not any(is_within(kill.group, each) for each in self._departed):
            # Of a container that is about to be restored, or of no container.
            self._untold.append(kill)

    def _tell(self, tracked: _Tracked, kill: Kill) -> None:
        tracked.told += 1
        self._publish(tracked.id, as_seen(kill, tracked.cgroup))

    def _publish(self, container_id: str, kill: OutOfMemory) -> None:
        details = {
            "victim": kill.victim,
            "pid": str(kill.pid),
            "limit": str(kill.limit),
            "cgroup": kill.cgroup,
        }
        log.warning("out of memory: a process was killed", extra={"id": container_id, **details})
        self._events.publish(KIND, container_id, details)

    def _counted(self, tracked: _Tracked) -> None:
        """The container's own count has news."""
        # The log first: what it has of them is more than a number.
        _ = self._log.position
        if tracked.notice is not None and tracked.notice.read() is None:
            tracked.notice.close()
            return
        self._settle(tracked)
        missing = self._missing(tracked)
        if missing > 0 and (self._log.problem or self._log.lost != tracked.lost):
            self._tell_unknown(tracked, missing)

    def _settle(self, tracked: _Tracked) -> None:
        """Kills of which nobody knows whose they were are those that the count has more."""
        while self._unplaced and self._missing(tracked) > 0:
            self._tell(tracked, self._unplaced.popleft())

    def _tell_unknown(self, tracked: _Tracked, missing: int) -> None:
        tracked.lost = self._log.lost
        # Most likely it was the container's own limit, where it has one.
        limit = self._groups.limit(tracked.cgroup)
        kill = OutOfMemory(victim="", pid=0, limit=limit, cgroup="/" if limit else "")
        for _ in range(missing):
            tracked.told += 1
            self._publish(tracked.id, kill)

    def _missing(self, tracked: _Tracked) -> int:
        return _count(cgroupfiles.text(tracked.events)) - tracked.before - tracked.told

    def _notice(self, tracked: _Tracked) -> Notice | None:
        """None where the kernel has no such file: the log alone has to do then."""
        try:
            fd = os.open(tracked.events, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            notice = Notice(fd, partial(self._counted, tracked))
        except OSError:
            os.close(fd)
            return None
        # Only later changes are news.
        notice.read()
        return notice

    def _take_untold(self, cgroup: str) -> list[Kill]:
        found = [kill for kill in self._untold if is_within(kill.group, cgroup)]
        for kill in found:
            self._untold.remove(kill)
        return found

    def _container_of(self, group: str) -> _Tracked | None:
        found = (each for each in self._tracked.values() if is_within(group, each.cgroup))
        return max(found, key=lambda each: len(each.cgroup), default=None)

    def _remember(self, sequence: int) -> None:
        self._cursor = sequence
        if self._state is None:
            return
        try:
            self._state.save(_STATE, _KEY, {"sequence": sequence})
        except AgentError as error:
            log.warning("a kill for lack of memory may be told twice: %s", error)


def _count(content: str) -> int:
    return cgroupfiles.parse_table(content).get("oom_kill", 0)


def _saved(state: State | None) -> int:
    saved = (state.load(_STATE, _KEY) or {}) if state is not None else {}
    sequence = saved.get("sequence", -1)
    return sequence if isinstance(sequence, int) else -1
