"""How processes ended that are forgotten: a host that lost an answer asks again.

Kept for a minute, also beyond the death of the agent, and never more than the limit. The
time is the kernel's monotonic clock: setting the guest's time of day shortens nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from agent.core.errors import AgentError
from agent.core.model import ProcessExit, ProcessRef
from agent.handlers.runtime.records import exit_of, key_of

if TYPE_CHECKING:
    from agent.handlers.runtime.context import State

log = logging.getLogger(__name__)

REMEMBERED: Final = 60.0
"""Seconds for which exits can be asked for after their process was forgotten."""

LIMIT: Final = 4096
"""Exits; the oldest goes first."""

_KIND = "departed"


class Departed:
    """Exits by process; without a `state` they end with this agent."""

    def __init__(self, state: State | None = None, *, limit: int = LIMIT) -> None:
        self._state = state
        self._limit = limit
        self._exits: dict[ProcessRef, ProcessExit] = {}

    def find(self, ref: ProcessRef) -> ProcessExit | None:
        return self._exits.get(ref)

    def add(self, ref: ProcessRef, end: ProcessExit) -> None:
        """From now on it can be found, for as long as it is remembered."""
        self.drop(ref)
        self._keep(ref, end, REMEMBERED)
        if self._state is None:
            return
        until = time.monotonic() + REMEMBERED
        process, exit_ = dataclasses.asdict(ref), dataclasses.asdict(end)
        try:
            data = {"process": process, "exit": exit_, "until": until}
            self._state.save(_KIND, key_of(ref), data)
        except AgentError as error:
            log.warning("how %s ended is not kept for a later agent: %s", key_of(ref), error)

    def drop(self, ref: ProcessRef) -> None:
        """Its name is used again, or its time is over."""
        if self._exits.pop(ref, None) is not None and self._state is not None:
            self._state.delete(_KIND, key_of(ref))

    def restore(self) -> None:
        """Take over what an earlier agent kept."""
        if self._state is None:
            return
        found = sorted(self._state.load_all(_KIND).items(), key=lambda item: _until(item[1]))
        for key, data in found:
            left = _until(data) - time.monotonic()
            try:
                ref, end = ProcessRef(**data["process"]), exit_of(data["exit"])
            except (KeyError, TypeError, ValueError) as error:
                log.warning("the saved exit %s is of another shape: %r", key, error)
                left = 0.0
            if left > 0:
                self._keep(ref, end, min(left, REMEMBERED))
            else:
                self._state.delete(_KIND, key)

    def _keep(self, ref: ProcessRef, end: ProcessExit, seconds: float) -> None:
        while len(self._exits) >= self._limit:
            self.drop(next(iter(self._exits)))
        self._exits[ref] = end
        asyncio.get_running_loop().call_later(seconds, self._over, ref, end)

    def _over(self, ref: ProcessRef, end: ProcessExit) -> None:
        # The name may have been used and forgotten again since.
        if self._exits.get(ref) is end:
            self.drop(ref)


def _until(data: dict[str, Any]) -> float:
    try:
        return float(data["until"])
    except (KeyError, TypeError, ValueError):
        return 0.0
