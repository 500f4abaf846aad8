"""Processes.Attach: one connection to a process's streams.

Two tasks: one reads the host's frames, the other sends output as fast as the
host takes it. A connection that breaks ends both and changes nothing at the
process. The last frame is the exit, after the end of every output stream.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from agent.core.errors import AgentError, invalid, timed_out
from agent.core.model import OutputChunk, Stream
from agent.server.convert import processes as convert
from agent.server.limits import INPUT_FRAME_BYTES, OUTPUT_FRAME_BYTES
from innkeeper.v1 import processes_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from agent.core.model import ProcessRef
    from agent.server.calls import Frames, Send
    from agent.server.facades import ProcessManager

FIRST_FRAME_SECONDS: Final = 30.0
"""How long a call may stay open without saying which process it is for."""


async def attach(
    processes: ProcessManager,
    frames: Frames[pb.AttachRequest],
    send: Send[pb.AttachResponse],
    *,
    first_frame_within: float = FIRST_FRAME_SECONDS,
) -> None:
    """Serve one call from its first frame to the process's exit."""
    opening = await _first_frame(frames, first_frame_within)
    process = convert.process_ref(opening.process)
    opened = pb.StreamsOpened(
        terminal=processes.has_terminal(process), stdin_offset=processes.input_offset(process)
    )
    async with asyncio.TaskGroup() as group:
        end = group.create_task(processes.wait(process))
        await send(pb.AttachResponse(opened=opened))
        reader = group.create_task(_Input(processes, process, end).follow(frames, send))
        if not opening.input_only:
            offsets = {Stream.STDOUT: opening.stdout_offset, Stream.STDERR: opening.stderr_offset}
            if opened.terminal:
                del offsets[Stream.STDERR]
            await _send_output(processes.output(process, offsets), send)
        await send(pb.AttachResponse(exit=convert.exit_status(await end)))
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


async def _send_output(
    output: AsyncGenerator[OutputChunk, None], send: Send[pb.AttachResponse]
) -> None:
    # Closed at once when the host leaves, not when it is collected.
    async with aclosing(output) as chunks:
        async for chunk in chunks:
            for part in _parts(chunk):
                await send(convert.output_frame(part))


def _parts(chunk: OutputChunk) -> Iterator[OutputChunk]:
    """The chunk in frames that are not too long; only the last one may be the end."""
    size = len(chunk.data)
    for start in range(0, max(size, 1), OUTPUT_FRAME_BYTES):
        data = chunk.data[start : start + OUTPUT_FRAME_BYTES]
        yield OutputChunk(
            stream=chunk.stream,
            offset=chunk.offset + start,
            data=data,
            end=chunk.end and start + len(data) == size,
        )


class _Input:
    """What the host sends to one process."""

    def __init__(
        self, processes: ProcessManager, process: ProcessRef, end: asyncio.Task[object]
    ) -> None:
        self._processes = processes
        self._process = process
        self._end = end

    async def follow(self, frames: Frames[pb.AttachRequest], send: Send[pb.AttachResponse]) -> None:
        """Handle frames until the host sends no more, which says nothing about the process."""
        async for frame in frames:
            try:
                acknowledged = await self._take(frame)
            except AgentError:
                # Input that crosses the process's exit on the way has nowhere
                # to go; the output must still get through.
                if not self._end.done():
                    raise
                continue
            if acknowledged is not None:
                ack = pb.InputAck(offset=acknowledged)
                await send(pb.AttachResponse(input_ack=ack))

    async def _take(self, frame: pb.AttachRequest) -> int | None:
        """Do what the frame says; the offset to acknowledge, if any."""
        match frame.WhichOneof("frame"):
            case "input":
                return await self._write(frame.input)
            case "close_input":
                await self._processes.close_input(self._process, frame.close_input.offset)
                return frame.close_input.offset
            case "resize":
                size = convert.window_size(frame.resize, "resize")
                await self._processes.resize(self._process, size)
            case "open":
                raise invalid("`open` is only possible as the first frame", field="open")
            case "ack":
                stream = convert.output_stream(frame.ack.stream, "ack.stream")
                self._processes.acknowledge(self._process, stream, frame.ack.offset)
            case _:
                # A frame of a newer protocol is no error by itself.
                pass
        return None

    async def _write(self, frame: pb.InputFrame) -> int:
        if len(frame.data) > INPUT_FRAME_BYTES:
            raise invalid(
                f"input.data: {len(frame.data)} bytes, at most {INPUT_FRAME_BYTES} are possible",
                field="input.data",
            )
        return await self._processes.write_input(self._process, frame.offset, frame.data)
