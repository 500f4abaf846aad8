"""A container's cgroup: who is in it, ending or pausing them all, waiting until it is empty.

The runtime makes and removes the group. The agent asks the kernel for what no
list of pids can give: `cgroup.kill` also gets what forks meanwhile (cgroup-v2.rst).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
from types import MappingProxyType
from typing import TYPE_CHECKING

from agent.core.errors import kernel_refused, timed_out
from agent.core.exits import is_within
from agent.handlers.runtime import freezing, grouptree
from agent.handlers.runtime.groupevents import GONE, until_told
from agent.linux import pseudo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.core.deadlines import Deadline
    from agent.core.roots import Roots


_LIMIT = re.compile(
    r"cpu\.(max|max\.burst|weight|idle|uclamp\.(min|max))|cpuset\.(cpus|mems)"
    r"|io\.(max|weight|bfq\.weight)|hugetlb\..+\.max|(pids|rdma|misc)\.max"
    r"|memory\.(min|low|high|max|oom\.group|(swap|zswap)\.max|swap\.high)"
)
"""Files of limits (cgroup-v2.rst); what was written to them reads as it can be written."""

_BOUNDS = MappingProxyType({"cgroup.max.descendants": "1000", "cgroup.max.depth": "32"})
"""More than what manages groups in a container makes (systemd: some hundred, 6 deep)."""


class Cgroup:
    """A group by its path (`/pods/SANDBOX/CONTAINER`), there or not."""

    def __init__(self, roots: Roots, path: str) -> None:
        self.path = path
        self._directory = roots.cgroup / path.lstrip("/")

    def members(self) -> tuple[int, ...]:
        """Pids in the group and below; none when it is gone."""
        return tuple(grouptree.pids(self._directory))

    def kill(self) -> None:
        """SIGKILL to every process in it, also to those that come into being meanwhile."""
        try:
            pseudo.write(self._directory / "cgroup.kill", "1")
        except OSError as error:
            if error.errno not in GONE:
                raise kernel_refused(error, doing=f"kill all of {self.path}") from error

    @property
    def frozen(self) -> bool:
        """Whether it is paused, or about to be; see freezing.py for all of these."""
        return freezing.is_frozen(self._directory)

    async def freeze(self, deadline: Deadline) -> None:
        """Pause all in it; raises OPERATION_TIMED_OUT with nobody paused."""
        await freezing.freeze(self._directory, deadline)

    async def thaw(self, deadline: Deadline) -> None:
        """End the pause."""
        await freezing.thaw(self._directory, deadline)

    def thaw_all(self) -> None:
        """Let everybody run, also in groups below that the container has frozen itself."""
        freezing.thaw_all(self._directory)

    async def wait_empty(self, deadline: Deadline) -> None:
        """Raises OPERATION_TIMED_OUT naming who is left; a group that is gone is empty."""
        try:
            async with deadline.limit():
                await until_told(self._directory, "populated 0")
        except TimeoutError:
            left = self.members()
            raise timed_out(
                f"the cgroup {self.path} still has the processes {left}",
                hint="processes that even SIGKILL can't end wait for a device or a file system",
                cgroup=self.path,
            ) from None

    def remove(self) -> None:
        """Remove what the runtime left; raises AgentError when somebody is still in it."""
        grouptree.remove(self._directory)

    def bound(self, unified: Mapping[str, str]) -> None:
        """Set how many groups there may be below it and how deep, but for what `unified` (of
        OCI's linux.resources) has set: looking at all of them must not take long.

        Above the container's own view of the tree, so it can't lift them (nsdelegate,
        cgroup-v2.rst). Raises AgentError.
        """
        for name, text in _BOUNDS.items():
            if name in unified:
                continue
            try:
                pseudo.write(self._directory / name, text)
            except OSError as error:
                if error.errno not in GONE:
                    raise kernel_refused(error, doing=f"set {name} of {self.path}") from error

    def limits(self) -> dict[str, str]:
        """What the group's files of limits say now, by name; none when it is gone."""
        files = self._directory.iterdir() if self._directory.is_dir() else ()
        names = sorted(file.name for file in files if _LIMIT.fullmatch(file.name))
        found = {name: pseudo.read_optional(self._directory / name) for name in names}
        return {name: text for name, text in found.items() if text is not None}

    def set_limits(self, wanted: Mapping[str, str]) -> None:
        """Write back what `limits` gave, where it is another now. Raises AgentError."""
        now = self.limits()
        for name, text in wanted.items():
            if now.get(name, text) == text:
                continue
            try:
                for line in _lines(name, text, now[name]):
                    pseudo.write(self._directory / name, line)
            except OSError as error:
                raise kernel_refused(error, doing=f"set {name} of {self.path} back") from error


def open_member(roots: Roots, pid: int, cgroup: str) -> int:
    """A pidfd of a process in that group or below; -1 when it is gone, because
    then nobody, or somebody else, has its number. The caller owns it."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return -1
    # Looked at after the opening: it is the process that was opened, or one that is gone.
    text = pseudo.read_optional(roots.proc / str(pid) / "cgroup") or ""
    if any(is_within(path, cgroup) for path in own_paths(text)):
        return pidfd
    os.close(pidfd)
    return -1


def signal_member(roots: Roots, pid: int, cgroup: str, number: int) -> None:
    """Signal a process if it is (still) in that group."""
    pidfd = open_member(roots, pid, cgroup)
    if pidfd < 0:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)


def is_over(roots: Roots, pid: int, cgroup: str) -> bool:
    """Whether a process has ended, also when nobody has waited for it yet."""
    pidfd = open_member(roots, pid, cgroup)
    if pidfd < 0:
        return True
    try:
        # Readable is one that has ended (pidfd_open(2)).
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(pidfd)


def own_paths(text: str) -> list[str]:
    """The cgroup v2 path in a `/proc/PID/cgroup` (line `0::PATH`, cgroups(7))."""
    return [line[3:] for line in text.split("\n") if line.startswith("0::")]


def _lines(name: str, wanted: str, now: str) -> Iterator[str]:
    """The writes that make of `now` what is wanted; io.max takes one device at a time,
    and doesn't show those that have no limit."""
    if name == "io.max":
        kept = {line.split(" ")[0] for line in wanted.splitlines()}
        for device in {line.split(" ")[0] for line in now.splitlines()} - kept:
            yield f"{device} rbps=max wbps=max riops=max wiops=max"
    for line in wanted.splitlines():
        # An empty list of CPUs is written as an empty line: nothing is no write.
        yield line or "\n"
