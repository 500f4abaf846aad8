"""Starting programs: with default signals, in a session of their own, no descriptor but 0 to 2."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING

from agent.linux import pidfd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.linux.pidfd import ChildExit

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
# Python ignores these two, and an ignored signal survives exec.
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)


def spawn(
    argv: tuple[str, ...], environment: Mapping[str, str], *, output: int | None = None
) -> int:
    """Start `argv` (an absolute path first) and return its pid; `output` becomes its 1 and 2.

    Raises OSError when it cannot be executed.
    """
    actions = [] if output is None else [(os.POSIX_SPAWN_DUP2, output, fd) for fd in (1, 2)]
    return os.posix_spawn(
        argv[0],
        argv,
        environment,
        file_actions=actions,
        setsigmask=(),
        setsigdef=_DEFAULT_SIGNALS,
        setsid=True,
    )


def wait_for(pid: int, seconds: float) -> ChildExit | None:
    """Wait for a child and reap it; None when it has not ended in time.

    Only for the time before the loop runs: later the reaper takes all children.
    """
    fd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return pidfd.reap(pid) if poll.poll(max(0.0, seconds) * 1000) else None
    finally:
        os.close(fd)


def read_until_end(fd: int, *, deadline: float, limit: int) -> bytes:
    """What comes from a pipe until its end, `deadline` (monotonic) or `limit` bytes."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    data = b""
    while len(data) < limit and poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        part = os.read(fd, limit - len(data))
        if not part:
            break
        data += part
    return data
