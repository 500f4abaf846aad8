"""How long a process that was added by exec is kept after its end.

At least a minute, so that its exit and output can be asked for, and as long as
nobody has read its output to the end, but never more of them than the limit: an
exec beyond it makes the oldest finished one go first. How it ended can be asked
for a minute more. A container's first process stays as long as its container.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

from agent.core.errors import Reason, exhausted
from agent.handlers.runtime.departed import REMEMBERED

if TYPE_CHECKING:
    from agent.core.turns import Turns
    from agent.handlers.runtime.process import Process
    from agent.handlers.runtime.table import Container, ContainerTable

EXEC_LIMIT = 4096
"""Processes of one container added by exec and not yet forgotten (protocol README)."""


class Retention:
    """Forgets finished processes in time. It keeps none that went with its container."""

    def __init__(self, table: ContainerTable, turns: Turns, *, limit: int = EXEC_LIMIT) -> None:
        self._table = table
        self._turns = turns
        self._limit = limit
        self._due: WeakSet[Process] = WeakSet()

    def exited(self, process: Process) -> None:
        """The time begins to run."""
        asyncio.get_running_loop().call_later(REMEMBERED, self._is_due, ref(process))

    def read(self, process: Process) -> None:
        """Some reader has read all there is; perhaps only that was waited for."""
        if process in self._due and process.streams.all_read:
            self._forget_soon(process)

    async def make_room(self, container: Container) -> None:
        """Raises LIMIT_REACHED when every process the container may have still runs."""
        added = [each for name, each in container.processes.items() if name]
        if len(added) < self._limit:
            return
        finished = sorted(
            (each for each in added if each.exit is not None),
            key=lambda each: (not each.streams.all_read, each.exit.at if each.exit else 0.0),
        )
        if not finished:
            raise exhausted(
                f"container {container.id} has {self._limit} processes that were added by exec",
                reason=Reason.LIMIT_REACHED,
                limit=self._limit,
            )
        await self._forget(finished[0])

    def _is_due(self, ended: ref[Process]) -> None:
        process = ended()
        if process is not None and self._is_there(process):
            self._due.add(process)
            self.read(process)

    def _forget_soon(self, process: Process) -> None:
        self._due.discard(process)
        self._turns.enqueue(process.record.key, lambda: self._forget(process))

    async def _forget(self, process: Process) -> None:
        if self._is_there(process):
            self._due.discard(process)
            container = self._table.container(process.record.container_id)
            del container.processes[process.record.exec_id]
            self._table.remember(process)
            await process.forget()

    def _is_there(self, process: Process) -> bool:
        """Not forgotten with its container since, nor replaced under the same name."""
        container = self._table.find(process.record.container_id)
        return container is not None and (
            container.processes.get(process.record.exec_id) is process
        )
