"""A `Processes` service of one process, whose connections can be made to fail.

The process is a rule: what it writes to each stream as a function of the input
it has had. The service keeps to the protocol's words on offsets strictly (a
gap in the input is OUT_OF_RANGE), so a client that repeats or skips is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import grpc
from grpc import aio

from innkeeper.v1 import processes_pb2, processes_pb2_grpc, types_pb2
from tests.fakes.refusing import refuse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    Kind: TypeAlias = types_pb2.StreamKind.ValueType
    Context = aio.ServicerContext[processes_pb2.AttachRequest, processes_pb2.AttachResponse]

_FRAME = 1 << 15
_OUTPUTS = (types_pb2.STREAM_KIND_STDOUT, types_pb2.STREAM_KIND_STDERR)


@dataclass(slots=True, kw_only=True)
class FakeProcess:
    """`cat` when `echo` is set: it ends at the end of its input. Otherwise its
    output is there from the beginning, and it ends with it.

    A child that it leaves behind writes `later` to standard output after its end. Standard
    output before `dropped` is not there any more."""

    stdout: bytes = b""
    stderr: bytes = b""
    echo: bool = False
    terminal: bool = False
    exit_code: int = 0
    kept: int = 0
    """The oldest byte of standard output that can be had."""
    later: bytes = b""
    dropped: int = 0
    acknowledges: bool = True
    received: bytearray = field(default_factory=bytearray)
    input_closed: bool = False
    sizes: asyncio.Queue[tuple[int, int]] = field(default_factory=asyncio.Queue)
    arrivals: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    """Length of the whole input after each frame of it."""
    acknowledged: asyncio.Queue[tuple[Kind, int]] = field(default_factory=asyncio.Queue)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def output(self, stream: Kind) -> bytes:
        if stream == types_pb2.STREAM_KIND_STDERR:
            return self.stderr
        return bytes(self.received) if self.echo else self.stdout

    @property
    def ended(self) -> bool:
        return not self.echo or self.input_closed

    def marks(self) -> dict[Kind, int]:
        """How much there was when it ended."""
        return {stream: len(self.output(stream)) for stream in _OUTPUTS}

    def streams(self) -> tuple[Kind, ...]:
        return _OUTPUTS[:1] if self.terminal else _OUTPUTS


class FakeProcesses(processes_pb2_grpc.ProcessesServicer):
    """Serves one process; `end_calls_after` lists, call by call, after how many
    answers a call ends, and how ("abort", "crash", "end", "no exit")."""

    def __init__(self, process: FakeProcess, end_calls_after: list[tuple[int, str]]) -> None:
        self.process = process
        self.opens: list[processes_pb2.OpenStreams] = []
        self.waits = 0
        self._endings = list(end_calls_after)

    async def Exec(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802 - gRPC's name
        raise NotImplementedError

    Signal = Resize = List = Exec

    def Logs(  # noqa: N802 - gRPC's name
        self, request: processes_pb2.LogsRequest, context: object
    ) -> AsyncIterator[processes_pb2.LogsResponse]:
        raise NotImplementedError

    async def Wait(  # noqa: N802 - gRPC's name
        self, request: processes_pb2.WaitRequest, context: object
    ) -> processes_pb2.WaitResponse:
        self.waits += 1
        return processes_pb2.WaitResponse(exit=self._exit())

    async def Attach(  # noqa: N802 - gRPC's name
        self,
        requests: AsyncIterator[processes_pb2.AttachRequest],
        context: Context,
    ) -> AsyncIterator[processes_pb2.AttachResponse]:
        opened = (await anext(aiter(requests))).open
        self.opens.append(opened)
        if opened.stdout_offset < self.process.kept:
            oldest = str(self.process.kept)
            code, fields = grpc.StatusCode.OUT_OF_RANGE, {"stream": "stdout", "oldest": oldest}
            await refuse(context, code, "not kept", "OFFSET_NOT_KEPT", **fields)
        left, ending = self._endings.pop(0) if self._endings else (-1, "")
        reader = asyncio.create_task(self._read(requests, context))
        try:
            async for answer in self._answers(opened):
                if left == 0 or (ending == "no exit" and answer.HasField("exit")):
                    await _end(context, ending)
                    return
                left -= 1
                yield answer
        finally:
            reader.cancel()

    async def _answers(
        self, opened: processes_pb2.OpenStreams
    ) -> AsyncIterator[processes_pb2.AttachResponse]:
        process = self.process
        input_acked = len(process.received)
        yield processes_pb2.AttachResponse(
            opened=processes_pb2.StreamsOpened(
                terminal=process.terminal, stdin_offset=len(process.received)
            )
        )
        offsets = dict(zip(_OUTPUTS, (opened.stdout_offset, opened.stderr_offset), strict=True))
        if 0 <= offsets[_OUTPUTS[0]] < process.dropped:
            yield processes_pb2.AttachResponse(gap=_gap(offsets[_OUTPUTS[0]], process.dropped))
            offsets[_OUTPUTS[0]] = process.dropped
        while True:
            process.changed.clear()
            ended = process.ended
            if process.acknowledges and len(process.received) > input_acked:
                input_acked = len(process.received)
                ack = processes_pb2.InputAck(offset=input_acked)
                yield processes_pb2.AttachResponse(input_ack=ack)
            for stream in process.streams():
                for frame in _frames(stream, process.output(stream), offsets[stream]):
                    offsets[stream] = frame.offset + len(frame.data)
                    yield processes_pb2.AttachResponse(output=frame)
            if ended:
                break
            await process.changed.wait()
        for answer in _last(process, offsets, opened.until, self._exit()):
            yield answer

    async def _read(
        self,
        requests: AsyncIterator[processes_pb2.AttachRequest],
        context: Context,
    ) -> None:
        process = self.process
        async for request in requests:
            match request.WhichOneof("frame"):
                case "input":
                    have = len(process.received)
                    if request.input.offset > have:
                        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "a gap in the input")
                    process.received += request.input.data[have - request.input.offset :]
                    process.arrivals.put_nowait(len(process.received))
                case "close_input":
                    assert request.close_input.offset == len(process.received)
                    process.input_closed = True
                case "resize":
                    process.sizes.put_nowait((request.resize.rows, request.resize.columns))
                case "ack":
                    process.acknowledged.put_nowait((request.ack.stream, request.ack.offset))
            process.changed.set()

    def _exit(self) -> types_pb2.ExitStatus:
        stdout, stderr = self.process.marks().values()
        return types_pb2.ExitStatus(
            code=self.process.exit_code, stdout_bytes=stdout, stderr_bytes=stderr
        )


def _frames(stream: Kind, data: bytes, offset: int) -> list[processes_pb2.OutputFrame]:
    return [
        processes_pb2.OutputFrame(stream=stream, offset=at, data=data[at : at + _FRAME])
        for at in range(offset, len(data), _FRAME)
    ]


def _gap(start: int, end: int) -> processes_pb2.OutputGap:
    gap = processes_pb2.OutputGap(stream=_OUTPUTS[0], to=end)
    # A word of Python's, so no keyword.
    setattr(gap, "from", start)
    return gap


def _last(
    process: FakeProcess,
    offsets: dict[Kind, int],
    until: processes_pb2.AttachUntil.ValueType,
    end: types_pb2.ExitStatus,
) -> Iterator[processes_pb2.AttachResponse]:
    """From the exit on; without a child the streams end before it."""
    exit_frame = processes_pb2.AttachResponse(exit=end)
    if until != processes_pb2.ATTACH_UNTIL_END and process.later:
        yield exit_frame
        return
    if process.later:
        yield exit_frame
        stdout = _OUTPUTS[0]
        for frame in _frames(stdout, process.output(stdout) + process.later, offsets[stdout]):
            offsets[stdout] = frame.offset + len(frame.data)
            yield processes_pb2.AttachResponse(output=frame)
    for stream in process.streams():
        over = processes_pb2.OutputFrame(stream=stream, offset=offsets[stream], end=True)
        yield processes_pb2.AttachResponse(output=over)
    if not process.later:
        yield exit_frame


async def _end(context: Context, how: str) -> None:
    match how:
        case "abort":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the agent is away")
        case "crash":
            raise RuntimeError("a fake crash of the service")


class CuttingWire:
    """A unix socket in front of another one, that cuts each connection after a
    number of bytes towards the client; connections without a number live."""

    def __init__(self, target: Path, cuts: list[int]) -> None:
        self._target = target
        self._cuts = list(cuts)

    async def connect(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """One connection, as asyncio.start_unix_server wants it."""
        limit = self._cuts.pop(0) if self._cuts else None
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            server, forth = await asyncio.open_unix_connection(self._target)
            upward = asyncio.create_task(_pump(client, forth, None))
            try:
                await _pump(server, back, limit)
            finally:
                upward.cancel()
                forth.transport.abort()
        back.transport.abort()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None
) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(4096):
            writer.write(data[:limit])
            await writer.drain()
            if limit is not None:
                limit -= len(data)
                if limit <= 0:
                    return


@contextlib.asynccontextmanager
async def serving(
    service: FakeProcesses, folder: Path, cuts: list[int] | None = None
) -> AsyncIterator[aio.Channel]:
    """A channel to the service, through a wire that cuts."""
    server = aio.server()
    processes_pb2_grpc.add_ProcessesServicer_to_server(service, server)
    server.add_insecure_port(f"unix:{folder}/service.sock")
    await server.start()
    wire = CuttingWire(folder / "service.sock", cuts or [])
    gate = await asyncio.start_unix_server(wire.connect, folder / "wire.sock")
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 100)]
    channel = aio.insecure_channel(f"unix:{folder}/wire.sock", options=options)
    try:
        yield channel
    finally:
        await channel.close()
        gate.close()
        await server.stop(None)
