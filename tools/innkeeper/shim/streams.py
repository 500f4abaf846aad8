"""The host's end of a process's streams: `Processes.Attach`, kept whole over lost connections.

A connection may go at any time (the agent restarts, the transport breaks). The
process and its output stay in the guest, and every byte has an absolute
offset. So `ProcessStreams` attaches again at the offsets it has, by a name for
which the guest keeps what it has not had, passes on every byte once, and gives up
only when nothing has moved for `patience` seconds. It is done at the process's exit,
or with `until` END when the streams themselves have ended, which a child left
behind may hold off.

Input goes out in frames with offsets too. What the guest has not acknowledged
is kept, at most `INPUT_WINDOW` bytes of it: when that is full nothing more is
read from the source, and that is the back-pressure.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from innkeeper.shim import writing
from innkeeper.v1 import processes_pb2, processes_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grpc import aio

    AttachCall = aio.StreamStreamCall[processes_pb2.AttachRequest, processes_pb2.AttachResponse]

INPUT_WINDOW = 1 << 20
_INPUT_FRAME = 256 << 10
_ACKNOWLEDGE_STEP = 64 << 10
"""Output is acknowledged when it is so much: the smallest window of a stream."""

UNTIL_EXIT = processes_pb2.ATTACH_UNTIL_EXIT
UNTIL_END = processes_pb2.ATTACH_UNTIL_END
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0

# What a client sees when a connection ends below a stream. All but UNAVAILABLE
# are also real answers; those carry an ErrorInfo.
_BROKEN_CONNECTION = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)


class Source(Protocol):
    """Where the process's input comes from."""

    async def read(self, limit: int) -> bytes:
        """At least one byte and at most `limit`; empty at the end of input."""


class Sink(Protocol):
    """Where an output stream goes."""

    async def write(self, data: bytes) -> None:
        """Takes all of `data`; returns when there is room for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnds:
    """The host's ends; without a source the process's input ends at once, or a
    terminal's stays silent."""

    stdout: Sink
    stderr: Sink
    source: Source | None = None
    from_kept: bool = False
    """Output begins with the oldest that the guest has, not with the first byte."""
    on_gap: Callable[[types_pb2.StreamKind.ValueType, int, int], None] | None = None
    """Told of output that is missing later: its first byte, and the first that is there
    again. Without it that is a StreamsError."""


class StreamsError(Exception):
    """Bytes were lost, or the connection did not come back in time."""


class InputBuffer:
    """Input that the guest has not acknowledged, by absolute offset."""

    def __init__(self) -> None:
        self.ended = False
        self.abandoned = False
        self._base: int | None = None
        self._kept = bytearray()
        self._room = asyncio.Event()
        self._room.set()
        self._taken = asyncio.Event()
        self._taken.set()

    @property
    def end(self) -> int:
        """Offset after the last byte that was put in."""
        return (self._base or 0) + len(self._kept)

    def put(self, data: bytes) -> None:
        if not self.abandoned:
            self._kept += data
            self._note_room()

    @property
    def has_room(self) -> bool:
        return len(self._kept) < INPUT_WINDOW

    async def room(self) -> int:
        """Waits until something fits, and says how much."""
        await self._room.wait()
        return INPUT_WINDOW - len(self._kept)

    async def taken(self) -> None:
        """Waits until the guest has all that was put in."""
        await self._taken.wait()

    def acknowledge(self, offset: int) -> None:
        """The guest has everything before `offset` and nothing after it; the
        first call says where this host's input begins."""
        if self._base is None or self.abandoned:
            self._base = offset
        if not self._base <= offset <= self.end:
            raise StreamsError(
                f"the guest is at byte {offset} of the process's input, but this host has"
                f" {self._base} to {self.end}: another host writes to the same process"
            )
        del self._kept[: offset - self._base]
        self._base = offset
        self._note_room()

    def resume(self, offset: int) -> int:
        """Where to send from on a new connection, whose guest wants `offset` next.

        A guest that has had all of a finished input may not know its length any
        more; what is left to say is the end, at the offset that we know.
        """
        if self._base is not None and self.ended and not self._kept:
            return self._base
        self.acknowledge(offset)
        return offset

    def frame(self, offset: int) -> bytes:
        """The next bytes from `offset` on, empty when there are none."""
        start = offset - (self._base or 0)
        with memoryview(self._kept) as kept:
            return bytes(kept[start : start + _INPUT_FRAME])

    def abandon(self) -> None:
        """The process takes no more input: drops what is kept and what comes."""
        self._kept.clear()
        self.abandoned = True
        self._note_room()

    def _note_room(self) -> None:
        if self.has_room:
            self._room.set()
        else:
            self._room.clear()
        if self._kept:
            self._taken.clear()
        else:
            self._taken.set()


