"""What containers use, which processes they have, and what those wrote: as a test says it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from agent.core.errors import AgentError, Reason, not_found
from agent.core.model import ProcessRef
from agent.core.usage import ContainerStats, ProcessInfo
from agent.handlers.runtime.logs.outputlog import LogPiece, LogQuery


def _unknown(container_id: str) -> AgentError:
    return not_found(
        f"there is no container {container_id!r}",
        reason=Reason.UNKNOWN_CONTAINER,
        id=container_id,
    )


@dataclass(slots=True)
class FakeUsage:
    """`known` by id; `watch` gives each once."""

    known: dict[str, ContainerStats] = field(default_factory=dict)
    watched: list[tuple[tuple[str, ...], float]] = field(default_factory=list)

    async def stats(self, container_id: str) -> ContainerStats:
        if container_id not in self.known:
            raise _unknown(container_id)
        return self.known[container_id]

    async def watch(
        self, ids: Sequence[str], interval: float
    ) -> AsyncGenerator[ContainerStats, None]:
        self.watched.append((tuple(ids), interval))
        for container_id in ids or tuple(self.known):
            yield await self.stats(container_id)


@dataclass(slots=True)
class FakeListing:
    """`known` by the container's id."""

    known: dict[str, tuple[ProcessInfo, ...]] = field(default_factory=dict)
    timeouts: list[float | None] = field(default_factory=list)

    async def list(self, container_id: str, timeout: float | None) -> tuple[ProcessInfo, ...]:
        self.timeouts.append(timeout)
        if container_id not in self.known:
            raise _unknown(container_id)
        return self.known[container_id]


@dataclass(slots=True)
class FakeLogs:
    """`known` by process."""

    known: dict[ProcessRef, tuple[LogPiece, ...]] = field(default_factory=dict)
    queries: list[LogQuery] = field(default_factory=list)

    async def logs(self, ref: ProcessRef, query: LogQuery) -> AsyncGenerator[LogPiece, None]:
        self.queries.append(query)
        if ref not in self.known:
            raise _unknown(ref.container_id)
        for piece in self.known[ref]:
            yield piece
