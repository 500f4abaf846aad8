"""One operation at a time on one object, in the order of the requests.

An operation on a container has several steps with waits between them, and two
of them at once would step on each other. So each id has a queue of tasks. It is
not a lock: nobody holds it across a wait, an operation is a task of its own
with a deadline, and other ids don't notice. (Refusing the second one instead
would make every host write a retry loop for a request that is fine.)

A caller that goes away (a broken connection) doesn't stop its operation: it
ends as asked or is taken back by its own undo, and the same request again gets
the answer. `Requests` are turns that can be stopped, by their callers or others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from agent.core.errors import timed_out

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from agent.core.deadlines import Deadline
    from agent.core.errors import AgentError

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


class Requests:
    """Turns whose callers wait for the result, and that can be stopped.

    What is stopped before its turn is not begun; what is under way is cancelled, once, and
    takes back what it did before the next one's turn.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._all: list[_Request[Any]] = []

    async def take(
        self,
        key: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        deadline: Deadline,
        *,
        wish: str = "",
        firm: bool = False,
    ) -> T:
        """The result of `work`, which begins when all before it under this key is over.

        It is not begun, and OPERATION_TIMED_OUT, when that takes longer than the deadline.
        Once begun it bounds its own time. With a `wish` it is stopped when its caller has
        left, and everybody else's who wishes the same; without one it goes on. `stop` leaves
        a `firm` one alone. Raises what it was stopped for.
        """
        request = _Request(key, work, deadline, wish=wish, firm=firm)
        request.task = self._turns.enqueue(key, request.run)
        self._all.append(request)
        request.task.add_done_callback(lambda _: self._all.remove(request))
        try:
            return await request.result()
        finally:
            request.has_caller = False
            self._give_up(request)

    def wished(self, prefix: str) -> tuple[str, ...]:
        """The keys with a wish like that, waiting or under way."""
        return tuple(dict.fromkeys(r.key for r in self._all if r.wish.startswith(prefix)))

    def stop(self, chosen: Callable[[str], bool], why: AgentError) -> None:
        """Stop those under the chosen keys, waiting or under way; their callers are told why."""
        for request in self._all:
            if chosen(request.key) and not request.firm:
                request.stop(why)

    def _give_up(self, left: _Request[Any]) -> None:
        same = [each for each in self._all if (each.key, each.wish) == (left.key, left.wish)]
        if left.wish and not any(each.has_caller for each in same):
            for request in same:
                request.stop(_no_turn(left.key))


class _Request(Generic[T]):
    """One of them; `task` is its turn."""

    task: asyncio.Task[T]

    def __init__(
        self,
        key: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        deadline: Deadline,
        *,
        wish: str,
        firm: bool,
    ) -> None:
        self.key = key
        self.wish = wish
        self.firm = firm
        self.has_caller = True
        self._work = work
        self._deadline = deadline
        self._begun = asyncio.Event()
        self._stopped: AgentError | None = None

    async def run(self) -> T:
        if self._stopped is not None:
            raise self._stopped
        if self._deadline.passed:
            raise _no_turn(self.key)
        self._begun.set()
        return await self._work()

    async def result(self) -> T:
        beginning = asyncio.ensure_future(self._begun.wait())
        first = asyncio.FIRST_COMPLETED
        try:
            waiting = {self.task, beginning}
            await asyncio.wait(waiting, timeout=self._deadline.left(), return_when=first)
        finally:
            beginning.cancel()
        if not (self._begun.is_set() or self.task.done()):
            raise _no_turn(self.key)
        await asyncio.wait([self.task])
        if self._stopped is not None and (self.task.cancelled() or self.task.exception()):
            raise self._stopped
        return self.task.result()

    def stop(self, why: AgentError) -> None:
        """A second time is nothing: what takes itself back is left to do so."""
        if self._stopped is None:
            self._stopped = why
            if self._begun.is_set():
                self.task.cancel()


def _no_turn(key: str) -> AgentError:
    return timed_out(
        f"what was asked of {key.replace(':', '/')} before this was not over in time",
        hint="another operation on it is under way; ask again",
        id=key.partition(":")[0],
    )
