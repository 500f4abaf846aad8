"""Undo: what was done so far, taken back in reverse order when a step fails.

    async with UndoStack("attach storage s1") as undo:
        os.mkdir(path)
        undo.push(f"remove {path}", lambda: os.rmdir(path))
        ...
        undo.commit()

Leaving the block without `commit()`, by an error, a cancellation or a return,
runs every action. One that fails does not stop the others: failures are logged,
kept in `failures`, and added to the error that is on its way out, because a host
must know what could not be taken back.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

from agent.core.errors import AgentError

if TYPE_CHECKING:
    from types import TracebackType

log = logging.getLogger(__name__)

UndoAction: TypeAlias = Callable[[], Awaitable[object] | object]


@dataclass(frozen=True, slots=True)
class UndoFailure:
    """An action that could not be taken back, and why."""

    description: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.description}: {self.error}"


class UndoStack:
    """Actions that take steps back, last in, first out."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._actions: list[tuple[str, UndoAction]] = []
        self.failures: list[UndoFailure] = []

    def push(self, description: str, action: UndoAction) -> None:
        """Remember how to take back the step just done; the action may be async.

        An action must bound its own time: the stack waits for it.
        """
        self._actions.append((description, action))

    def commit(self) -> None:
        """Keep everything that was done."""
        self._actions.clear()

    async def run(self) -> None:
        """Run every action, newest first, also when the caller is cancelled meanwhile."""
        if not self._actions:
            return
        running = asyncio.ensure_future(self._run_all())
        cancelled = False
        while not running.done():
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError

    async def _run_all(self) -> None:
        while self._actions:
            description, action = self._actions.pop()
            try:
                outcome = action()
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception as error:  # noqa: BLE001 - the other steps must still be taken back
                self.failures.append(UndoFailure(description, error))
                log.warning("%s: could not undo: %s: %s", self._operation, description, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.run()
        if self.failures and error is not None:
            error.add_note("not undone: " + "; ".join(map(str, self.failures)))
        if self.failures and isinstance(error, AgentError):
            error.fields["not_undone"] = "; ".join(map(str, self.failures))
