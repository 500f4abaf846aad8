"""innkeeper.v1.Processes.Attach over the wire: one connection to a process's streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from agent.core.errors import wrong_state
from agent.core.life import Until
from agent.core.model import ProcessExit, ProcessRef, Stream, WindowSize
from innkeeper.v1 import processes_pb2 as pb
from innkeeper.v1 import types_pb2
from innkeeper.v1.processes_pb2_grpc import ProcessesStub
from tests.fakes.agent_server import RunningAgent, refused
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from innkeeper.v1.processes_pb2_grpc import ProcessesAsyncStub
    from tests.fakes.agent_managers import FakeProcess

    Call = grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse]

pytestmark = [pytest.mark.contract, pytest.mark.containers]

WEB = types_pb2.ProcessRef(container_id="web")
STDOUT, STDERR = types_pb2.STREAM_KIND_STDOUT, types_pb2.STREAM_KIND_STDERR


@pytest.fixture
def process(agent: RunningAgent) -> FakeProcess:
    return agent.processes.add("web")


@pytest.fixture
def stub(agent: RunningAgent) -> ProcessesAsyncStub:
    return ProcessesStub(agent.channel)


async def opened(stub: ProcessesAsyncStub, stdout: int = 0, stderr: int = 0) -> Call:
    call = stub.Attach()
    await send(call, open=pb.OpenStreams(process=WEB, stdout_offset=stdout, stderr_offset=stderr))
    first = await received(call)
    assert first.WhichOneof("frame") == "opened"
    return call


async def send(call: Call, **frame: object) -> None:
    await call.write(pb.AttachRequest(**frame))  # type: ignore[arg-type]


async def received(call: Call) -> pb.AttachResponse:
    async with asyncio.timeout(10):
        frame = await call.read()
    assert isinstance(frame, pb.AttachResponse), "the call is over"
    return frame


async def rest(call: Call) -> list[pb.AttachResponse]:
    frames = []
    async with asyncio.timeout(10):
        while isinstance(frame := await call.read(), pb.AttachResponse):
            frames.append(frame)
    return frames


def joined(frames: list[pb.AttachResponse], stream: types_pb2.StreamKind.ValueType) -> bytes:
    return b"".join(
        one.output.data for one in frames if one.HasField("output") and one.output.stream == stream
    )


async def test_output_then_both_ends_then_the_exit_and_nothing_after(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    call = await opened(stub)
    await process.write(Stream.STDOUT, b"out")
    await process.write(Stream.STDERR, b"err")
    await process.finish(ProcessExit(code=3, at=1.0))
    frames = await rest(call)
    assert joined(frames, STDOUT) == b"out"
    assert joined(frames, STDERR) == b"err"
    *_, end_out, end_err, last = frames
    assert {end_out.output.stream, end_err.output.stream} == {STDOUT, STDERR}
    assert end_out.output.end
    assert end_err.output.end
    assert last.exit == types_pb2.ExitStatus(code=3, at_unix_micros=1_000_000)
    assert sum(one.HasField("exit") for one in frames) == 1
    assert await call.code() == grpc.StatusCode.OK


async def test_the_first_answer_says_terminal_and_where_input_goes_on(
    agent: RunningAgent, stub: ProcessesAsyncStub
) -> None:
    process = agent.processes.add("web", terminal=True)
    process.received += b"12345"
    call = stub.Attach()
    await send(call, open=pb.OpenStreams(process=WEB))
    first = await received(call)
    assert first.opened == pb.StreamsOpened(terminal=True, stdin_offset=5)
    await process.finish(ProcessExit(code=0))
    assert [one.output.stream for one in await rest(call) if one.HasField("output")] == [STDOUT]


async def test_a_lost_connection_resumes_and_misses_and_repeats_nothing(
    agent: RunningAgent, stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    wanted = bytes(range(256)) * 100
    await process.write(Stream.STDOUT, wanted)
    got = b""
    for _ in range(4):
        async with agent.connect() as channel:
            call = await opened(ProcessesStub(channel), stdout=len(got))
            frame = (await received(call)).output
            assert frame.offset == len(got)
            got += frame.data
        # Closed with frames in flight: the process and what it wrote stay.
    await process.finish(ProcessExit(code=0))
    got += joined(await rest(await opened(stub, stdout=len(got))), STDOUT)
    assert got == wanted


async def test_offsets_that_are_no_longer_kept_are_out_of_range(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    await process.write(Stream.STDOUT, b"x" * 100)
    await process.write(Stream.STDERR, b"x" * 100)
    process.dropped = 50
    answer = await refused(_attach_all(stub, stdout=10, stderr=50))
    assert (answer.code, answer.reason) == (grpc.StatusCode.OUT_OF_RANGE, "OFFSET_NOT_KEPT")
    assert answer.fields["oldest"] == "50"


async def _attach_all(stub: ProcessesAsyncStub, stdout: int, stderr: int) -> None:
    await rest(await opened(stub, stdout, stderr))


async def test_input_is_acknowledged_by_offset_and_repeats_are_skipped(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    call = await opened(stub)
    await send(call, input=pb.InputFrame(offset=0, data=b"hello "))
    assert (await received(call)).input_ack.offset == 6
    await send(call, input=pb.InputFrame(offset=3, data=b"lo world"))
    assert (await received(call)).input_ack.offset == 11
    await send(call, close_input=pb.CloseInput(offset=11))
    assert (await received(call)).input_ack.offset == 11
    assert bytes(process.received) == b"hello world"
    assert process.input_end == 11
    call.cancel()


async def test_a_gap_in_the_input_is_out_of_range_and_writes_nothing(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    call = await opened(stub)
    await send(call, input=pb.InputFrame(offset=1, data=b"x"))
    answer = await refused(rest(call))
    assert answer.code == grpc.StatusCode.OUT_OF_RANGE
    assert process.received == b""


async def test_closing_ones_half_is_not_the_end_of_the_input(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    call = await opened(stub)
    await call.done_writing()
    await process.write(Stream.STDOUT, b"still here")
    assert (await received(call)).output.data == b"still here"
    assert process.input_end is None
    await process.finish(ProcessExit(code=0))
    assert (await rest(call))[-1].HasField("exit")


async def test_a_connection_that_breaks_leaves_the_input_open(
    agent: RunningAgent, stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    async with agent.connect() as channel:
        call = await opened(ProcessesStub(channel))
        await send(call, input=pb.InputFrame(offset=0, data=b"half"))
        await received(call)
    assert process.input_end is None
    call = await opened(stub)
    await send(call, input=pb.InputFrame(offset=4, data=b" and half"))
    assert (await received(call)).input_ack.offset == 13
    call.cancel()


async def test_input_that_crosses_the_exit_does_not_cost_the_output(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    call = await opened(stub)
    await process.finish(ProcessExit(code=0))
    await process.write(Stream.STDOUT, b"last words")
    await send(call, input=pb.InputFrame(offset=0, data=b"too late"))
    frames = await rest(call)
    assert joined(frames, STDOUT) == b"last words"
    assert frames[-1].HasField("exit")


async def test_input_after_its_end_is_refused_while_the_process_runs(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    call = await opened(stub)
    await send(call, close_input=pb.CloseInput(offset=0))
    await send(call, input=pb.InputFrame(offset=0, data=b"x"))
    answer = await refused(rest(call))
    assert (answer.code, answer.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "INPUT_CLOSED")


async def test_the_size_of_a_terminal_goes_along(
    agent: RunningAgent, stub: ProcessesAsyncStub
) -> None:
    process = agent.processes.add("web", terminal=True)
    call = await opened(stub)
    await send(call, resize=types_pb2.WindowSize(rows=25, columns=81))
    async with asyncio.timeout(10), process.changed:
        await process.changed.wait_for(lambda: process.size is not None)
    assert process.size == WindowSize(rows=25, columns=81)
    call.cancel()


async def test_input_only_sends_no_output_but_the_exit(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    await process.write(Stream.STDOUT, b"unwanted")
    call = stub.Attach()
    await send(call, open=pb.OpenStreams(process=WEB, input_only=True))
    await received(call)
    await send(call, input=pb.InputFrame(offset=0, data=b"x"))
    assert (await received(call)).input_ack.offset == 1
    await process.finish(ProcessExit(code=0))
    (last,) = await rest(call)
    assert last.HasField("exit")


@pytest.mark.parametrize(
    "frame",
    [
        pb.AttachRequest(),
        pb.AttachRequest(input=pb.InputFrame(data=b"x")),
        pb.AttachRequest(close_input=pb.CloseInput()),
    ],
    ids=["empty", "input", "close"],
)
async def test_the_first_frame_must_be_open(
    stub: ProcessesAsyncStub, process: FakeProcess, frame: pb.AttachRequest
) -> None:
    answer = await refused(rest(stub.Attach(_frames(frame))))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    assert process.received == b""


async def test_no_frame_at_all_is_no_open(stub: ProcessesAsyncStub) -> None:
    assert (await refused(rest(stub.Attach(_frames())))).reason == "BAD_FIELD"


async def _frames(*frames: pb.AttachRequest) -> AsyncIterator[pb.AttachRequest]:
    for frame in frames:
        yield frame


async def test_a_second_open_is_refused(stub: ProcessesAsyncStub, process: FakeProcess) -> None:
    call = await opened(stub)
    await send(call, open=pb.OpenStreams(process=WEB))
    assert (await refused(rest(call))).reason == "BAD_FIELD"


async def test_a_frame_of_a_newer_protocol_is_no_error(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    call = await opened(stub)
    await send(call)
    await send(call, input=pb.InputFrame(offset=0, data=b"x"))
    assert (await received(call)).input_ack.offset == 1
    call.cancel()


async def test_an_input_frame_has_at_most_1_mib(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    call = await opened(stub)
    await send(call, input=pb.InputFrame(offset=0, data=b"x" * (1 << 20)))
    assert (await received(call)).input_ack.offset == 1 << 20
    await send(call, input=pb.InputFrame(offset=1 << 20, data=b"x" * ((1 << 20) + 1)))
    answer = await refused(rest(call))
    assert (answer.reason, answer.fields["field"]) == ("BAD_FIELD", "input.data")


@pytest.mark.parametrize(
    ("container_id", "reason"), [("nobody", "UNKNOWN_PROCESS"), ("../x", "BAD_ID")]
)
async def test_unknown_and_bad_ids(
    stub: ProcessesAsyncStub, container_id: str, reason: str
) -> None:
    ref = types_pb2.ProcessRef(container_id=container_id)
    frame = pb.AttachRequest(open=pb.OpenStreams(process=ref))
    assert (await refused(rest(stub.Attach(_frames(frame))))).reason == reason


async def test_a_host_that_does_not_read_holds_the_reader_back(
    agent: RunningAgent, stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    """Back-pressure: HTTP/2's window, not the agent's memory, is what fills."""
    # 40 MiB are far above any HTTP/2 window.
    process.stdout += bytes(40 << 20)
    taken = 0
    original = agent.processes.output

    async def counting(
        ref: ProcessRef, offsets: dict[Stream, int], **how: Any
    ) -> AsyncGenerator[object, None]:
        nonlocal taken
        async for chunk in original(ref, offsets, **how):
            taken += len(chunk.data)
            yield chunk

    agent.processes.output = counting  # type: ignore[assignment, method-assign]
    call = await opened(stub)
    # Another call's answers prove that the loop had its turns in between.
    for _ in range(200):
        await refused(stub.Wait(pb.WaitRequest()))
    assert taken < 30 << 20
    await process.finish(ProcessExit(code=0))
    assert len(joined(await rest(call), STDOUT)) == 40 << 20


async def test_a_cancelled_call_leaves_no_reader(
    agent: RunningAgent, stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    calls = [await opened(stub) for _ in range(10)]
    for call in calls:
        call.cancel()
    await agent.calls_over()
    assert agent.processes.readers == 0


async def test_two_hosts_read_the_same_bytes(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    first, second = await opened(stub), await opened(stub)
    await process.write(Stream.STDOUT, b"for both")
    await process.finish(ProcessExit(code=0))
    assert joined(await rest(first), STDOUT) == joined(await rest(second), STDOUT) == b"for both"


async def test_a_failure_of_the_output_ends_the_call_with_its_reason(
    agent: RunningAgent, stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    async def failing(
        _: object, offsets: dict[Stream, int], **__: Any
    ) -> AsyncGenerator[object, None]:
        for _one in offsets:
            raise wrong_state("the spool is gone")
        yield None

    agent.processes.output = failing  # type: ignore[assignment, method-assign]
    call = await opened(stub)
    assert (await refused(rest(call))).reason == "WRONG_STATE"


async def test_acknowledged_output_may_be_forgotten(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    await process.write(Stream.STDOUT, b"12345")
    call = await opened(stub)
    await send(call, ack=pb.OutputAck(stream=STDOUT, offset=5))
    await send(call, input=pb.InputFrame(offset=0, data=b"x"))
    while not (await received(call)).HasField("input_ack"):
        pass
    assert process.acknowledged == {Stream.STDOUT: 5}
    assert process.acknowledging == {""}
    await send(call, ack=pb.OutputAck(stream=types_pb2.STREAM_KIND_STDIN, offset=1))
    answer = await refused(rest(call))
    assert (answer.reason, answer.fields["field"]) == ("BAD_FIELD", "ack.stream")


async def test_input_that_waits_holds_up_nothing_behind_it(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    """A process that writes before it reads on may be waiting for just that acknowledgement."""
    await process.write(Stream.STDOUT, b"12345")
    process.reads.clear()
    call = await opened(stub)
    await send(call, input=pb.InputFrame(offset=0, data=b"in"))
    await send(call, input=pb.InputFrame(offset=2, data=b"put"))
    await send(call, close_input=pb.CloseInput(offset=5))
    await send(call, ack=pb.OutputAck(stream=STDOUT, offset=5))
    await until(lambda: process.acknowledged)
    assert (bytes(process.received), process.input_end) == (b"", None)
    process.reads.set()
    acks: list[int] = []
    while len(acks) < 3:
        if (frame := await received(call)).HasField("input_ack"):
            acks.append(frame.input_ack.offset)
    assert acks == [2, 5, 5]
    assert (bytes(process.received), process.input_end) == (b"input", 5)
    call.cancel()


async def test_a_reader_has_the_name_it_gives_itself(
    stub: ProcessesAsyncStub, process: FakeProcess
) -> None:
    call = stub.Attach()
    await send(call, open=pb.OpenStreams(process=WEB, reader="shim-1", may_miss=True))
    await received(call)
    await send(call, ack=pb.OutputAck(stream=STDOUT, offset=0))
    await send(call, input=pb.InputFrame(offset=0, data=b"x"))
    assert (await received(call)).HasField("input_ack")
    assert process.asked == [(Until.EXIT, True, "shim-1")]
    assert process.acknowledging == {"shim-1"}
    call.cancel()


async def test_a_readers_name_is_an_id(stub: ProcessesAsyncStub, process: FakeProcess) -> None:
    call = stub.Attach()
    await send(call, open=pb.OpenStreams(process=WEB, reader="one\ntwo"))
    answer = await refused(rest(call))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_ID")
    assert answer.fields["kind"] == "reader"
    assert process.asked == []
