"""One operation at a time on one object, in the order of the requests.

An operation on a container has several steps with waits between them, and two
of them at once would step on each other. So each id has a queue of tasks. It is
not a lock: nobody holds it across a wait, an operation is a task of its own
with a deadline, and other ids don't notice. (Refusing the second one instead
would make every host write a retry loop for a request that is fine.)

A caller that goes away (a broken connection) doesn't stop its operation: it
ends as asked or is taken back by its own undo, and the same request again gets
the answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class Turns:
    """The queues, by id."""

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Task[Any]] = {}

    async def take(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work()`, run after all earlier work under this key."""
        return await asyncio.shield(self.enqueue(key, work))

    def enqueue(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """The same, for work that nobody waits for."""
        before = self._last.get(key)
        task = asyncio.get_running_loop().create_task(_after(before, work), name=f"turn of {key}")
        self._last[key] = task
        task.add_done_callback(lambda _: self._over(key, task))
        return task

    async def quiet(self, prefix: str, seconds: float) -> None:
        """Wait until nothing is under way for keys with that prefix, or so long."""
        tasks = [task for key, task in self._last.items() if key.startswith(prefix)]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def all_done(self) -> None:
        """Wait until nothing is under way."""
        while self._last:
            await asyncio.wait(list(self._last.values()))

    def _over(self, key: str, task: asyncio.Task[Any]) -> None:
        if self._last.get(key) is task:
            del self._last[key]
        if not task.cancelled():
            task.exception()  # marks it as seen: its caller may have left


async def _after(before: asyncio.Task[Any] | None, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    if before is not None:
        await asyncio.wait([before])
    return await work()
