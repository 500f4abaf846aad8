"""Connecting to an address in the guest: each of its forms tried in turn, with a deadline."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Final, Protocol

from agent.handlers.sockets import refusals
from agent.handlers.sockets.addresses import (
    LOCALHOST,
    SocketPlace,
    TcpAddress,
    UnixAddress,
    family_of,
)
from agent.linux import tcpsockets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.core.deadlines import Deadline
    from agent.core.fileops import Resolution
    from agent.handlers.sockets.places import Inside
    from agent.handlers.sockets.workers import SocketWorkers

CONNECT_SECONDS: Final = 20.0
"""How long a connection may take, with its name's resolution."""


class Resolver(Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def resolve(self, host: str, deadline: Deadline) -> Resolution: ...


class Connector:
    """Makes connections to places in the guest."""

    def __init__(self, workers: SocketWorkers, resolver: Resolver, seconds: float) -> None:
        self._workers = workers
        self._resolver = resolver
        self._seconds = seconds

    async def connect(
        self, place: SocketPlace, inside: Inside, deadline: Deadline
    ) -> socket.socket:
        """Raises CONNECTION_REFUSED, OPERATION_TIMED_OUT."""
        match place.address:
            case UnixAddress(path=path):
                return await self._unix(place, inside, path, deadline)
            case TcpAddress() as address:
                hosts = await self._hosts(place, address.host, deadline)
                return await self._first_of(place, inside, hosts, deadline)

    async def _unix(
        self, place: SocketPlace, inside: Inside, path: str, deadline: Deadline
    ) -> socket.socket:
        try:
            return await self._workers.connect(inside, path, deadline)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                raise refusals.late(place, self._seconds) from error
            raise refusals.refused(place, [(path, error)]) from error

    async def _hosts(self, place: SocketPlace, host: str, deadline: Deadline) -> Sequence[str]:
        if host == "localhost":
            return LOCALHOST
        if family_of(host) is not None:
            return (host,)
        # In the guest's network: a container's own may have no resolver at all.
        answer = await self._resolver.resolve(host, deadline)
        if not answer.addresses:
            raise refusals.unresolved(place, answer.failure)
        return answer.addresses

    async def _first_of(
        self, place: SocketPlace, inside: Inside, hosts: Sequence[str], deadline: Deadline
    ) -> socket.socket:
        port = place.address.port if isinstance(place.address, TcpAddress) else 0
        tried: list[tuple[str, OSError]] = []
        for at, host in enumerate(hosts):
            # One that drops what it gets must leave time for the others.
            share = deadline.earlier(deadline.left() / (len(hosts) - at))
            try:
                return await _connected(host, port, inside.network, share)
            except TimeoutError:
                tried.append((host, OSError(errno.ETIMEDOUT, "connect", host)))
            except OSError as error:
                tried.append((host, error))
        if all(error.errno == errno.ETIMEDOUT for _, error in tried):
            raise refusals.late(place, self._seconds)
        raise refusals.refused(place, tried)


async def _connected(
    host: str, port: int, namespace: int | None, deadline: Deadline
) -> socket.socket:
    sock = tcpsockets.make(family_of(host) or socket.AF_INET, namespace)
    try:
        async with deadline.limit():
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
    except BaseException:
        sock.close()
        raise
    return sock
