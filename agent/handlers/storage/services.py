"""What goes on in storages while they are attached: one task each."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.errors import Reason, wrong_state

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.handlers.storage.base import Service

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    service: Service
    task: asyncio.Task[None]


class Services:
    """The running services, by storage id; most storages have none."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}

    async def start(self, storage_id: str, service: Service | None, deadline: Deadline) -> None:
        """Fill the storage for the first time, then go on; raises what filling raises."""
        if service is not None:
            await service.fill(deadline)
        self.resume(storage_id, service)

    def resume(self, storage_id: str, service: Service | None) -> None:
        """Go on, after a restart or a detachment that was refused."""
        if service is None:
            return
        task = asyncio.get_running_loop().create_task(service.run())
        task.add_done_callback(lambda done: _tell(storage_id, done))
        self._running[storage_id] = _Running(service=service, task=task)

    def running(self, storage_id: str) -> Service | None:
        found = self._running.get(storage_id)
        return found.service if found else None

    async def fill(self, storage_id: str, deadline: Deadline) -> bool:
        """Raises WRONG_STATE for a storage that nothing goes on in."""
        found = self._running.get(storage_id)
        if found is None:
            raise wrong_state(
                f"storage {storage_id} is not a watched one: there is nothing to refresh",
                reason=Reason.WRONG_STATE,
                id=storage_id,
            )
        return await found.service.fill(deadline)

    async def stop(self, storage_id: str) -> None:
        """Fine when nothing goes on."""
        found = self._running.pop(storage_id, None)
        if found is not None:
            found.task.cancel()
            await asyncio.wait([found.task])

    async def close(self) -> None:
        for storage_id in list(self._running):
            await self.stop(storage_id)


def _tell(storage_id: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("storage %s: its service ended: %s", storage_id, error, exc_info=error)
