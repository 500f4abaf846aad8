"""What the kernel logs of its kills for lack of memory (mm/oom_kill.c).

    oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c1,mems_allowed=0,
      oom_memcg=/pods/s/c1,task_memcg=/pods/s/c1,task=NAME,pid=17,uid=0        (one line)
    Memory cgroup out of memory: Killed process 17 (NAME) total-vm:1kB, anon-rss:...
    Tasks in /pods/s/c1 are going to be killed due to memory.oom.group set
    Memory cgroup out of memory: Killed process 18 (NAME) total-vm:...

The first comes before the signal is sent, but only ten times in 5 seconds; the second at once
after the signal, always. After the third come the other victims of the same limit.

Names of processes and groups are their owner's choice, commas and `pid=` in them: only what
follows them to the end of the line, and what cannot be in them, tells where they end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.core.exits import is_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_START = "oom-kill:constraint="
_END = re.compile(r",pid=([0-9]{1,10}),uid=[0-9]{1,10}")
_TASK, _MEMCG, _TASK_MEMCG = ",task=", ",oom_memcg=", ",task_memcg="
# TASK_COMM_LEN less its NUL (include/linux/sched.h); bytes that are no text count as one.
_NAME_LIMIT = 15
_LINE_LIMIT = 16 * 1024

_KILLED = re.compile(
    r"(?:Memory cgroup out of memory|Out of memory[^:]{0,40}): "
    r"Killed process ([0-9]{1,10}) \((.*)\) total-vm:[0-9]+kB, anon-rss:[0-9]+kB, .*",
    re.DOTALL,
)
_SPARED = re.compile(
    r".{0,60}: OOM victim [0-9]+ \(.*\) is already exiting\. Skip killing the task", re.DOTALL
)
_GROUPED = re.compile(
    r"Tasks in (/.*) are going to be killed due to memory\.oom\.group set", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KillLine:
    """A kill: `limited` is the cgroup whose limit was reached, empty when the whole guest
    had no memory left, None when the log does not say; `group` is the victim's own.

    `among` is a group that was to be killed as a whole just before; the log does not say
    where that ends.
    """

    pid: int
    name: str
    limited: str | None = None
    group: str | None = None
    among: str | None = None


class OomLines:
    """Takes the log's lines in order; `is_group` tells whether there is a cgroup at a path."""

    def __init__(self, is_group: Callable[[str], bool]) -> None:
        self._is_group = is_group
        self._begun = ""
        self._summary: KillLine | None = None
        self._limited: str | None = None
        self._grouped: str | None = None

    def take(self, text: str) -> KillLine | None:
        """The kill that this line tells, if it tells one."""
        if text.startswith(_START):
            self._summarised(text)
        elif self._begun and text.startswith((",", "/")):
            # Another CPU logged something in between: the kernel goes on in a new record.
            self._summarised(self._begun + text)
        elif match := _GROUPED.fullmatch(text):
            self._grouped = match[1]
        elif match := _KILLED.fullmatch(text):
            return self._killed(int(match[1]), match[2])
        elif _SPARED.fullmatch(text):
            self._summary = None
        return None

    def expected(self, pid: int) -> KillLine | None:
        """The kill of that process, when it was summed up and no line has told it yet: the
        process may be gone before the kernel comes to that."""
        line = self._summary
        return line if line is not None and line.pid == pid else None

    def _summarised(self, text: str) -> None:
        line = parse_summary(text, self._is_group)
        self._begun = "" if line is not None or len(text) > _LINE_LIMIT else text
        if line is not None:
            self._summary, self._limited, self._grouped = line, line.limited, None

    def _killed(self, pid: int, name: str) -> KillLine:
        self._begun = ""
        summary, self._summary = self._summary, None
        if summary is not None and summary.pid == pid:
            return replace(summary, name=name)
        if self._grouped is None:
            self._limited = None
        return KillLine(pid=pid, name=name, limited=self._limited, among=self._grouped)


def parse_summary(text: str, is_group: Callable[[str], bool]) -> KillLine | None:
    """The line with all of it; None for one that is not whole."""
    end = None
    for end in _END.finditer(text):  # noqa: B007 - the last one
        pass
    if end is None or end.end() != len(text):
        return None
    # The name of a cpuset comes before, but has no "/" in it: the first one is the kernel's.
    before, found, rest = text[: end.start()].partition(f"{_MEMCG}/")
    limited, task = "", before
    if found:
        limited, task = _split_groups(f"/{rest}")
    else:
        task = before.partition(f"{_TASK_MEMCG}/")[2]
        task = f"/{task}"
    group, name = _split_task(task, is_group)
    return KillLine(pid=int(end[1]), name=name, limited=limited, group=group)


def _split_groups(text: str) -> tuple[str, str]:
    """The group of the limit, and the victim's with its name after it: it is in the first."""
    for limited, rest in _splits(text, f"{_TASK_MEMCG}/"):
        if is_within(f"/{rest}".partition(_TASK)[0], limited):
            return limited, f"/{rest}"
    limited, _, rest = text.partition(f"{_TASK_MEMCG}/")
    return limited, f"/{rest}"


def _split_task(text: str, is_group: Callable[[str], bool]) -> tuple[str, str]:
    """A group and a name: the first that could be, because a group that is there is right."""
    found = [(group, name) for group, name in _splits(text, _TASK) if len(name) <= _NAME_LIMIT]
    for group, name in found:
        if is_group(group):
            return group, name
    return found[-1] if found else (text, "")


def _splits(text: str, separator: str) -> Iterator[tuple[str, str]]:
    at = text.find(separator)
    while at >= 0:
        yield text[:at], text[at + len(separator) :]
        at = text.find(separator, at + 1)
