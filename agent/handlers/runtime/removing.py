"""Ending a container and removing all of it."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, wrong_state
from agent.core.undo import UndoStack
from agent.handlers.runtime.ends import DESTROYED, REMOVED
from agent.handlers.runtime.teardown import push_teardown

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.turns import Requests, Turns
    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.table import Container


class Removal:
    """One removal; `grace` are the seconds between the request to end and the end."""

    def __init__(
        self,
        context: RuntimeContext,
        container: Container,
        deadline: Deadline,
        *,
        grace: float = 0.0,
        sandbox_gone: bool = False,
    ) -> None:
        self._context = context
        self._container = container
        self._deadline = deadline
        self._grace = grace
        self._why = DESTROYED if sandbox_gone else REMOVED
        self._refusal = refusal(container.id, sandbox_gone=sandbox_gone)

    async def end(self, turns: Turns, requests: Requests) -> None:
        """Until nothing of it runs but what can't be killed. Raises AgentError."""
        await self._resume()
        await self._ask()
        # An exec that is under way fails now, and takes itself back before the rest goes.
        for process in self._container.processes.values():
            process.note(signal.SIGKILL, self._why)
        self._container.cgroup.kill()
        execs = f"{self._container.id}:"
        requests.stop(lambda key: key.startswith(execs), self._refusal)
        await turns.quiet(execs, self._deadline.left())

    async def clear(self, *, undone: bool) -> None:
        """Take all of it away; raises the first failure, with what else stays."""
        undo = UndoStack(f"remove container {self._container.id}")
        push_teardown(undo, self._context, self._container, lambda: self._deadline, undone=undone)
        await undo.run()
        if not undo.failures:
            return
        # The first is the cause of the others, mostly.
        first = undo.failures[0].error
        first.add_note(f"container {self._container.id}: " + "; ".join(map(str, undo.failures)))
        raise first

    async def _resume(self) -> None:
        """Who stands still can be killed, but can't end by itself."""
        paused = self._container.cgroup.frozen
        with contextlib.suppress(AgentError):
            self._container.cgroup.thaw_all()
        if paused:
            details = {"why": "removed"}
            self._context.events.publish("container_resumed", self._container.id, details)

    async def _ask(self) -> None:
        first = self._container.first
        if first is None or first.exit is not None or self._grace <= 0:
            return
        first.signal(signal.SIGTERM, self._why)
        with contextlib.suppress(TimeoutError):
            async with self._deadline.earlier(self._grace).limit():
                await first.wait()


def refusal(container_id: str, *, sandbox_gone: bool) -> AgentError:
    """What they are told who want something else of it meanwhile."""
    if sandbox_gone:
        return wrong_state(
            f"container {container_id}: the sandbox is being destroyed", id=container_id
        )
    return wrong_state(
        f"container {container_id} is being removed", id=container_id, state="removing"
    )


def remove_parent(context: RuntimeContext) -> None:
    """The sandbox's cgroup, when nothing is left in it: no other container, no namespaces
    that are held. The kernel refuses it else, and then somebody else is the last."""
    with contextlib.suppress(OSError):
        (context.roots.cgroup / context.parent().lstrip("/")).rmdir()
