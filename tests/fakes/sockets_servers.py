"""Servers to forward to, and the host's end of a forwarded stream."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from innkeeper.shim import writing
from innkeeper.v1 import sockets_pb2 as pb

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WITHIN = 30.0


@dataclass(slots=True, kw_only=True)
class Server:
    """Where it listens, and who is connected."""

    port: int = 0
    path: Path | None = None
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    ends: list[str] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def address(self) -> pb.SocketAddress:
        if self.path is not None:
            return pb.SocketAddress(unix=str(self.path))
        return pb.SocketAddress(tcp=f"127.0.0.1:{self.port}")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@contextlib.asynccontextmanager
async def serving(
    serve: Serve = echo, *, path: Path | None = None, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Server]:
    """A server whose connections end as `serve` does."""
    server = Server(path=path)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connected.set()
        try:
            await serve(reader, writer)
            server.ends.append("in order")
        except ConnectionError as error:
            server.ends.append(type(error).__name__)
        finally:
            server.ended.set()
            writer.close()

    if path is not None:
        made: asyncio.Server = await asyncio.start_unix_server(handle, path)
    else:
        made = await asyncio.start_server(handle, host, port)
        server.port = made.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        made.close()


class Stream:
    """A Forward or Accept call as a host's program uses it."""

    def __init__(self, call: Any, request: Any) -> None:
        self.call = call
        self._request = request

    async def begin(self, **first: Any) -> None:
        """Says what it is for, and waits until it stands."""
        await self.call.write(self._request(**first))
        answer = await asyncio.wait_for(self.call.read(), WITHIN)
        if not hasattr(answer, "WhichOneof"):
            # The call has ended; this raises why.
            await self.call
        assert answer.connected is True

    async def write(self, data: bytes) -> bool:
        """False when the call is over."""
        return await writing.write(self.call, self._request(data=data))

    async def end(self) -> None:
        await self.call.write(self._request(end=True))

    async def read(self) -> bytes:
        """The next bytes; none at the end of the guest's half. Raises AioRpcError."""
        answer = await asyncio.wait_for(self.call.read(), WITHIN)
        if not hasattr(answer, "WhichOneof"):
            await self.call
            raise AssertionError("the call ended in order without the guest's end")
        if answer.WhichOneof("frame") == "end":
            return b""
        assert 1 <= len(answer.data) <= 256 << 10
        return bytes(answer.data)

    async def read_all(self) -> bytes:
        found = bytearray()
        while data := await self.read():
            found += data
        return bytes(found)


def open_sockets() -> int:
    """Descriptors of this process that are sockets."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


def free_port() -> int:
    """A port of the loopback that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
