"""The host's side of a virtio-serial port, as QEMU's socket chardev behaves.

One host client at a time, others wait in a queue of one; what the guest writes
while no host is there is lost; what the host has written is not, even when the
host is gone before the guest reads it. The guest is told nothing of all that.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Self

_CHUNK = 16 * 1024


class FakePort:
    """Joins the unix socket at `path` to `guest`, the other end of the relay's port."""

    def __init__(self, path: Path, guest: socket.socket) -> None:
        self._path = path
        self._guest = guest
        self._host: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.sessions = 0

    async def __aenter__(self) -> Self:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.bind(str(self._path))
        listener.listen(1)
        self._guest.setblocking(False)
        self._tasks = [
            asyncio.create_task(self._inward(listener)),
            asyncio.create_task(self._outward()),
        ]
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _inward(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                host, _address = await loop.sock_accept(listener)
                self.sessions += 1
                with host:
                    self._host = host
                    await self._from_host(host)
                    self._host = None

    async def _from_host(self, host: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(host, _CHUNK):
                await loop.sock_sendall(self._guest, data)
        except ConnectionError:
            return

    async def _outward(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._guest, _CHUNK):
            await self._to_host(data)

    async def _to_host(self, data: bytes) -> None:
        """To the host that is there now; a host that leaves takes the rest with it."""
        host, rest = self._host, data
        while host is not None and host is self._host and rest:
            try:
                rest = rest[host.send(rest) :]
            except BlockingIOError:
                await asyncio.sleep(0)  # a fake may spin; its host reads in this very loop
            except OSError:
                return
