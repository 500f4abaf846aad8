"""A hybrid vsock socket: `CONNECT PORT` in front of a guest's listener."""

from __future__ import annotations

import asyncio
from pathlib import Path


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(64 * 1024):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:  # either side broke: so does the other
        writer.transport.abort()


class FakeHybrid:
    """Joins connections to `path` that ask for `port` to the unix socket `guest`.

    `glue` is sent in one piece with the OK line: bytes of the stream that come
    with it must not get lost.
    """

    def __init__(self, path: Path, guest: Path, *, port: int = 1024, glue: bytes = b"") -> None:
        self._path = path
        self._guest = guest
        self._port = port
        self._glue = glue
        self.asked: list[bytes] = []
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> FakeHybrid:
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Ends every connection by its transport: streams mind a cancelled task in Python 3.11."""
        self._server.close()
        for writer in self._serving.values():
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(self._serving)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        try:
            line = await reader.readline()
            self.asked.append(line)
            if line == f"CONNECT {self._port}\n".encode():
                await self._join(reader, writer)
        finally:
            del self._serving[task]
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guest_reader, guest_writer = await asyncio.open_unix_connection(self._guest)
        writer.write(b"OK 1073741824\n" + self._glue)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, guest_writer))
                group.create_task(_pump(guest_reader, writer))
        finally:
            guest_writer.close()
