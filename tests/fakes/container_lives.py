"""What containers do and did, for a fake guest: states, figures, logs, ends and events.

Streams can be broken: `breaks` says after how many answers a call ends as a lost
connection does, call by call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from innkeeper.v1 import containers_pb2, processes_pb2, sandbox_pb2
from tests.fakes.processes_service import FakeProcess, FakeProcesses
from tests.fakes.refusing import refuse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from google.protobuf.message import Message

    Context = aio.ServicerContext[Any, Any]


@dataclass(slots=True, kw_only=True)
class FakeLives:
    """What there is, and what was asked."""

    statuses: list[containers_pb2.ContainerStatus] = field(default_factory=list)
    processes: dict[str, list[processes_pb2.ProcessInfo]] = field(default_factory=dict)
    stats: list[containers_pb2.ContainerStats] = field(default_factory=list)
    """In the order in which they are told; the last ones then stay the same."""
    log: list[processes_pb2.LogsResponse] = field(default_factory=list)
    has_log: bool = True
    ends: dict[str, processes_pb2.WaitResponse] = field(default_factory=dict)
    """By CONTAINER or CONTAINER/EXEC; others never end."""
    events: list[sandbox_pb2.Event] = field(default_factory=list)
    """With their numbers; the ring keeps these."""
    breaks: list[int] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    """Ids of containers that there are not."""
    calls: list[Message] = field(default_factory=list)

    async def note(self, request: Any, context: Context) -> None:
        """Refuses what is about a container that there is not."""
        self.calls.append(request)
        container = getattr(request, "id", "") or getattr(request, "container_id", "")
        if container in self.unknown:
            code = grpc.StatusCode.NOT_FOUND
            await refuse(context, code, f"no container {container}", "UNKNOWN_CONTAINER")

    async def tell(self, answers: Iterable[Any], context: Context) -> AsyncIterator[Any]:
        """The answers, up to where this call breaks."""
        left = self.breaks.pop(0) if self.breaks else -1
        for answer in answers:
            if left == 0:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "Stream removed")
            left -= 1
            yield answer


class LivingContainers:
    """The calls of `Containers` that change or watch what is there."""

    def __init__(self, lives: FakeLives) -> None:
        self._lives = lives

    async def Pause(  # noqa: N802 - gRPC's name
        self, request: containers_pb2.PauseContainerRequest, context: Context
    ) -> containers_pb2.ContainerStatus:
        await self._lives.note(request, context)
        return containers_pb2.ContainerStatus(id=request.id)

    async def Resume(  # noqa: N802 - gRPC's name
        self, request: containers_pb2.ResumeContainerRequest, context: Context
    ) -> containers_pb2.ContainerStatus:
        await self._lives.note(request, context)
        return containers_pb2.ContainerStatus(id=request.id)

    async def Update(  # noqa: N802 - gRPC's name
        self, request: containers_pb2.UpdateContainerRequest, context: Context
    ) -> containers_pb2.ContainerStatus:
        await self._lives.note(request, context)
        return containers_pb2.ContainerStatus(id=request.id)

    async def Stats(  # noqa: N802 - gRPC's name
        self, request: containers_pb2.ContainerStatsRequest, context: Context
    ) -> containers_pb2.ContainerStats:
        await self._lives.note(request, context)
        found = (each for each in self._lives.stats if each.id == request.id)
        return next(found, containers_pb2.ContainerStats(id=request.id))

    async def WatchStats(  # noqa: N802 - gRPC's name
        self, request: containers_pb2.WatchStatsRequest, context: Context
    ) -> AsyncIterator[containers_pb2.ContainerStats]:
        self._lives.calls.append(request)
        wanted = [each for each in self._lives.stats if each.id in request.ids]
        async for stats in self._lives.tell(wanted, context):
            yield stats
        await asyncio.Event().wait()


class LivingProcesses(FakeProcesses):
    """The calls of `Processes` that look, beside the one process that can be attached to."""

    def __init__(self, process: FakeProcess, lives: FakeLives) -> None:
        super().__init__(process, [])
        self._lives = lives

    async def List(  # noqa: N802 - gRPC's name
        self, request: processes_pb2.ListProcessesRequest, context: Context
    ) -> processes_pb2.ListProcessesResponse:
        await self._lives.note(request, context)
        found = self._lives.processes.get(request.container_id, [])
        return processes_pb2.ListProcessesResponse(processes=found)

    async def Wait(  # noqa: N802 - gRPC's name
        self, request: processes_pb2.WaitRequest, context: Any
    ) -> processes_pb2.WaitResponse:
        self._lives.calls.append(request)
        ref = request.process
        text = "/".join(word for word in (ref.container_id, ref.exec_id) if word)
        if self._lives.breaks and not self._lives.breaks.pop(0):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Stream removed")
        if text not in self._lives.ends:
            await asyncio.Event().wait()
        return self._lives.ends[text]

    async def Resize(  # noqa: N802 - gRPC's name
        self, request: processes_pb2.ResizeRequest, context: Context
    ) -> processes_pb2.ResizeResponse:
        await self._lives.note(request, context)
        return processes_pb2.ResizeResponse()

    async def Logs(  # noqa: N802 - gRPC's name
        self, request: processes_pb2.LogsRequest, context: Any
    ) -> AsyncIterator[processes_pb2.LogsResponse]:
        self._lives.calls.append(request)
        if not self._lives.has_log:
            code = grpc.StatusCode.FAILED_PRECONDITION
            await refuse(context, code, "main has no log", "NO_LOG")
        since = request.since_unix_micros
        pieces = [each for each in self._lives.log if each.at_unix_micros >= since]
        async for piece in self._lives.tell(pieces, context):
            yield piece


class LivingSandbox:
    """Events by their numbers, as the agent's log tells them."""

    def __init__(self, lives: FakeLives) -> None:
        self._lives = lives

    async def Watch(  # noqa: N802 - gRPC's name
        self, request: sandbox_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[sandbox_pb2.Event]:
        events, after = self._lives.events, request.after_sequence
        oldest = events[0].sequence if events else 1
        last = events[-1].sequence if events else 0
        if after and not oldest - 1 <= after <= last:
            code, fields = grpc.StatusCode.OUT_OF_RANGE, {"oldest": str(oldest), "last": str(last)}
            await refuse(context, code, "not kept", "OFFSET_NOT_KEPT", **fields)
        self._lives.calls.append(request)
        told = [each for each in events if each.sequence > after]
        async for event in self._lives.tell(told, context):
            yield event
        await asyncio.Event().wait()
