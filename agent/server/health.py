"""grpc.health.v1.Health: whether the agent can do its work, and why not.

A check does what every operation needs: it writes and reads a file in the state
directory and asks PID 1. Every change between SERVING and NOT_SERVING has a
reason: in the log, as an event, and with Check in the trailer
`innkeeper-health-reason` (the standard's message has no room for it).

An event loop that is blocked answers nobody, which a host sees at its own
deadline; once it is over, Watch tells of it: NOT_SERVING, then SERVING again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from grpc_health.v1 import health_pb2 as pb

from agent.core.errors import AgentError, Reason, not_found
from agent.server.routing import Methods, ServerStream, Unary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from agent.server.calls import Call, Send
    from agent.server.facades import EventSource

log = logging.getLogger(__name__)

REASON_TRAILER: Final = "innkeeper-health-reason"
PING_SECONDS: Final = 2.0
STALL_SECONDS: Final = 3.0
TICK_SECONDS: Final = 0.5
PROBE_TICKS: Final = 10

_PROBE_FILE = ".health"


class Pid1(Protocol):
    """What is needed of `core.pid1.Pid1Client`."""

    async def ping(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """One state of health; an empty reason means healthy."""

    reason: str = ""

    @property
    def healthy(self) -> bool:
        return not self.reason

    def answer(self) -> pb.HealthCheckResponse:
        """The standard's message for it."""
        kinds = pb.HealthCheckResponse
        return kinds(status=kinds.SERVING if self.healthy else kinds.NOT_SERVING)


HEALTHY: Final = Verdict()


class Probe:
    """Does what every operation needs."""

    def __init__(self, state: Path, pid1: Pid1, *, ping_seconds: float = PING_SECONDS) -> None:
        self._file = state / _PROBE_FILE
        self._pid1 = pid1
        self._ping_seconds = ping_seconds
        self._count = 0

    async def run(self) -> Verdict:
        """The verdict now; never raises for what is being probed."""
        return self._write_and_read() or await self._ping() or HEALTHY

    def _write_and_read(self) -> Verdict | None:
        # In the loop itself, without a deadline: it is a tmpfs of our own, and
        # a thread for it would cost more than all the rest of a check.
        self._count += 1
        written = str(self._count)
        try:
            self._file.write_text(written, encoding="ascii")
            found = self._file.read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            return Verdict(f"the state directory cannot be used: {error}")
        return None if found == written else Verdict("the state directory loses what is written")

    async def _ping(self) -> Verdict | None:
        try:
            async with asyncio.timeout(self._ping_seconds):
                await self._pid1.ping()
        except TimeoutError:
            return Verdict(f"PID 1 does not answer within {self._ping_seconds:g} s")
        except AgentError as error:
            return Verdict(str(error))
        return None


class Health:
    """Keeps the verdict, watches the event loop, and tells the watchers."""

    def __init__(
        self,
        probe: Probe,
        events: EventSource,
        *,
        stall_seconds: float = STALL_SECONDS,
        tick_seconds: float = TICK_SECONDS,
        now: Callable[[], float] | None = None,
    ) -> None:
        """`now` is the event loop's clock unless a test gives its own."""
        self._probe = probe
        self._events = events
        self._stall = stall_seconds
        self._tick = tick_seconds
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._verdict = HEALTHY
        self._watchers: set[asyncio.Queue[Verdict]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._probing: asyncio.Task[Verdict] | None = None

    def start(self) -> None:
        """Begin to watch the event loop."""
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._probing is not None:
            self._probing.cancel()

    @property
    def watcher_count(self) -> int:
        """How many Watch calls are open."""
        return len(self._watchers)

    async def check(self) -> Verdict:
        """Probe now; who asks while a probe runs gets its verdict."""
        if self._probing is None:
            self._probing = asyncio.get_running_loop().create_task(self._run(), name="health")
        return await asyncio.shield(self._probing)

    async def follow(self, tell: Callable[[Verdict], Any]) -> None:
        """Tell the verdict now and each change of it, in order, for ever."""
        queue: asyncio.Queue[Verdict] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            await tell(await self.check())
            last = self._verdict
            while True:
                verdict = await queue.get()
                if verdict.healthy is not last.healthy:
                    await tell(verdict)
                last = verdict
        finally:
            self._watchers.discard(queue)

    async def _run(self) -> Verdict:
        try:
            self._become(await self._probe.run())
            return self._verdict
        finally:
            self._probing = None

    def _become(self, verdict: Verdict) -> None:
        if verdict == self._verdict:
            return
        self._verdict = verdict
        state = "NOT_SERVING" if verdict.reason else "SERVING"
        reason = verdict.reason or "all that a check needs works again"
        log.warning("health is now %s: %s", state, reason)
        self._events.publish("health_changed", "", {"status": state, "reason": reason})
        for queue in self._watchers:
            queue.put_nowait(verdict)

    def _arm(self) -> None:
        due = self._now() + self._tick
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._tick, self.tick, due)

    def tick(self, due: float) -> None:
        """Called by the loop at `due` or, when something blocked it, later."""
        late = self._now() - due
        # A stall that began just after the last tick is seen short by one tick.
        if late + self._tick >= self._stall:
            self._stalled(late)
        self._ticks += 1
        if self._watchers and self._ticks % PROBE_TICKS == 0:
            self._probe_for_watchers()
        self._arm()

    def _stalled(self, late: float) -> None:
        before = self._verdict
        self._become(Verdict(f"the event loop did not run for {late:.1f} s"))
        self._become(before)

    def _probe_for_watchers(self) -> None:
        if self._probing is None:
            self._probing = asyncio.get_running_loop().create_task(self._run(), name="health")


class HealthService:
    """The standard's service; "" and every service of ours share one verdict."""

    def __init__(self, health: Health, services: Collection[str]) -> None:
        self._health = health
        self._services = frozenset(services) | {""}

    @property
    def methods(self) -> Methods:
        return {
            "Check": Unary(self.check),
            "List": Unary(self.list),
            "Watch": ServerStream(self.watch),
        }

    async def check(self, request: pb.HealthCheckRequest, call: Call) -> pb.HealthCheckResponse:
        """NOT_FOUND for a service that is not there, as the standard says."""
        if request.service not in self._services:
            raise not_found(
                f"there is no service {request.service!r}",
                reason=Reason.UNKNOWN_METHOD,
                service=request.service,
            )
        return (await self._judged(call)).answer()

    async def list(self, _request: pb.HealthListRequest, call: Call) -> pb.HealthListResponse:
        """The verdict under every name."""
        verdict = await self._judged(call)
        return pb.HealthListResponse(statuses=dict.fromkeys(self._services, verdict.answer()))

    async def _judged(self, call: Call) -> Verdict:
        verdict = await self._health.check()
        if verdict.reason:
            call.add_trailer(REASON_TRAILER, verdict.reason)
        return verdict

    async def watch(
        self, request: pb.HealthCheckRequest, _call: Call, send: Send[pb.HealthCheckResponse]
    ) -> None:
        """Every change; SERVICE_UNKNOWN, and the call stays open, for one that is not there."""
        if request.service not in self._services:
            await send(pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN))
            await asyncio.get_running_loop().create_future()
        await self._health.follow(lambda verdict: send(verdict.answer()))
