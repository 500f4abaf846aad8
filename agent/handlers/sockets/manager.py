"""Sockets: connections that the host opens, listeners of its, and connections that wait.

Everything lasts as long as the call that asked for it. What is a container's ends when the
container is removed: a socket keeps its network namespace, and with it the interfaces that
were moved there.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agent.core.deadlines import Deadline
from agent.core.errors import wrong_state
from agent.handlers.sockets import refusals
from agent.handlers.sockets.connecting import CONNECT_SECONDS, Connector
from agent.handlers.sockets.interruption import Interruptible
from agent.handlers.sockets.listening import bound
from agent.handlers.sockets.places import GUEST
from agent.handlers.sockets.streams import SocketStream
from agent.linux import tcpsockets

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractContextManager

    from agent.handlers.sockets.addresses import SocketPlace
    from agent.handlers.sockets.connecting import Resolver
    from agent.handlers.sockets.listening import Bound
    from agent.handlers.sockets.places import Inside, Places
    from agent.handlers.sockets.workers import SocketWorkers

    Tell = Callable[[int, str], Awaitable[None]]

# Descriptors or memory are short; nothing tells when there are some again.
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SHORT_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketLimits:
    """How many there may be at the same time, and how long they may take."""

    streams: int = 1024
    """Forward and Accept together."""
    listeners: int = 256
    waiting: int = 128
    """Connections of one listener that nobody has taken; the kernel keeps some more."""
    wait_seconds: float = 10.0
    connect_seconds: float = CONNECT_SECONDS


LIMITS: Final = SocketLimits()


class Listener:
    """One listener: its address, and the connections that come."""

    def __init__(self, sockets: Sockets, listening: Bound) -> None:
        self.place = listening.place
        self._sockets = sockets
        self._listening = listening
        self.waiting: set[int] = set()
        self.room = asyncio.Event()
        """Set when a connection was taken or has gone."""

    async def serve(self, tell: Tell) -> None:
        """Accept, and call `tell(number, peer)` for each, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for sock in self._listening.sockets:
                group.create_task(self._serve(sock, tell))

    async def _serve(self, sock: socket.socket, tell: Tell) -> None:
        while True:
            await self._until_room()
            connection = await _accepted(sock)
            if connection is None:
                continue
            number = self._sockets.keep(connection, self)
            await tell(number, tcpsockets.peer(connection))

    async def _until_room(self) -> None:
        while len(self.waiting) >= self._sockets.limits.waiting:
            self.room.clear()
            await self.room.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    sock: socket.socket
    listener: Listener
    timer: asyncio.TimerHandle


