"""Making a process through the runtime: intent, streams, the runtime's call, its pid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.handlers.runtime.runtime import Stdio
from agent.handlers.runtime.streams.console import console_socket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.core.deadlines import Deadline
    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.process import Process


async def launch(
    context: RuntimeContext,
    process: Process,
    make: Callable[[Stdio], Awaitable[int]],
    deadline: Deadline,
) -> None:
    """`make` asks the runtime and returns the pid.

    The order is what lets a process be found again, whenever the agent dies:
    the intent is saved, then PID 1 has our ends of the streams, then the
    runtime is asked. (A terminal comes from the runtime, so it is stored as
    soon as it is there; until then its loss hangs the process up.)
    """
    process.save()
    if process.record.terminal:
        with console_socket(context.roots.run / "consoles") as console:
            pid = await make(Stdio(console=console.path))
            await process.streams.open_terminal(await console.receive(deadline))
    else:
        pid = await make(await process.streams.open_pipes())
    process.began(pid)
