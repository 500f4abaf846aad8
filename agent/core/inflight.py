"""Calls on one object that are under way, shared by callers who ask for the same.

A host that lost its connection asks again while the first call still runs: both
get the one answer. A different request under the same id is refused. When the
last caller leaves, the call is cancelled and takes back what it did before the
caller's own cancellation goes on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from agent.core.errors import AgentError, Reason, already_exists, timed_out

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from agent.core.deadlines import Deadline

R = TypeVar("R")
T = TypeVar("T")


@dataclass(slots=True)
class _Call(Generic[R, T]):
    request: R
    task: asyncio.Task[T]
    callers: int = 0


class InFlight(Generic[R, T]):
    """The calls under way for one kind of object, by id."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._calls: dict[str, _Call[R, T]] = {}

    def requests(self) -> dict[str, R]:
        """What is being worked on now, by id."""
        return {key: call.request for key, call in self._calls.items()}

    async def run(self, key: str, request: R, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `start()`, or of the same request's call that is already under way.

        Raises ID_IN_USE when another request under this id is.
        """
        while (leaving := self._calls.get(key)) and leaving.callers == 0:
            await asyncio.wait([leaving.task])
        call = self._calls.get(key)
        if call is None:
            call = self._start(key, request, start)
        elif call.request != request:
            raise self._other(key)
        call.callers += 1
        try:
            return await asyncio.shield(call.task)
        finally:
            call.callers -= 1
            if call.callers == 0 and not call.task.done():
                call.task.cancel()
                await asyncio.wait([call.task])

    async def over(self, key: str, deadline: Deadline) -> None:
        """Wait until no call on `key` is under way, however it ends; raises OPERATION_TIMED_OUT."""
        call = self._calls.get(key)
        if call is None:
            return
        _, pending = await asyncio.wait([call.task], timeout=deadline.left())
        if pending:
            raise timed_out(f"the request for {self._kind} {key} is still under way", id=key)

    def _start(
        self, key: str, request: R, start: Callable[[], Coroutine[Any, Any, T]]
    ) -> _Call[R, T]:
        call = _Call(request, asyncio.get_running_loop().create_task(start()))
        self._calls[key] = call

        def over(task: asyncio.Task[T]) -> None:
            del self._calls[key]
            if not task.cancelled():
                task.exception()  # marks it as seen, for a call whose callers all left

        call.task.add_done_callback(over)
        return call

    def _other(self, key: str) -> AgentError:
        return already_exists(
            f"another request for {self._kind} {key} is under way",
            reason=Reason.ID_IN_USE,
            hint="repeat the same request to share its answer, or choose another id",
            id=key,
        )
