"""A virtio-serial port: one session of HTTP/2 at a time, over the unix socket of QEMU's chardev.

Framing and its reasons are in `innkeeper.v1.session`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from innkeeper.shim.transport.stream import SocketStream, TransportError, connect_unix
from innkeeper.v1.session import Decoder, Encoder, new_nonce

if TYPE_CHECKING:
    from pathlib import Path

    from innkeeper.shim.transport.address import SerialAddress
    from innkeeper.v1.session import Event

PORT_NAME = "innkeeper.agent.0"
"""What the guest's relay looks for; the number tells ports of one VM apart."""


class SerialStream:
    """One session. It ends as a whole: the port knows no half-close."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._encoder = Encoder()
        self._nonce = new_nonce()
        self._decoder = Decoder(expect=self._nonce)
        self._events: list[Event] = []
        self._over = False

    async def start(self) -> None:
        """Ask for the session, wait for its echo. Raises OSError when the port closes."""
        await self._stream.write(self._encoder.start(self._nonce))
        while not self._events:
            wire = await self._stream.read()
            if not wire:
                raise ConnectionResetError("the port's socket was closed")
            self._events = self._decoder.feed(wire)
        self._events.pop(0)  # with `expect`, the first event is the echo

    async def read(self) -> bytes:
        while not (data := self._take()) and not self._over:
            wire = await self._stream.read()
            self._over = not wire
            self._events = self._decoder.feed(wire)
        return data

    async def write(self, data: bytes) -> None:
        await self._stream.write(self._encoder.data(data))

    async def finish(self) -> None:
        """Say that it is over. QEMU closes the socket when it has passed that on."""
        await self._stream.write(self._encoder.end())
        await self._stream.finish()

    def interrupt(self) -> None:
        """End it for whoever uses it now."""
        self._stream.interrupt()

    def close(self) -> None:
        self._stream.close()

    def _take(self) -> bytes:
        """The data decoded so far; sets `_over` when the session ends behind it."""
        events, self._events = self._events, []
        data: list[bytes] = []
        for event in events:
            if not isinstance(event, bytes):  # its end, or a second echo, which nobody asked for
                self._over = True
                break
            data.append(event)
        return b"".join(data)


class Serial:
    """The port, with its present session; a new session replaces it."""

    def __init__(self, address: SerialAddress) -> None:
        self._address = address
        self._present: SerialStream | None = None
        self._turn = asyncio.Lock()

    async def open(self, *, timeout: float) -> SerialStream:
        try:
            async with asyncio.timeout(timeout), self._turn:
                return await self._replace(timeout)
        except TimeoutError:
            raise TransportError(
                f"{self._address}: the guest did not take up a session within {timeout:g} s"
                " (is it up, and its relay?)"
            ) from None
        except OSError as error:
            raise TransportError(
                f"{self._address}: cannot open the port: {error.strerror or error}"
                " (is the VM running?)"
            ) from error

    def close(self) -> None:
        """End the present session, if there is one."""
        if self._present is not None:
            self._present.interrupt()
            self._present = None

    async def _replace(self, timeout: float) -> SerialStream:
        self.close()
        stream = SerialStream(await connect_unix(self._address.path, timeout=timeout))
        try:
            await stream.start()
        except BaseException:
            stream.close()
            raise
        self._present = stream
        return stream


def qemu_arguments(path: Path, *, index: int = 0) -> tuple[str, ...]:
    """QEMU's arguments for the port; they expect a virtio-serial controller before them.

    QEMU listens on `path` and does not wait for anybody.
    """
    name = PORT_NAME.removesuffix("0") + str(index)
    socket_path = str(path).replace(",", ",,")  # QEMU's own escape
    return (
        "-chardev",
        f"socket,id=agent{index},path={socket_path},server=on,wait=off",
        "-device",
        f"virtserialport,chardev=agent{index},id=agentport{index},name={name}",
    )


CONTROLLER = ("-device", "virtio-serial-pci,id=serial0")
"""QEMU's arguments for the controller that all ports share."""
