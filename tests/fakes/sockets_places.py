"""The agent's real sockets, with directories for containers and a resolver without servers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent.core.deadlines import Deadline
from agent.core.errors import Reason, not_found
from agent.core.fileops import Resolution
from agent.handlers.sockets.manager import SocketLimits, Sockets
from agent.handlers.sockets.places import Inside
from agent.handlers.sockets.workers import SocketWorkers

LIMITS = SocketLimits(streams=250, listeners=4, waiting=3, wait_seconds=10, connect_seconds=5)


@dataclass(slots=True, kw_only=True)
class FolderPlaces:
    """Containers that are directories; `network` of one is a path of a namespace."""

    folders: dict[str, str] = field(default_factory=dict)
    networks: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def inside(self, container_id: str) -> Iterator[Inside]:
        folder = self.folders.get(container_id)
        if folder is None:
            raise not_found(f"no container {container_id}", reason=Reason.UNKNOWN_CONTAINER)
        with contextlib.ExitStack() as stack:
            process = os.pidfd_open(os.getpid())
            stack.callback(os.close, process)
            network = None
            if container_id in self.networks:
                network = os.open(self.networks[container_id], os.O_RDONLY)
                stack.callback(os.close, network)
            yield Inside(root=folder, process=process, network=network)


@dataclass(slots=True, kw_only=True)
class Names:
    """A resolver that knows what it was told."""

    known: dict[str, tuple[str, ...]] = field(default_factory=dict)

    async def resolve(self, host: str, deadline: Deadline) -> Resolution:
        found = self.known.get(host)
        if found is None:
            return Resolution(failure="Name or service not known")
        return Resolution(addresses=found)


class SocketBench:
    """What a test changes, and the manager that the server has."""

    def __init__(self, limits: SocketLimits = LIMITS) -> None:
        self.places = FolderPlaces()
        self.names = Names()
        self.workers = SocketWorkers()
        self.manager = Sockets(
            places=self.places, workers=self.workers, resolver=self.names, limits=limits
        )

    async def close(self) -> None:
        await self.manager.close()
