"""A local unix socket for gRPC, joined to the guest.

grpc can connect to a unix socket, not to vsock, to a hybrid socket behind its
handshake, or to a serial port. So the channel goes to the bridge
(`unix:/.../guest.sock`), and each connection that it makes gets a stream of
its own from the transport.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import TYPE_CHECKING, Self

from innkeeper.shim.transport.stream import SocketStream, TransportError

if TYPE_CHECKING:
    from pathlib import Path

    from innkeeper.shim.transport.stream import Stream, Transport

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
)
"""For channels to a bridge: the guest is near, and may be back at once after a restart.

(The minimum is how long gRPC lets one attempt take, as long as the bridge does.)
"""

_BACKLOG = 64
_LAST_WORDS = 1.0
_PAUSE = 1.0
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

_log = logging.getLogger(__name__)


class Bridge:
    """Serves the unix socket at `path` while it is entered; closes the transport behind it.

    The socket is for its owner only; a missing directory is made, also for its
    owner only. A connection whose stream cannot be opened within
    `open_timeout` seconds is closed, and `last_error` says why.
    """

    def __init__(self, transport: Transport, path: Path, *, open_timeout: float = 10.0) -> None:
        self._transport = transport
        self._path = path
        self._open_timeout = open_timeout
        self._task: asyncio.Task[None] | None = None
        self.last_error: TransportError | None = None
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(str(self._path))
            self._path.chmod(0o600)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._task = asyncio.create_task(self._serve(listener), name=f"bridge {self._path}")
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End every connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self._transport.close()
        self._path.unlink(missing_ok=True)

    async def _serve(self, listener: socket.socket) -> None:
        with listener:
            async with asyncio.TaskGroup() as connections:
                while True:
                    client = await self._accept(listener)
                    connections.create_task(self._carry(SocketStream(client)))

    async def _accept(self, listener: socket.socket) -> socket.socket:
        while True:
            try:
                client, _address = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                _log.warning("%s: accept: %s; trying again in %g s", self._path, error, _PAUSE)
                await asyncio.sleep(_PAUSE)
            else:
                return client

    async def _carry(self, local: SocketStream) -> None:
        """One connection, from accept to close; its failures are its own."""
        self.connections += 1
        try:
            guest = await self._open()
            if guest is not None:
                await _join_and_close(local, guest)
        except* OSError as broken:
            _log.debug("%s: a connection broke: %s", self._path, broken.exceptions)
        finally:
            self.connections -= 1
            local.close()

    async def _open(self) -> Stream | None:
        try:
            guest = await self._transport.open(timeout=self._open_timeout)
        except TransportError as error:
            self.last_error = error
            _log.info("%s", error)
            return None
        self.last_error = None
        return guest


async def _join_and_close(local: SocketStream, guest: Stream) -> None:
    try:
        await join(local, guest)
    finally:
        guest.close()


async def join(local: SocketStream, guest: Stream) -> None:
    """Carry bytes both ways until both sides ended, or one broke (ExceptionGroup of OSError).

    The end of one direction is handed on and the other goes on, unless the
    local client is gone as a whole: then the guest has a second to end it too.
    """
    async with asyncio.TaskGroup() as directions:
        down = directions.create_task(_copy(guest, local))
        await _copy(local, guest)
        if local.abandoned():
            await asyncio.wait([down], timeout=_LAST_WORDS)
            down.cancel()


async def _copy(source: Stream, sink: Stream) -> None:
    """Read only when the last bytes are written: so a slow side slows down the other."""
    while data := await source.read():
        await sink.write(data)
    await sink.finish()
