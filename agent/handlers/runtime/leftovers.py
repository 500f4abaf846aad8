"""What an earlier agent was doing when it died: its runtime calls still run.

They are PID 1's children by now. Until they are over, nobody can say what is
half done, so they are waited for, and killed when they take too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING

from agent.handlers.runtime.cgroup import Cgroup, own_paths
from agent.linux import pseudo

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.roots import Roots
    from agent.handlers.runtime.runtime import Runtime

log = logging.getLogger(__name__)

_INIT = 1
_PATIENCE = 5.0
"""Seconds from SIGKILL until a process that stays is left alone."""


async def wait_for_leftovers(roots: Roots, runtime: Runtime, deadline: Deadline) -> None:
    """Return when every runtime call that a dead agent left in our cgroup has ended."""
    calls = [pid for pid in _leftovers(roots) if runtime.recognizes(_arguments(roots, pid))]
    pidfds = [fd for pid in calls if (fd := _open(pid)) >= 0]
    with contextlib.ExitStack() as stack:
        for fd in pidfds:
            stack.callback(os.close, fd)
        running = await _wait(pidfds, deadline.left())
        for fd in running:
            log.warning("a runtime call of an earlier agent doesn't end: it is killed")
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        if running and await _wait(running, _PATIENCE):
            log.error("a runtime call of an earlier agent doesn't end even after SIGKILL")


def _leftovers(roots: Roots) -> list[int]:
    """In our cgroup, adopted by PID 1, and not ourselves: what we start has us as parent."""
    own = own_paths(pseudo.read_optional(roots.proc / "self/cgroup") or "")
    if not own or own[0] == "/":
        return []
    members = Cgroup(roots, own[0]).members()
    return [pid for pid in members if pid != os.getpid() and _parent(roots, pid) == _INIT]


def _arguments(roots: Roots, pid: int) -> list[str]:
    return (pseudo.read_optional(roots.proc / str(pid) / "cmdline") or "").split("\0")


def _parent(roots: Roots, pid: int) -> int:
    text = pseudo.read_optional(roots.proc / str(pid) / "status") or ""
    lines = (line.split() for line in text.splitlines() if line.startswith("PPid:"))
    return next((int(parent) for _, parent in lines), 0)


def _open(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


async def _wait(pidfds: list[int], seconds: float) -> list[int]:
    """Those that still run after that time."""
    if not pidfds:
        return []
    loop = asyncio.get_running_loop()
    ends = {fd: asyncio.Event() for fd in pidfds}
    for fd, end in ends.items():
        loop.add_reader(fd, end.set)
    waiting = {asyncio.ensure_future(end.wait()) for end in ends.values()}
    try:
        await asyncio.wait(waiting, timeout=seconds)
    finally:
        for task in waiting:
            task.cancel()
        for fd in pidfds:
            loop.remove_reader(fd)
    return [fd for fd, end in ends.items() if not end.is_set()]
