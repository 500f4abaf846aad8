"""Streams under test: the test plays the process, at the other ends of its pipes or terminal."""

from __future__ import annotations

import os
import pty
from typing import TYPE_CHECKING, Any

from agent.core.life import StreamOptions
from agent.core.model import OutputChunk, OutputGap, ProcessRef, Stream
from agent.handlers.runtime.streams.streams import StreamHome, Streams

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW = 64 * 1024
PIPE = 65536
"""What a pipe holds (pipe(7))."""

REF = ProcessRef(container_id="c1")
OPTIONS = StreamOptions(window=WINDOW)


class Child:
    """The process's ends of its pipes."""

    def __init__(self, stdin: int | None, stdout: int | None, stderr: int | None) -> None:
        self._fds = [os.dup(fd) for fd in (stdin, stdout, stderr) if fd is not None]
        self.stdin, self.stdout, self.stderr = self._fds
        for fd in self._fds:
            os.set_blocking(fd, False)

    def close(self, *fds: int) -> None:
        for fd in fds or tuple(self._fds):
            self._fds.remove(fd)
            os.close(fd)

    def write_all(self, size: int) -> int:
        """As much of `size` bytes as goes in now."""
        try:
            return os.write(self.stdout, b"x" * size)
        except BlockingIOError:
            return 0

    def read(self) -> bytes | None:
        """What is there; empty at the end; None when there is nothing yet."""
        try:
            return os.read(self.stdin, 1 << 20)
        except BlockingIOError:
            return None


class Agent:
    """One life of the agent, as far as streams go."""

    def __init__(self, home: StreamHome, options: StreamOptions = OPTIONS) -> None:
        self.streams = Streams(home, REF, terminal=False, options=options)

    async def start(self) -> Child:
        stdio = await self.streams.open_pipes()
        child = Child(stdio.stdin, stdio.stdout, stdio.stderr)
        self.streams.begin()
        return child


class Terminal:
    """A process on a terminal: it has the slave side."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        os.set_blocking(self.slave, False)

    def read(self) -> bytes | None:
        try:
            return os.read(self.slave, 4096)
        except BlockingIOError:
            return None


async def pieces(
    streams: Streams, *, stdout: int | None = 0, stderr: int | None = None, **how: Any
) -> list[OutputChunk | OutputGap]:
    """All that one reader gets, from the offsets on of the streams that have one."""
    asked = {Stream.STDOUT: stdout, Stream.STDERR: stderr}
    wanted = {stream: offset for stream, offset in asked.items() if offset is not None}
    return [piece async for piece in streams.output(wanted, **how)]


async def read(streams: Streams, **what: Any) -> list[OutputChunk]:
    """The same, of a reader that must miss nothing."""
    got = await pieces(streams, **what)
    chunks = [piece for piece in got if isinstance(piece, OutputChunk)]
    assert len(chunks) == len(got), "bytes were dropped"
    return chunks


def text(got: Sequence[OutputChunk | OutputGap], stream: Stream = Stream.STDOUT) -> bytes:
    chunks = (piece for piece in got if isinstance(piece, OutputChunk))
    return b"".join(chunk.data for chunk in chunks if chunk.stream is stream)
