"""Work that others can end with an error of theirs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from agent.core.errors import AgentError


class Interruptible:
    """`async with Interruptible() as work:` in the task that `work.interrupt(error)` ends.

    Like `asyncio.timeout`: the task is cancelled, and at the end of the block that becomes
    the error. A cancellation by anybody else stays one.
    """

    def __init__(self) -> None:
        self.over = asyncio.Event()
        """Set at the end of the block."""
        self._why: AgentError | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    def interrupt(self, why: AgentError) -> None:
        """Only the first word counts."""
        if self._why is None and self._task is not None and not self.over.is_set():
            self._why = why
            self._task.cancel()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("nobody's work can't be interrupted")
        self._cancelling = self._task.cancelling()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.over.set()
        if self._why is None or self._task is None:
            return
        if self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise self._why from error
