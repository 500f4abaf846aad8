"""Signals that we get while a process in the guest runs for the user.

The first SIGINT or SIGTERM is the process's, once there is one. The second, or
one before there is a process, or a terminal that went away, ends our own work:
the task is cancelled and undoes what it did. Later ones change nothing.

SIGQUIT, SIGUSR1 and SIGUSR2 are the process's each time.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_PASSED_ON = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *_PASSED_ON)


class Interrupts:
    """`async with Interrupts() as interrupts:` in the task that is to be ended."""

    def __init__(self) -> None:
        self.ended_by: signal.Signals | None = None
        self._forward: Callable[[int], None] | None = None
        self._pass_on: Callable[[int], None] | None = None
        self._task: asyncio.Task[object] | None = None

    def forward_to(self, action: Callable[[int], None]) -> None:
        """From now on the first SIGINT or SIGTERM goes there, and all that are passed on."""
        self._forward = self._pass_on = action

    def code_of(self, error: asyncio.CancelledError | BrokenPipeError) -> int:
        """Exit code of work that a signal ended, or that nobody reads any more (then
        what a local command gets that writes to nobody). Raises other cancellations."""
        if isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE
        if self.ended_by is None:
            raise error
        return 128 + self.ended_by

    async def __aenter__(self) -> Interrupts:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in _HANDLED:
            loop.add_signal_handler(number, self._arrived, number)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in _HANDLED:
            loop.remove_signal_handler(number)

    def _arrived(self, number: signal.Signals) -> None:
        if number in _PASSED_ON and self._pass_on is not None:
            self._pass_on(number)
            return
        forward, self._forward = self._forward, None
        if forward is not None and number is not signal.SIGHUP:
            forward(number)
        elif self.ended_by is None and self._task is not None:
            self.ended_by = number
            self._task.cancel()
