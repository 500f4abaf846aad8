"""Kills for lack of memory and the cgroups that they are about: the victim's, the limit's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.exits import is_within
from agent.core.life import OutOfMemory
from agent.core.usage import NO_LIMIT
from agent.handlers.runtime.cgroup import own_paths
from agent.handlers.runtime.usage import cgroupfiles
from agent.linux.processlist import printable

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.roots import Roots
    from agent.handlers.runtime.usage.oomlines import KillLine

_DELETED = " (deleted)"


@dataclass(slots=True, kw_only=True)
class Kill:
    """`group` is the victim's cgroup, empty while it is not known; `limited` is that of the
    limit, empty for the whole guest; `limit` is as it was when the kill was told."""

    pid: int
    name: str
    group: str
    limited: str
    limit: int


class OomGroups:
    """Looks groups up in cgroupfs and proc."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def directory(self, group: str) -> Path:
        return self._roots.cgroup / group.lstrip("/")

    def is_group(self, path: str) -> bool:
        return self.directory(path).is_dir()

    def kill(self, line: KillLine, *, live: bool) -> Kill:
        """The kill of a line; `live` when it was logged just now: whoever was killed long ago
        has left its number to others."""
        group = line.group or (live and self._own(line.pid)) or line.among or ""
        limited = line.limited
        if limited is None or (line.among and not is_within(group, line.among)):
            limited = self._nearest_limit(group)
        return Kill(
            pid=line.pid,
            name=printable(line.name),
            group=group,
            limited=limited,
            limit=self.limit(limited) if limited else 0,
        )

    def limit(self, group: str) -> int:
        """Bytes; 0 without one."""
        limit = cgroupfiles.count(self.directory(group) / "memory.max")
        return 0 if limit == NO_LIMIT else limit

    def _own(self, pid: int) -> str:
        """The group that a process is in; empty when it is gone."""
        paths = own_paths(cgroupfiles.text(self._roots.proc / str(pid) / "cgroup"))
        return paths[0].removesuffix(_DELETED) if paths else ""

    def _nearest_limit(self, group: str) -> str:
        """The group or the first above it that has a limit; empty when none has."""
        while group.strip("/"):
            if self.limit(group):
                return group
            group = group.rpartition("/")[0]
        return ""


def as_seen(kill: Kill, cgroup: str) -> OutOfMemory:
    """As seen from a container's group: a limit above it is the guest's own matter."""
    inside = bool(kill.limited) and is_within(kill.limited, cgroup)
    return OutOfMemory(
        victim=kill.name,
        pid=kill.pid,
        limit=kill.limit if inside else 0,
        cgroup=(kill.limited.removeprefix(cgroup) or "/") if inside else "",
    )


def is_of(kill: Kill, pid: int, cgroup: str) -> bool:
    """Whether it is the kill of that process of that group, or of one in it."""
    if kill.pid != pid:
        return False
    return not kill.group or is_within(kill.group, cgroup) or is_within(cgroup, kill.group)
