"""What a stream is, what a transport is, and streams on sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK = 64 * 1024


class TransportError(Exception):
    """The guest could not be reached: what was tried, on which object, why, what to do."""


class Stream(Protocol):
    """A duplex byte stream. One reader and one writer at a time."""

    async def read(self) -> bytes:
        """Some bytes; none at the end. Raises OSError when the stream broke."""

    async def write(self, data: bytes) -> None:
        """Return when the bytes are out of our hands. Raises OSError when the stream broke."""

    async def finish(self) -> None:
        """No more writes; where the transport can, reading goes on."""

    def close(self) -> None:
        """Let go at once. Nobody may be in `read` or `write`."""


class Transport(Protocol):
    """A way to the guest's agent."""

    async def open(self, *, timeout: float) -> Stream:
        """A fresh stream to the agent, within `timeout` seconds. Raises TransportError."""

    def close(self) -> None:
        """Let go of what belongs to no stream; nothing is opened any more."""


class SocketStream:
    """A stream on a connected socket, which it owns."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(False)  # noqa: FBT003 - socket's own signature

    async def read(self, limit: int = _CHUNK) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._sock, limit)

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def finish(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def abandoned(self) -> bool:
        """Whether the peer of a unix socket closed both directions, as opposed to one.

        Such a socket refuses even an empty message (unix(7): EPIPE).
        """
        try:
            self._sock.send(b"")
        except BlockingIOError:
            return False
        except OSError:
            return True
        return False

    def interrupt(self) -> None:
        """End it for whoever is in `read` or `write`; they then close it."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # not connected any more
            return

    def close(self) -> None:
        self._sock.close()


async def connect_unix(path: Path, *, timeout: float) -> SocketStream:
    """Connect to a listening unix socket. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        try:
            sock.connect(str(path))
        except BlockingIOError:
            await asyncio.to_thread(_wait_for_backlog, sock, path, timeout)
    except BaseException:
        sock.close()
        raise
    return SocketStream(sock)


def _wait_for_backlog(sock: socket.socket, path: Path, timeout: float) -> None:
    """Connect to a listener whose queue is full.

    No event tells when there is room, and asyncio takes EAGAIN for progress
    here; only a blocking connect waits, as long as SO_SNDTIMEO says.
    """
    sock.setblocking(True)  # noqa: FBT003 - socket's own signature
    seconds = int(timeout)
    limit = struct.pack("ll", seconds, max(1, int((timeout - seconds) * 1e6)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    sock.connect(str(path))
