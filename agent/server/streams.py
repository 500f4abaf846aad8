"""Processes.Attach: one connection to a process's streams.

One task reads the host's frames, one feeds what is input, one sends output as fast as the
host takes it. A connection that breaks ends them and changes nothing at the
process. The exit is told after all that was written until then: as the last frame,
or, of a call until the streams' own ends, while a third task watches for it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Final

from agent.core.errors import AgentError, Reason, invalid, timed_out
from agent.core.life import Until
from agent.core.model import OutputChunk, OutputGap, Stream
from agent.server.convert import processes as convert
from agent.server.convert import streams
from agent.server.limits import INPUT_FRAME_BYTES, OUTPUT_FRAME_BYTES
from innkeeper.v1 import processes_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from agent.core.model import ProcessExit, ProcessRef
    from agent.server.calls import Frames, Send
    from agent.server.facades import ProcessManager

WAITING_BYTES: Final = 16 << 20
"""Bytes of input that may wait for their turn, before no more frames are read (README)."""

FIRST_FRAME_SECONDS: Final = 30.0
"""How long a call may stay open without saying which process it is for."""


CROSSING_SECONDS: Final = 0.5
"""A process's exit is known at most so long after it closed the process's input."""


async def attach(
    processes: ProcessManager,
    frames: Frames[pb.AttachRequest],
    send: Send[pb.AttachResponse],
    *,
    first_frame_within: float = FIRST_FRAME_SECONDS,
) -> None:
    """Serve one call from its first frame to the process's exit."""
    opening = await _first_frame(frames, first_frame_within)
    process, until = convert.process_ref(opening.process), streams.until(opening)
    name = streams.reader(opening)
    opened = pb.StreamsOpened(
        terminal=processes.has_terminal(process), stdin_offset=processes.input_offset(process)
    )
    offsets = streams.offsets(opening, terminal=opened.terminal)
    async with asyncio.TaskGroup() as group:
        end = group.create_task(processes.wait(process))
        await send(pb.AttachResponse(opened=opened))
        reader = group.create_task(_Input(processes, process, name, end).follow(frames, send))
        output = _Output(offsets, send, end)
        exit_told = group.create_task(output.send_exit(last=until is Until.EXIT))
        if offsets:
            pieces = processes.output(
                process, offsets, until=until, may_miss=opening.may_miss, reader=name
            )
            await output.send_all(pieces)
        output.finish()
        await exit_told
        reader.cancel()


async def _first_frame(frames: Frames[pb.AttachRequest], within: float) -> pb.OpenStreams:
    try:
        async with asyncio.timeout(within):
            frame = await frames.read()
    except TimeoutError:
        raise timed_out(f"no frame came within {within:g} s; the first one is `open`") from None
    if frame is None or frame.WhichOneof("frame") != "open":
        raise invalid("the first frame must be `open`", field="open")
    return frame.open


class _Output:
    """What the host is sent of a process's output, and how far that has come."""

    def __init__(
        self,
        offsets: Mapping[Stream, int],
        send: Send[pb.AttachResponse],
        end: asyncio.Task[ProcessExit],
    ) -> None:
        self._expected = dict(offsets)
        self._send = send
        self._end = end
        self._moved = asyncio.Event()

    async def send_all(self, output: AsyncGenerator[OutputChunk | OutputGap, None]) -> None:
        # Closed at once when the host leaves, not when it is collected.
        async with aclosing(output) as pieces:
            async for piece in pieces:
                for part in _parts(piece):
                    await self._send(streams.output(part))
                self._note(piece)

    def finish(self) -> None:
        """No more comes, whatever was expected."""
        self._expected.clear()
        self._moved.set()

    async def send_exit(self, *, last: bool) -> None:
        """As the last frame, or once the host was sent what there was when the process ended."""
        end = await self._end
        marks = {Stream.STDOUT: end.stdout_bytes or 0, Stream.STDERR: end.stderr_bytes or 0}
        while any(last or at < marks[stream] for stream, at in self._expected.items()):
            self._moved.clear()
            await self._moved.wait()
        await self._send(pb.AttachResponse(exit=convert.exit_status(end)))

    def _note(self, piece: OutputChunk | OutputGap) -> None:
        if isinstance(piece, OutputGap):
            self._expected[piece.stream] = piece.end
        elif piece.end:
            self._expected.pop(piece.stream, None)
        else:
            self._expected[piece.stream] = piece.offset + len(piece.data)
        self._moved.set()