@dataclass(slots=True)
class OutputCursor:
    """How far one output stream was passed on."""

    sink: Sink
    offset: int = 0
    ended: bool = False
    begun: bool = False

    async def take(self, frame: processes_pb2.OutputFrame) -> None:
        """Passes on what of the frame is new. Raises StreamsError on a gap."""
        if frame.offset > self.offset:
            raise _missing(self.offset, frame.offset, frame.stream)
        new = frame.data[self.offset - frame.offset :]
        if new:
            self.begun = True
            await self.sink.write(new)
            self.offset += len(new)
        self.ended = self.ended or frame.end

    def skip(self, gap: processes_pb2.OutputGap) -> None:
        """Goes on behind bytes that the guest has dropped."""
        self.offset = max(self.offset, gap.to)


def _missing(start: int, end: int, stream: types_pb2.StreamKind.ValueType) -> StreamsError:
    name = types_pb2.StreamKind.Name(stream).rpartition("_")[2].lower()
    return StreamsError(f"bytes {start} to {end} of the process's {name} are missing")


@dataclass(slots=True)
class _Sent:
    """What this one connection has carried so far."""

    input_offset: int
    input_closed: bool = False
    size: types_pb2.WindowSize | None = None
    acknowledged: dict[types_pb2.StreamKind.ValueType, int] = field(default_factory=dict)