class Sockets:
    """The guest's sockets as the host uses them."""

    def __init__(
        self,
        *,
        places: Places,
        workers: SocketWorkers,
        resolver: Resolver,
        limits: SocketLimits = LIMITS,
    ) -> None:
        self.limits = limits
        self._places = places
        self._workers = workers
        self._connector = Connector(workers, resolver, limits.connect_seconds)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._streams = 0
        self._listeners = 0
        self._working: dict[Interruptible, str] = {}

    @contextlib.asynccontextmanager
    async def connected(self, place: SocketPlace) -> AsyncIterator[SocketStream]:
        """A connection to a place in the guest, while the block runs.

        Raises CONNECTION_REFUSED, OPERATION_TIMED_OUT, UNKNOWN_CONTAINER, WRONG_STATE,
        LIMIT_REACHED.
        """
        with self._one_more_stream():
            async with self._working_in(place.container_id):
                with self._inside(place.container_id) as inside:
                    deadline = Deadline.after(self.limits.connect_seconds)
                    sock = await self._connector.connect(place, inside, deadline)
                async with _closing(SocketStream(sock, f"to {place}")) as stream:
                    yield stream

    @contextlib.asynccontextmanager
    async def listening(self, place: SocketPlace) -> AsyncIterator[Listener]:
        """Listens while the block runs; what nobody has taken is closed at its end.

        Raises ADDRESS_IN_USE, KERNEL_REFUSED, UNKNOWN_CONTAINER, WRONG_STATE, LIMIT_REACHED.
        """
        if self._listeners >= self.limits.listeners:
            hint = "end some of the Listen calls"
            raise refusals.too_many("listeners", self.limits.listeners, hint)
        self._listeners += 1
        try:
            async with self._working_in(place.container_id):
                with self._inside(place.container_id) as inside:
                    async with bound(place, inside, self._workers) as made:
                        listener = Listener(self, made)
                        try:
                            yield listener
                        finally:
                            for number in tuple(listener.waiting):
                                self._drop(number)
        finally:
            self._listeners -= 1

    @contextlib.asynccontextmanager
    async def taken(self, number: int) -> AsyncIterator[SocketStream]:
        """A connection that a listener told of. Raises UNKNOWN_CONNECTION, LIMIT_REACHED."""
        with self._one_more_stream():
            waiting = self._forget(number)
            if waiting is None:
                raise refusals.unknown(number, self.limits.wait_seconds)
            place = waiting.listener.place
            async with (
                self._working_in(place.container_id),
                _closing(SocketStream(waiting.sock, f"from {place}")) as stream,
            ):
                yield stream

    async def leave(self, container_id: str) -> None:
        """End all that is in a container, which is about to go."""
        why = wrong_state(
            f"container {container_id} is being removed: its sockets are closed", id=container_id
        )
        ended = [work for work, where in self._working.items() if where == container_id]
        for work in ended:
            work.interrupt(why)
        for work in ended:
            await work.over.wait()

    async def close(self) -> None:
        """End the worker processes; streams and listeners end with their calls."""
        await self._workers.close()

    def keep(self, sock: socket.socket, listener: Listener) -> int:
        """Have an accepted connection wait for whoever takes it; its number."""
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.limits.wait_seconds, self._drop, number)
        self._waiting[number] = _Waiting(sock=sock, listener=listener, timer=timer)
        listener.waiting.add(number)
        return number

    def _drop(self, number: int) -> None:
        """Nobody has taken it: the other end sees a reset."""
        waiting = self._forget(number)
        if waiting is not None:
            tcpsockets.reset_at_close(waiting.sock)
            waiting.sock.close()

    def _forget(self, number: int) -> _Waiting | None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.listener.waiting.discard(number)
            waiting.listener.room.set()
        return waiting

    def _inside(self, container_id: str) -> AbstractContextManager[Inside]:
        return self._places.inside(container_id) if container_id else contextlib.nullcontext(GUEST)

    @contextlib.contextmanager
    def _one_more_stream(self) -> Iterator[None]:
        if self._streams >= self.limits.streams:
            hint = "end some of the Forward and Accept calls"
            raise refusals.too_many("streams", self.limits.streams, hint)
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    @contextlib.asynccontextmanager
    async def _working_in(self, container_id: str) -> AsyncIterator[None]:
        """Work that ends with its container."""
        work = Interruptible()
        self._working[work] = container_id
        try:
            async with work:
                yield
        finally:
            del self._working[work]


@contextlib.asynccontextmanager
async def _closing(stream: SocketStream) -> AsyncIterator[SocketStream]:
    """Closed in order only at the orderly end of the block."""
    in_order = False
    try:
        yield stream
        in_order = True
    finally:
        stream.close(in_order=in_order)


async def _accepted(sock: socket.socket) -> socket.socket | None:
    """The next connection; None for one that went before it was accepted."""
    # Not by asyncio's sock_accept, which loses a connection that comes when it is cancelled.
    await _readable(sock)
    try:
        connection, _ = sock.accept()
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in _SHORT:
            # Nothing is lost: the kernel keeps them meanwhile.
            await asyncio.sleep(_SHORT_SECONDS)
        elif error.errno != errno.ECONNABORTED:
            raise
        return None
    connection.setblocking(False)  # noqa: FBT003 - socket's own signature
    return connection


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(sock.fileno(), arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(sock.fileno())
