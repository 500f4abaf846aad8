"""The guest's only reaper of orphans: look, record, then reap.

A zombie still shows its cgroup and name in /proc; once it is reaped its pid may
belong to another. So the record comes first, and holds both.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.linux import pidfd, pseudo

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.linux.pidfd import ChildExit
    from agent.pid1.journal import Journal

# A storm of exits must not keep the socket waiting.
_AT_ONCE = 256
_DELETED = " (deleted)"


class Reaper:
    """Takes all children that end; whoever wants to know of one says so with `expect`."""

    def __init__(self, proc: str, journal: Journal) -> None:
        self._proc = proc
        self._journal = journal
        self._expected: dict[int, Callable[[ChildExit], None]] = {}

    def expect(self, pid: int, action: Callable[[ChildExit], None]) -> None:
        """Call `action` when this child has been reaped, once."""
        self._expected[pid] = action

    def collect(self) -> bool:
        """Record and reap; True when there may be more."""
        for _ in range(_AT_ONCE):
            child = pidfd.peek_exit()
            if child is None:
                return False
            self._record(child)
            pidfd.reap(child.pid)
            action = self._expected.pop(child.pid, None)
            if action is not None:
                action(child)
        return True

    def _record(self, child: ChildExit) -> None:
        self._journal.append(
            child,
            cgroup=cgroup_of(pseudo.read_optional(f"{self._proc}/{child.pid}/cgroup") or ""),
            at=time.time(),
            comm=_name(f"{self._proc}/{child.pid}/comm"),
        )


def cgroup_of(text: str) -> str:
    """The cgroup v2 path in the text of /proc/PID/cgroup; empty where there is none.

    The kernel marks the path of a group that is removed already; the mark is not part of it.
    """
    for line in text.split("\n"):
        if line.startswith("0::"):
            return _printable(line.removeprefix("0::").removesuffix(_DELETED))
    return ""


def _name(path: str) -> str:
    return _printable((pseudo.read_optional(path) or "").removesuffix("\n"))


def _printable(text: str) -> str:
    """A container may choose any bytes; what we record is always valid UTF-8."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