class ProcessStreams:
    """One process's streams, from `run()` to its exit. Not to be used twice."""

    def __init__(
        self,
        channel: aio.Channel,
        process: types_pb2.ProcessRef,
        ends: StreamEnds,
        *,
        patience: float = 30.0,
        until: processes_pb2.AttachUntil.ValueType = UNTIL_EXIT,
        may_miss: bool = False,
    ) -> None:
        """With `may_miss`, output that the guest has dropped is passed over in silence, and
        this host never makes the process wait."""
        self._name = secrets.token_hex(8)
        self._channel = channel
        self._stub = processes_pb2_grpc.ProcessesStub(channel)
        self._process = process
        self._source = ends.source
        self._patience = patience
        self._until = until
        self._may_miss = may_miss
        self._from_kept = ends.from_kept
        self._on_gap = ends.on_gap
        self._input = InputBuffer()
        self._outputs = {
            types_pb2.STREAM_KIND_STDOUT: OutputCursor(ends.stdout),
            types_pb2.STREAM_KIND_STDERR: OutputCursor(ends.stderr),
        }
        self._size: types_pb2.WindowSize | None = None
        self._changed = asyncio.Event()
        self._opened = asyncio.Event()
        self._terminal = False
        self._progress = 0
        self._opened_at: float | None = None
        self._exit: types_pb2.ExitStatus | None = None

    def resize(self, rows: int, columns: int) -> None:
        """Sets the terminal's size, now or as soon as there is a connection."""
        self._size = types_pb2.WindowSize(rows=rows, columns=columns)
        self._changed.set()

    async def input_taken(self) -> None:
        """Waits until the guest has all that was read from the source so far."""
        await self._input.taken()

    async def run(self) -> types_pb2.ExitStatus:
        """Passes bytes on in both directions until the process has ended and
        all of its output was written, or until its streams have ended as well.

        Raises StreamsError, grpc.RpcError for an answer of the guest that is
        no lost connection, and what source and sinks raise; the first of them
        when there are several.
        """
        try:
            async with asyncio.TaskGroup() as group:
                pump = group.create_task(self._read_input())
                exit_status = await self._attach_until_done()
                pump.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return exit_status

    async def _read_input(self) -> None:
        await self._opened.wait()
        if self._source is None and self._terminal:
            # A terminal has no end of input; hanging up would end the process.
            return
        if self._source is not None:
            room = await self._input.room()
            while data := await self._source.read(min(room, _INPUT_FRAME)):
                self._input.put(data)
                self._changed.set()
                room = await self._input.room()
        self._input.ended = True
        self._changed.set()

    async def _attach_until_done(self) -> types_pb2.ExitStatus:
        patience = _Patience(self._patience, self._channel)
        while (end := self._done()) is None:
            before = self._progress
            failure: grpc.RpcError | None = None
            try:
                await self._attach_once()
            except grpc.RpcError as error:
                failure = error
            if self._progress != before or self._lasted():
                patience.renew()
            await self._after_call(failure, patience)
        return end

    def _done(self) -> types_pb2.ExitStatus | None:
        """How the process ended, when no more is to come."""
        ended = all(cursor.ended for cursor in self._outputs.values())
        return self._exit if ended or self._until == UNTIL_EXIT else None

    def _lasted(self) -> bool:
        """The last connection was a good one, only with nothing to say."""
        now = asyncio.get_running_loop().time()
        return self._opened_at is not None and now - self._opened_at > _LONGEST_PAUSE

    async def _after_call(self, failure: grpc.RpcError | None, patience: _Patience) -> None:
        """Has the exit, or returns when it is time to attach again, or raises."""
        if failure is not None and reason_of(failure) == "INPUT_CLOSED":
            self._input.abandon()
        elif failure is not None and is_broken_connection(failure):
            await patience.pause(details_of(failure))
        elif failure is not None and not self._moved_to_kept(failure):
            raise failure
        elif failure is not None:
            return
        elif self._exit is None and all(cursor.ended for cursor in self._outputs.values()):
            # All output came and the exit got lost.
            answer = await self._stub.Wait(processes_pb2.WaitRequest(process=self._process))
            self._exit = answer.exit
        elif self._done() is None:
            # Somebody between the guest and us closed the call.
            await patience.pause("the call ended before the process did")

    def _moved_to_kept(self, failure: grpc.RpcError) -> bool:
        """Whether output can begin later than it was asked for, and does now."""
        info = error_info(failure)
        if not self._from_kept or info is None or info.reason != "OFFSET_NOT_KEPT":
            return False
        names = dict(zip(("stdout", "stderr"), self._outputs.values(), strict=True))
        cursor, oldest = names.get(info.metadata["stream"]), info.metadata["oldest"]
        if cursor is None or cursor.begun or not oldest.isdecimal():
            return False
        before, cursor.offset = cursor.offset, int(oldest)
        return cursor.offset > before

    async def _attach_once(self) -> None:
        """One connection, from `open` to its end."""
        self._opened_at = None
        call = self._stub.Attach()
        sender: asyncio.Task[None] | None = None
        try:
            await writing.write(call, processes_pb2.AttachRequest(open=self._open_request()))
            async for response in call:
                if response.WhichOneof("frame") == "opened":
                    sender = self._start_sending(call, response.opened)
                else:
                    await self._take(response)
                if self._done() is not None:
                    return
        finally:
            call.cancel()
            if sender is not None:
                sender.cancel()
                await asyncio.wait({sender})

    def _open_request(self) -> processes_pb2.OpenStreams:
        return processes_pb2.OpenStreams(
            process=self._process,
            stdout_offset=self._outputs[types_pb2.STREAM_KIND_STDOUT].offset,
            stderr_offset=self._outputs[types_pb2.STREAM_KIND_STDERR].offset,
            until=self._until,
            may_miss=self._may_miss,
            reader=self._name,
        )

    def _start_sending(
        self, call: AttachCall, opened: processes_pb2.StreamsOpened
    ) -> asyncio.Task[None]:
        self._opened_at = asyncio.get_running_loop().time()
        sent = _Sent(
            input_offset=self._input.resume(opened.stdin_offset),
        )
        self._terminal = opened.terminal
        if opened.terminal:
            self._outputs[types_pb2.STREAM_KIND_STDERR].ended = True
        self._opened.set()
        return asyncio.create_task(self._send(call, sent))

    async def _take(self, response: processes_pb2.AttachResponse) -> None:
        self._progress += 1
        match response.WhichOneof("frame"):
            case "output":
                await self._outputs[response.output.stream].take(response.output)
                self._changed.set()
            case "input_ack":
                self._input.acknowledge(response.input_ack.offset)
                self._changed.set()
            case "gap":
                self._pass_over(response.gap)
            case "exit":
                self._take_exit(response.exit)

    def _pass_over(self, gap: processes_pb2.OutputGap) -> None:
        cursor = self._outputs[gap.stream]
        first = self._from_kept and not cursor.begun
        if gap.to > cursor.offset and not (self._may_miss or first):
            if self._on_gap is None:
                raise _missing(cursor.offset, gap.to, gap.stream)
            self._on_gap(gap.stream, cursor.offset, gap.to)
        cursor.skip(gap)
        self._changed.set()

    def _take_exit(self, end: types_pb2.ExitStatus) -> None:
        """All that was written until then must have come before."""
        marks = (end.stdout_bytes, end.stderr_bytes)
        for (stream, cursor), mark in zip(self._outputs.items(), marks, strict=True):
            if cursor.offset < mark:
                raise _missing(cursor.offset, mark, stream)
        self._exit = end

    async def _send(self, call: AttachCall, sent: _Sent) -> None:
        """Sends what is due until it is cancelled; the reader sees why a call ended."""
        try:
            while True:
                self._changed.clear()
                for frame in self._due(sent):
                    if not await writing.write(call, frame):
                        return
                await self._changed.wait()
        except grpc.RpcError:
            return

    def _due(self, sent: _Sent) -> Iterator[processes_pb2.AttachRequest]:
        """Frames for what changed since `sent`, which they bring up to date."""
        if self._size is not None and self._size != sent.size:
            sent.size = self._size
            yield processes_pb2.AttachRequest(resize=self._size)
        yield from self._due_acknowledgements(sent)
        yield from self._due_input(sent)

    def _due_acknowledgements(self, sent: _Sent) -> Iterator[processes_pb2.AttachRequest]:
        """At once, so that the guest knows that this host does; then in steps."""
        for stream, cursor in self._outputs.items():
            before = sent.acknowledged.get(stream, -_ACKNOWLEDGE_STEP)
            if cursor.offset - before >= _ACKNOWLEDGE_STEP:
                sent.acknowledged[stream] = cursor.offset
                ack = processes_pb2.OutputAck(stream=stream, offset=cursor.offset)
                yield processes_pb2.AttachRequest(ack=ack)

    def _due_input(self, sent: _Sent) -> Iterator[processes_pb2.AttachRequest]:
        while data := self._input.frame(sent.input_offset):
            frame = processes_pb2.InputFrame(offset=sent.input_offset, data=data)
            sent.input_offset += len(data)
            yield processes_pb2.AttachRequest(input=frame)
        if self._input.ended and not (sent.input_closed or self._input.abandoned):
            sent.input_closed = True
            close = processes_pb2.CloseInput(offset=sent.input_offset)
            yield processes_pb2.AttachRequest(close_input=close)


