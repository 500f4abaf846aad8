"""Our own standard streams as ends of a process's streams, binary-exact.

They are shared with whoever started us, so they stay in blocking mode: we ask
the loop when they are ready, and then read what is there or write so little
that it fits. Regular files and some devices can't be waited for (epoll refuses
them with EPERM); they never block for long, and a thread reads or writes them.
"""

from __future__ import annotations

import asyncio
import os
import select

from innkeeper.cli.errors import CliError

# A pipe that is writable takes this much without blocking, pipe(7).
_PIPE_PIECE = select.PIPE_BUF
_FILE_PIECE = 1 << 18


class FdSource:
    """Reads a descriptor that stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pollable = _is_pollable(fd)

    async def read(self, limit: int) -> bytes:
        if not self._pollable:
            return await asyncio.to_thread(os.read, self._fd, limit)
        await _readable(self._fd)
        return os.read(self._fd, limit)


class SilentSource:
    """Input of which nothing comes, and no end."""

    async def read(self, limit: int) -> bytes:  # noqa: ARG002 - as all sources
        return await asyncio.Future[bytes]()


class FdSink:
    """Writes to a descriptor that stays the caller's.

    Raises CliError when it takes no more, BrokenPipeError when nobody reads.
    """

    def __init__(self, fd: int, name: str = "output") -> None:
        self._fd = fd
        self._name = name
        self._pollable = _is_pollable(fd)

    async def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[await self._write_some(rest) :]
            except BrokenPipeError:
                raise
            except OSError as error:
                raise CliError(f"{self._name}: {error.strerror}") from error

    async def _write_some(self, rest: memoryview) -> int:
        if not self._pollable:
            return await asyncio.to_thread(os.write, self._fd, rest[:_FILE_PIECE])
        await _writable(self._fd)
        return os.write(self._fd, rest[:_PIPE_PIECE])


class Collector:
    """Keeps the first `limit` bytes, for output that we look at ourselves."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.data = b""
        self._limit = limit

    async def write(self, data: bytes) -> None:
        self.data += data[: self._limit - len(self.data)]


def _is_pollable(fd: int) -> bool:
    with select.epoll() as poll:
        try:
            poll.register(fd, 0)
        except PermissionError:
            return False
    return True


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def _writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(fd, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_writer(fd)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
