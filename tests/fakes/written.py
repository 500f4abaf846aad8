"""Streams of a process as a log's pump reads them: what a test writes, kept from some offset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from agent.core.errors import AgentError, Code, Reason
from agent.core.life import Until
from agent.core.model import OutputChunk, OutputGap, ProcessExit, Stream
from agent.handlers.runtime.logs.outputlog import LogPump
from agent.handlers.runtime.streams.pulse import Pulse


class WrittenStreams:
    """`write`, and `end` when there will be no more."""

    def __init__(self, *, terminal: bool = False, chunk: int = 64 << 10) -> None:
        self.terminal = terminal
        streams = [Stream.STDOUT] if terminal else [Stream.STDOUT, Stream.STDERR]
        self.written = {stream: bytearray() for stream in streams}
        self.kept = dict.fromkeys(streams, 0)
        self._chunk = chunk
        self._ended = False
        self._pulse = Pulse()

    def write(self, stream: Stream, data: bytes) -> None:
        self.written[stream] += data
        self._pulse.beat()

    def end(self) -> None:
        self._ended = True
        self._pulse.beat()

    async def output(
        self, offsets: Mapping[Stream, int], *, until: Until, may_miss: bool = False
    ) -> AsyncGenerator[OutputChunk | OutputGap, None]:
        assert until is Until.END
        assert not may_miss
        places = dict(offsets)
        for stream, offset in places.items():
            if offset < self.kept[stream]:
                raise _not_kept(stream, self.kept[stream])
        while True:
            chunks = [chunk for stream in places if (chunk := self._next(stream, places[stream]))]
            for chunk in chunks:
                yield chunk
                places[chunk.stream] += len(chunk.data)
            if not chunks:
                if self._ended:
                    return
                await self._pulse.wait()

    def _next(self, stream: Stream, offset: int) -> OutputChunk | None:
        data = bytes(self.written[stream][offset : offset + self._chunk])
        return OutputChunk(stream=stream, offset=offset, data=data) if data else None


class LoggedOne:
    """A process with a log, and what is known of its end."""

    def __init__(self, log: LogPump | None) -> None:
        self.log = log
        self.exit: ProcessExit | None = None
        self._ended = asyncio.Event()

    def end(self, streams: WrittenStreams) -> None:
        """It has ended with so much written."""
        sizes = {stream: len(data) for stream, data in streams.written.items()}
        self.exit = ProcessExit(
            code=0, stdout_bytes=sizes[Stream.STDOUT], stderr_bytes=sizes.get(Stream.STDERR, 0)
        )
        self._ended.set()

    async def wait(self) -> ProcessExit:
        await self._ended.wait()
        assert self.exit is not None
        return self.exit


def _not_kept(stream: Stream, oldest: int) -> AgentError:
    return AgentError(
        f"{stream}: not kept",
        code=Code.OUT_OF_RANGE,
        reason=Reason.OFFSET_NOT_KEPT,
        fields={"stream": stream.value, "oldest": str(oldest)},
    )
