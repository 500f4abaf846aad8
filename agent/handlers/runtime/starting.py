"""Letting a container's process run, through the hooks that run inside it."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

from agent.core.errors import timed_out
from agent.handlers.runtime import hooks
from agent.handlers.runtime.ends import UNDONE

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.errors import AgentError
    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.table import Container

_LAST_WORDS = 4096
"""Bytes of standard error in which the runtime says what a hook inside has done."""


async def start_with_hooks(
    context: RuntimeContext, container: Container, deadline: Deadline
) -> bool:
    """Whether it came to run its program: a hook inside may have failed.

    Raises RUNTIME_REFUSED; OPERATION_TIMED_OUT, and then it is ended.
    """
    start = partial(context.runtime.start, container.id, deadline)
    pid = container.first.pid if container.first else 0
    try:
        return await hooks.start(container.bundle.config(), pid, start, deadline)
    except TimeoutError:
        # Who hangs in a hook is no running container.
        for process in container.processes.values():
            process.note(signal.SIGKILL, UNDONE)
        container.cgroup.kill()
        raise timed_out(
            f"the startContainer hooks of container {container.id} took too long",
            hint="it is stopped; give Start more time or the hooks a timeout",
            id=container.id,
        ) from None


async def inside_failure(container: Container) -> AgentError:
    """HOOK_FAILED with what the runtime wrote to the process's standard error."""
    said = b""
    if (first := container.first) is not None:
        await first.wait()
        said = first.tail(_LAST_WORDS)
    return hooks.start_failure(container.bundle.config(), said)
