"""What a call of the runtime left in a container when it failed or was cut off.

An exec's process is the runtime's own program until the very end, with the arguments of
the call, among them the exec's own file for the pid: no other call has that. Then it is
the program that was asked for, of which the runtime, when it is cut off just then, has
told nobody; but its standard streams are the pipes that were made for it. A process of
the container that shows the same arguments, or holds the same pipes, only asks to be killed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError
from agent.handlers.runtime.cgroup import open_member

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.table import Container

log = logging.getLogger(__name__)

_PORTION = 64
_ARGUMENT_BYTES = 16 * 1024
_TIME = 5.0
_TIME_OF_PORTION = 2.0
"""Seconds: a container can make whoever reads its processes' arguments wait."""


class _Left(NamedTuple):
    """How processes of one call of the runtime are known."""

    argument: str
    pipes: frozenset[str]


async def kill_left(
    context: RuntimeContext, container: Container, argument: str, pipes: Collection[str]
) -> None:
    """SIGKILL to every process of the container that has this argument, or one of these pipes
    ("pipe:[INODE]") as its standard stream. Raises AgentError when not all of them could be
    looked at."""
    left = _Left(argument, frozenset(pipes))
    pids = sorted(set(container.cgroup.members()))
    deadline = Deadline.after(_TIME)
    failure = None
    for start in range(0, len(pids), _PORTION):
        try:
            portion = pids[start : start + _PORTION]
            await _kill(context, container, portion, left, deadline.earlier(_TIME_OF_PORTION))
        except AgentError as error:
            failure = error
    if failure is not None:
        raise failure


def _standard_streams(directory: Path) -> set[str]:
    """What the kernel calls them (proc_pid_fd(5)); to read that waits for no file system."""
    found = set()
    for number in range(3):
        with contextlib.suppress(OSError):
            found.add(str((directory / str(number)).readlink()))
    return found


def _kill_one(container: Container, pid: int, pidfd: int) -> None:
    log.warning("container %s: %d is left of a failed exec: killed", container.id, pid)
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


async def _kill(
    context: RuntimeContext,
    container: Container,
    pids: list[int],
    left: _Left,
    deadline: Deadline,
) -> None:
    cgroup = container.record.cgroup
    # Opened before they are looked at: what is told is of them, or of one that is gone.
    with _opened(context, pids, cgroup) as pidfds:
        for pid, pidfd in pidfds.items():
            if not _standard_streams(context.roots.proc / str(pid) / "fd").isdisjoint(left.pipes):
                _kill_one(container, pid, pidfd)
        question = {
            "proc": str(context.roots.proc),
            "pids": list(pidfds),
            "cgroup": cgroup,
            "argument_bytes": _ARGUMENT_BYTES,
        }
        rows = await context.files.list_processes(question, deadline)
        for pid in _with_argument(rows, left.argument):
            _kill_one(container, pid, pidfds[pid])


@contextlib.contextmanager
def _opened(context: RuntimeContext, pids: Iterable[int], cgroup: str) -> Iterator[dict[int, int]]:
    with contextlib.ExitStack() as stack:
        pidfds = {}
        for pid in pids:
            if (fd := open_member(context.roots, pid, cgroup)) >= 0:
                stack.callback(os.close, fd)
                pidfds[pid] = fd
        yield pidfds


def _with_argument(rows: Iterable[Mapping[str, Any]], argument: str) -> list[int]:
    return [row["pid"] for row in rows if argument in row["arguments"]]
