"""Rules of Processes.Attach that a wire would hide: how long, how much at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.errors import AgentError, Code, Reason
from agent.core.life import Until
from agent.core.model import OutputChunk, OutputGap, ProcessExit, ProcessRef, Stream
from agent.server.limits import OUTPUT_FRAME_BYTES
from agent.server.streams import _parts as parts
from agent.server.streams import attach
from innkeeper.v1 import processes_pb2 as pb
from innkeeper.v1 import types_pb2
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.containers]

WEB = types_pb2.ProcessRef(container_id="web")


class Host:
    """A host's frames, then silence; and what it was sent."""

    def __init__(self, *frames: pb.AttachRequest) -> None:
        self._frames = list(frames)
        self.sent: list[pb.AttachResponse] = []

    async def read(self) -> pb.AttachRequest:
        if not self._frames:
            await asyncio.Event().wait()
        return self._frames.pop(0)

    async def __aiter__(self) -> Any:
        while True:
            yield await self.read()

    async def send(self, frame: pb.AttachResponse) -> None:
        self.sent.append(frame)


async def serve(processes: Script, host: Host) -> None:
    manager: Any = processes
    frames: Any = host
    send: Any = host.send
    await attach(manager, frames, send, first_frame_within=0.01)


async def test_a_host_that_never_opens_is_told_so() -> None:
    with pytest.raises(AgentError, match="open") as caught:
        await serve(Script(), Host())
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT


class Script:
    """A process manager of one process, whose output comes when the test says so."""

    def __init__(self, *, terminal: bool = False) -> None:
        self.terminal = terminal
        self.asked: list[tuple[dict[Stream, int], Until, bool]] = []
        self.readers: list[str] = []
        self._pieces: asyncio.Queue[OutputChunk | OutputGap | None] = asyncio.Queue()
        self._exit: asyncio.Future[ProcessExit] = asyncio.get_running_loop().create_future()

    def gives(self, *pieces: OutputChunk | OutputGap) -> None:
        for piece in pieces:
            self._pieces.put_nowait(piece)

    def is_over(self) -> None:
        """The streams give no more, as far as they were asked for."""
        self._pieces.put_nowait(None)

    def exits(self, end: ProcessExit) -> None:
        self._exit.set_result(end)

    def has_terminal(self, _ref: ProcessRef) -> bool:
        return self.terminal

    def input_offset(self, _ref: ProcessRef) -> int:
        return 0

    async def wait(self, _ref: ProcessRef) -> ProcessExit:
        return await self._exit

    async def output(
        self,
        _ref: ProcessRef,
        offsets: Mapping[Stream, int],
        *,
        until: Until,
        may_miss: bool,
        reader: str,
    ) -> AsyncGenerator[OutputChunk | OutputGap, None]:
        self.asked.append((dict(offsets), until, may_miss))
        self.readers.append(reader)
        while (piece := await self._pieces.get()) is not None:
            yield piece


def chunk(offset: int, data: bytes = b"", *, end: bool = False) -> OutputChunk:
    return OutputChunk(stream=Stream.STDOUT, offset=offset, data=data, end=end)


def opening(**fields: Any) -> pb.AttachRequest:
    return pb.AttachRequest(open=pb.OpenStreams(process=WEB, **fields))


def said(host: Host) -> list[str]:
    """The answers, each by a short name."""
    return [
        f"output {frame.output.offset}" if frame.HasField("output") else str(kind)
        for frame in host.sent
        if (kind := frame.WhichOneof("frame"))
    ]


async def test_a_terminal_has_one_output_stream() -> None:
    process, host = Script(terminal=True), Host(opening(stdout_offset=3, stderr_offset=4))
    process.exits(ProcessExit(code=0))
    process.is_over()
    await serve(process, host)
    assert host.sent[0].opened.terminal
    assert process.asked == [({Stream.STDOUT: 3}, Until.EXIT, False)]


