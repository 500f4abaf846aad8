"""Letting a container's process run, through the hooks that run inside it."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import TYPE_CHECKING

from agent.core.errors import timed_out, wrong_state
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

    Raises RUNTIME_REFUSED; WRONG_STATE when it ended first; OPERATION_TIMED_OUT, and then
    it is ended.
    """
    start = partial(_start_unless_ended, context, container, deadline)
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


async def _start_unless_ended(
    context: RuntimeContext, container: Container, deadline: Deadline
) -> None:
    """The runtime would wait for ever for a process that ended before it heard of its start.

    One that did hear of it may end before the runtime does, which has more to do.
    """
    if container.first is None:
        raise AssertionError("what is started has a first process")
    starting = asyncio.ensure_future(context.runtime.start(container.id, deadline))
    ended = asyncio.ensure_future(container.first.wait())
    try:
        await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done() and context.runtime.is_held(container.id):
            raise wrong_state(
                f"the process of container {container.id} ended before it was started",
                id=container.id,
                state="stopped",
            )
        await starting
    finally:
        ended.cancel()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def inside_failure(container: Container) -> AgentError:
    """HOOK_FAILED with what the runtime wrote to the process's standard error."""
    said = b""
    if (first := container.first) is not None:
        await first.wait()
        said = first.tail(_LAST_WORDS)
    return hooks.start_failure(container.bundle.config(), said)
