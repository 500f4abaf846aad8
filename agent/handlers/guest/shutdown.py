"""Sandbox.Shutdown: the answer first, then PID 1 ends the guest.

PID 1 is the only one to power off (DESIGN D1). It is asked whether it is there
before the answer goes out, because afterwards nobody can be told.
"""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from typing import Any, Protocol

from agent.core.errors import AgentError

log = logging.getLogger(__name__)


class PowerAction(StrEnum):
    """PID 1's words for what comes after the end."""

    POWER_OFF = "off"
    REBOOT = "reboot"


class Power(Protocol):
    """What is needed of `core.pid1.Pid1Client`."""

    async def ping(self) -> dict[str, Any]: ...

    async def power(self, action: str) -> None: ...


class Shutdown:
    """Asks PID 1, after the host was answered."""

    def __init__(self, pid1: Power) -> None:
        self._pid1 = pid1
        self._tasks: set[asyncio.Task[None]] = set()

    async def check(self) -> None:
        """Raises UNAVAILABLE when PID 1 does not answer: the guest would not go down."""
        await self._pid1.ping()

    def begin(self, action: PowerAction) -> None:
        """Ask PID 1 now; it stops this agent with everything else."""
        task = asyncio.get_running_loop().create_task(self._ask(action), name="shutdown")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, action: PowerAction) -> None:
        log.info("asking PID 1 for: %s", action.value)
        try:
            await self._pid1.power(action.value)
        except AgentError as error:
            log.error("the guest does not go down: %s", error)  # noqa: TRY400 - it says it all