async def test_until_the_exit_it_is_the_last_frame() -> None:
    process, host = Script(), Host(opening())
    process.exits(ProcessExit(code=7, stdout_bytes=3, stderr_bytes=0))
    process.gives(chunk(0, b"abc"), chunk(3, end=True))
    process.is_over()
    await serve(process, host)
    assert said(host) == ["opened", "output 0", "output 3", "exit"]
    end = host.sent[-1].exit
    assert (end.code, end.stdout_bytes, end.stderr_bytes) == (7, 3, 0)


async def test_until_the_end_the_exit_comes_after_what_was_there_and_more_after_it() -> None:
    """A child left behind writes on."""
    process, host = Script(), Host(opening(until=pb.ATTACH_UNTIL_END, may_miss=True, reader="r1"))
    serving = asyncio.create_task(serve(process, host))
    process.exits(ProcessExit(code=0, stdout_bytes=4, stderr_bytes=0))
    process.gives(chunk(0, b"abc"))
    await until_said(host, "output 0")
    assert "exit" not in said(host)
    process.gives(chunk(3, b"d"))
    await until_said(host, "exit")
    process.gives(chunk(4, b"e"), chunk(5, end=True))
    process.is_over()
    await serving
    assert said(host) == ["opened", "output 0", "output 3", "exit", "output 4", "output 5"]
    assert process.asked == [({Stream.STDOUT: 0, Stream.STDERR: 0}, Until.END, True)]
    assert process.readers == ["r1"]


async def until_said(host: Host, word: str) -> None:
    await until(lambda: word in said(host))


async def test_a_gap_counts_as_come_so_far() -> None:
    process, host = Script(), Host(opening(until=pb.ATTACH_UNTIL_END))
    serving = asyncio.create_task(serve(process, host))
    process.exits(ProcessExit(code=0, stdout_bytes=9, stderr_bytes=0))
    process.gives(OutputGap(stream=Stream.STDOUT, start=0, end=9))
    await until_said(host, "exit")
    gap = host.sent[1].gap
    assert (gap.stream, getattr(gap, "from"), gap.to) == (types_pb2.STREAM_KIND_STDOUT, 0, 9)
    process.is_over()
    await serving


@pytest.mark.parametrize("when", [pb.ATTACH_UNTIL_EXIT, pb.ATTACH_UNTIL_END])
async def test_streams_that_end_first_wait_for_the_exit(when: pb.AttachUntil.ValueType) -> None:
    process, host = Script(), Host(opening(until=when))
    serving = asyncio.create_task(serve(process, host))
    process.gives(chunk(0, b"x", end=True))
    process.is_over()
    await until_said(host, "output 0")
    # What it had written is not known, or was never to come: the exit is told all the same.
    process.exits(ProcessExit(code=255, stdout_bytes=100, stderr_bytes=None))
    await serving
    assert said(host) == ["opened", "output 0", "exit"]


async def test_input_alone_asks_for_no_output() -> None:
    process, host = Script(), Host(opening(input_only=True, until=pb.ATTACH_UNTIL_END))
    process.exits(ProcessExit(code=0, stdout_bytes=100, stderr_bytes=0))
    await serve(process, host)
    assert said(host) == ["opened", "exit"]
    assert process.asked == []


async def test_an_end_that_is_not_known_is_refused() -> None:
    opened = pb.OpenStreams(process=WEB)
    opened.until = 7  # type: ignore[assignment]
    with pytest.raises(AgentError) as caught:
        await serve(Script(), Host(pb.AttachRequest(open=opened)))
    assert caught.value.fields["field"] == "open.until"


@given(st.integers(0, 3 * OUTPUT_FRAME_BYTES), st.integers(0, 1 << 40), st.booleans())
def test_a_chunk_of_any_size_becomes_frames_that_join_to_it(
    size: int, offset: int, end: bool
) -> None:
    whole = OutputChunk(stream=Stream.STDERR, offset=offset, data=bytes(size), end=end)
    frames = [one for one in parts(whole) if isinstance(one, OutputChunk)]
    assert b"".join(one.data for one in frames) == whole.data
    assert all(len(one.data) <= OUTPUT_FRAME_BYTES for one in frames)
    at = offset
    for frame in frames:
        assert (frame.stream, frame.offset) == (Stream.STDERR, at)
        at += len(frame.data)
    assert [one.end for one in frames] == [False] * (len(frames) - 1) + [end]
