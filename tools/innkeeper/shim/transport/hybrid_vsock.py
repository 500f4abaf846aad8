"""Hybrid vsock: a unix socket in front of a guest's vsock ports.

The host connects, writes `CONNECT PORT\n` and reads `OK HOSTPORT\n`; then the
stream is the guest's (Firecracker, docs/vsock.md; Cloud Hypervisor and
rust-vmm's vhost-device-vsock do the same). When nobody listens on the port the
connection is closed without a word. A guest that is not up yet leaves the
question unanswered, and answers it later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from innkeeper.shim.transport.stream import SocketStream, TransportError, connect_unix

if TYPE_CHECKING:
    from innkeeper.shim.transport.address import HybridAddress

_LINE_LIMIT = 32


class HybridVsock:
    """Each stream is a connection to the unix socket, past its handshake.

    A handshake that nobody waits for any more stays open for the next `open`
    to take up: when the host closes between CONNECT and OK, vhost-device-vsock
    0.3 panics at the guest's answer, and the VM has no vsock from then on.
    """

    def __init__(self, address: HybridAddress) -> None:
        self._address = address
        self._unanswered: list[_Handshake] = []

    async def open(self, *, timeout: float) -> SocketStream:
        try:
            async with asyncio.timeout(timeout):
                return await self._finish(await self._handshake(timeout))
        except TimeoutError:
            raise TransportError(
                f"{self._address}: no answer to CONNECT within {timeout:g} s"
                " (is the guest up, and its relay?)"
            ) from None
        except OSError as error:
            raise TransportError(
                f"{self._address}: cannot connect: {error.strerror} (is the VM running?)"
            ) from error

    def close(self) -> None:
        """Drop the unanswered handshakes, when the VM is going anyway."""
        for handshake in self._unanswered:
            handshake.stream.close()
        self._unanswered.clear()

    async def _handshake(self, timeout: float) -> _Handshake:
        if self._unanswered:
            return self._unanswered.pop()
        stream = await connect_unix(self._address.path, timeout=timeout)
        handshake = _Handshake(stream)
        try:
            await stream.write(f"CONNECT {self._address.port}\n".encode())
        except BaseException:
            stream.close()
            raise
        return handshake

    async def _finish(self, handshake: _Handshake) -> SocketStream:
        try:
            await handshake.read_line()
        except asyncio.CancelledError:
            self._unanswered.append(handshake)
            raise
        except OSError:
            handshake.stream.close()
            raise
        if not handshake.line.startswith(b"OK "):
            handshake.stream.close()
            raise TransportError(f"{self._address}: {_complaint(handshake.line)}")
        return handshake.stream


class _Handshake:
    """A connection that has said CONNECT, and as much of the answer as came."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self.line = b""

    async def read_line(self) -> None:
        """Byte by byte: whatever follows the line belongs to the stream."""
        while not self.line.endswith(b"\n") and len(self.line) < _LINE_LIMIT:
            byte = await self.stream.read(1)
            if not byte:
                return
            self.line += byte


def _complaint(line: bytes) -> str:
    if line:
        return f"answered {line!r} to CONNECT, not OK"
    return "closed after CONNECT: nobody listens there (is the guest up, and its relay?)"
