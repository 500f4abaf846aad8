"""Listening at an address in the guest."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, invalid
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
    from collections.abc import AsyncIterator, Sequence

    from agent.handlers.sockets.places import Inside
    from agent.handlers.sockets.workers import SocketWorkers
    from agent.linux.unixsockets import Identity

log = logging.getLogger(__name__)

_LISTEN_SECONDS: Final = 10.0

# Another family may have a port that was free in the first one.
_PORT_TRIES: Final = 16

# This machine, or this kernel, has not that family or address.
_ABSENT = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Listening sockets; `place` has the port that was chosen."""

    place: SocketPlace
    sockets: tuple[socket.socket, ...]


@contextlib.asynccontextmanager
async def bound(place: SocketPlace, inside: Inside, workers: SocketWorkers) -> AsyncIterator[Bound]:
    """Listens while the block runs; `inside` is needed for its beginning and its end.

    Raises ADDRESS_IN_USE, KERNEL_REFUSED, BAD_FIELD.
    """
    try:
        match place.address:
            case UnixAddress(path=path):
                made = await workers.listen(inside, path, Deadline.after(_LISTEN_SECONDS))
                listening = _unix(place, inside, workers, *made)
            case TcpAddress() as address:
                listening = _tcp(place, _listen(address, inside.network))
    except OSError as error:
        raise refusals.not_bound(place, error) from error
    async with listening as result:
        yield result


@contextlib.asynccontextmanager
async def _unix(
    place: SocketPlace,
    inside: Inside,
    workers: SocketWorkers,
    sock: socket.socket,
    identity: Identity,
) -> AsyncIterator[Bound]:
    try:
        yield Bound(place=place, sockets=(sock,))
    finally:
        # Also when we are cancelled, and before the socket is closed, which keeps its
        # inode from being another's.
        removal = asyncio.ensure_future(_remove(place, inside, workers, identity))
        try:
            await asyncio.shield(removal)
        finally:
            removal.add_done_callback(lambda _: sock.close())


async def _remove(
    place: SocketPlace, inside: Inside, workers: SocketWorkers, identity: Identity
) -> None:
    path = place.address.path if isinstance(place.address, UnixAddress) else ""
    deadline = Deadline.after(_LISTEN_SECONDS)
    try:
        await workers.remove(inside, path, identity, deadline)
    except (OSError, AgentError) as error:
        # With its container, or its directory, went the socket.
        log.info("%s: the socket is not removed: %s", place, error)


@contextlib.asynccontextmanager
async def _tcp(place: SocketPlace, sockets: Sequence[socket.socket]) -> AsyncIterator[Bound]:
    with contextlib.ExitStack() as stack:
        for sock in sockets:
            stack.enter_context(sock)
        port = sockets[0].getsockname()[1]
        address = place.address
        if isinstance(address, TcpAddress):
            address = replace(address, port=port)
        yield Bound(place=replace(place, address=address), sockets=tuple(sockets))


def _listen(address: TcpAddress, namespace: int | None) -> Sequence[socket.socket]:
    """Raises OSError."""
    if address.host == "localhost":
        return _listen_twice(address.port, namespace)
    if not address.host:
        return (_listen_to_all(address.port, namespace),)
    family = family_of(address.host)
    if family is None:
        raise invalid(
            f"{address}: to listen, the host is an IP address, localhost, or empty for all",
            field="address.tcp",
        )
    return (_listening(family, (address.host, address.port), namespace),)


def _listen_twice(port: int, namespace: int | None) -> Sequence[socket.socket]:
    """On the same port of both; one of a family that is absent is left out."""
    for _ in range(_PORT_TRIES - 1):
        with contextlib.suppress(OSError):
            return _listen_on_each(LOCALHOST, port, namespace)
        if port:
            break
    return _listen_on_each(LOCALHOST, port, namespace)


def _listen_on_each(hosts: Sequence[str], port: int, namespace: int | None) -> list[socket.socket]:
    with contextlib.ExitStack() as stack:
        made: list[socket.socket] = []
        absent: OSError | None = None
        for host in hosts:
            wanted = made[0].getsockname()[1] if made else port
            family = family_of(host) or socket.AF_INET
            try:
                sock = _listening(family, (host, wanted), namespace)
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error
                continue
            made.append(stack.enter_context(sock))
        if not made and absent is not None:
            raise absent
        stack.pop_all()
        return made


def _listen_to_all(port: int, namespace: int | None) -> socket.socket:
    try:
        return _listening(socket.AF_INET6, ("::", port), namespace, both_families=True)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
    return _listening(socket.AF_INET, ("0.0.0.0", port), namespace)


def _listening(
    family: int, address: tuple[str, int], namespace: int | None, *, both_families: bool = False
) -> socket.socket:
    sock = tcpsockets.make(family, namespace)
    try:
        tcpsockets.listen(sock, address, both_families=both_families)
    except BaseException:
        sock.close()
        raise
    return sock