def _parts(chunk: OutputChunk | OutputGap) -> Iterator[OutputChunk | OutputGap]:
    """The chunk in frames that are not too long; only the last one may be the end."""
    if isinstance(chunk, OutputGap) or len(chunk.data) <= OUTPUT_FRAME_BYTES:
        yield chunk
        return
    size = len(chunk.data)
    for start in range(0, size, OUTPUT_FRAME_BYTES):
        data = chunk.data[start : start + OUTPUT_FRAME_BYTES]
        yield OutputChunk(
            stream=chunk.stream,
            offset=chunk.offset + start,
            data=data,
            end=chunk.end and start + len(data) == size,
        )


class _Input:
    """What the host sends to one process.

    Input waits while the process doesn't read; what comes behind it on the call (what the
    host has had, a new size) must not wait with it: the process may be waiting for that.
    """

    def __init__(
        self, processes: ProcessManager, process: ProcessRef, name: str, end: asyncio.Task[object]
    ) -> None:
        self._processes = processes
        self._process = process
        self._name = name
        self._end = end
        self._waiting: asyncio.Queue[pb.AttachRequest | None] = asyncio.Queue()
        self._bytes = 0
        self._room = asyncio.Event()

    async def follow(self, frames: Frames[pb.AttachRequest], send: Send[pb.AttachResponse]) -> None:
        """Handle frames until the host sends no more, which says nothing about the process."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed(send))
            async for frame in frames:
                await self._sort(frame)
            self._waiting.put_nowait(None)

    async def _sort(self, frame: pb.AttachRequest) -> None:
        """Input takes its turn; all else is done at once."""
        if frame.WhichOneof("frame") not in ("input", "close_input"):
            with self._crossing():
                await self._act(frame)
            return
        while self._bytes > WAITING_BYTES:
            self._room.clear()
            await self._room.wait()
        self._bytes += len(frame.input.data)
        self._waiting.put_nowait(frame)

    async def _feed(self, send: Send[pb.AttachResponse]) -> None:
        while (frame := await self._waiting.get()) is not None:
            try:
                acknowledged = await self._take(frame)
            except AgentError as error:
                if not await self._crosses_the_exit(error):
                    raise
                continue
            finally:
                self._bytes -= len(frame.input.data)
                self._room.set()
            await send(pb.AttachResponse(input_ack=pb.InputAck(offset=acknowledged)))

    async def _crosses_the_exit(self, error: AgentError) -> bool:
        """Input that does, on the way, has nowhere to go; the output must still get through."""
        if error.reason is Reason.INPUT_CLOSED:
            await asyncio.wait([self._end], timeout=CROSSING_SECONDS)
        return self._end.done()

    @contextmanager
    def _crossing(self) -> Iterator[None]:
        """What comes for a process that has ended meanwhile is no error."""
        try:
            yield
        except AgentError:
            if not self._end.done():
                raise

    async def _act(self, frame: pb.AttachRequest) -> None:
        match frame.WhichOneof("frame"):
            case "resize":
                size = convert.window_size(frame.resize, "resize")
                await self._processes.resize(self._process, size)
            case "open":
                raise invalid("`open` is only possible as the first frame", field="open")
            case "ack":
                stream = convert.output_stream(frame.ack.stream, "ack.stream")
                self._processes.acknowledge(self._process, stream, frame.ack.offset, self._name)
            case _:
                # A frame of a newer protocol is no error by itself.
                pass

    async def _take(self, frame: pb.AttachRequest) -> int:
        """The offset to acknowledge."""
        if frame.HasField("input"):
            return await self._write(frame.input)
        await self._processes.close_input(self._process, frame.close_input.offset)
        return frame.close_input.offset

    async def _write(self, frame: pb.InputFrame) -> int:
        if len(frame.data) > INPUT_FRAME_BYTES:
            raise invalid(
                f"input.data: {len(frame.data)} bytes, at most {INPUT_FRAME_BYTES} are possible",
                field="input.data",
            )
        return await self._processes.write_input(self._process, frame.offset, frame.data)
