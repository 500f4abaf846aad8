"""Hybrid vsock: a unix socket in front of a guest's vsock ports.

The host connects, writes `CONNECT PORT\\n` and reads `OK HOSTPORT\\n`; then the
stream is the guest's (Firecracker, docs/vsock.md; Cloud Hypervisor and
rust-vmm's vhost-device-vsock do the same). When nobody listens on the port the
connection is closed without a word.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from innkeeper.shim.transport.stream import SocketStream, TransportError, connect_unix

if TYPE_CHECKING:
    from innkeeper.shim.transport.address import HybridAddress

_LINE_LIMIT = 32


class HybridVsock:
    """Each stream is a connection to the unix socket, past its handshake."""

    def __init__(self, address: HybridAddress) -> None:
        self._address = address

    async def open(self, *, timeout: float) -> SocketStream:
        try:
            async with asyncio.timeout(timeout):
                stream = await connect_unix(self._address.path, timeout=timeout)
                return await self._greet(stream)
        except TimeoutError:
            raise TransportError(
                f"{self._address}: no answer to CONNECT within {timeout:g} s"
            ) from None
        except OSError as error:
            raise TransportError(
                f"{self._address}: cannot connect: {error.strerror} (is the VM running?)"
            ) from error

    async def _greet(self, stream: SocketStream) -> SocketStream:
        try:
            await stream.write(f"CONNECT {self._address.port}\n".encode())
            line = await self._line(stream)
            if not line.startswith(b"OK "):
                raise TransportError(f"{self._address}: answered {line!r} to CONNECT, not OK")
        except BaseException:
            stream.close()
            raise
        return stream

    async def _line(self, stream: SocketStream) -> bytes:
        """Byte by byte: whatever follows the line belongs to the stream."""
        line = b""
        while not line.endswith(b"\n"):
            byte = await stream.read(1)
            if not byte:
                raise TransportError(
                    f"{self._address}: closed after CONNECT: nobody listens on guest port"
                    f" {self._address.port} (is the guest up, and its relay?)"
                )
            line += byte
            if len(line) > _LINE_LIMIT:
                raise TransportError(f"{self._address}: answered {line!r}... to CONNECT, not OK")
        return line