class _Patience:
    """Pauses between attempts, longer each time, up to a deadline."""

    def __init__(self, seconds: float, channel: aio.Channel) -> None:
        self._seconds = seconds
        self._channel = channel
        self._pause = _FIRST_PAUSE
        self._deadline: float | None = None

    def renew(self) -> None:
        """Something moved: the next pause is the first one again."""
        self._deadline = None
        self._pause = _FIRST_PAUSE

    async def pause(self, why: str) -> None:
        """Waits for a change of the channel's state, or a moment: the daemon
        answers for a guest whose agent is away, and nothing tells when it is back.
        """
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now >= self._deadline:
            raise StreamsError(
                f"the connection to the process's streams was lost and did not come back within"
                f" {self._seconds:g} s: {why}"
            )
        await self._one_pause()

    async def _one_pause(self) -> None:
        try:
            async with asyncio.timeout(self._pause):
                await self._channel.wait_for_state_change(self._channel.get_state())
        except TimeoutError:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def is_broken_connection(error: grpc.RpcError) -> bool:
    """Whether the call ended because of the way to the guest, not by an answer of it."""
    code = getattr(error, "code", lambda: None)()
    if code is grpc.StatusCode.UNAVAILABLE:
        return True
    return code in _BROKEN_CONNECTION and not reason_of(error)


def details_of(error: grpc.RpcError) -> str:
    return str(getattr(error, "details", lambda: None)() or error)


def reason_of(error: grpc.RpcError) -> str:
    """`google.rpc.ErrorInfo.reason` of a failed call, empty when it has none."""
    info = error_info(error)
    return info.reason if info is not None else ""


def error_info(error: grpc.RpcError) -> error_details_pb2.ErrorInfo | None:
    """What a failed call carries for programs."""
    try:
        status = rpc_status.from_call(error)  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info
    return None
