"""Streams of a process over connections that are lost at any point."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from pathlib import Path

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from innkeeper.shim.streams import (
    INPUT_WINDOW,
    UNTIL_END,
    UNTIL_EXIT,
    ProcessStreams,
    StreamEnds,
    StreamsError,
)
from innkeeper.v1 import types_pb2
from tests.fakes.processes_service import FakeProcess, FakeProcesses, serving

pytestmark = [pytest.mark.contract, pytest.mark.containers]

STEP = 64 << 10
PROCESS = types_pb2.ProcessRef(container_id="c1")


class BytesSource:
    """Gives out `data` in pieces of at most `piece` bytes, then its end."""

    def __init__(self, data: bytes, piece: int = 1 << 16) -> None:
        self.data = data
        self.given = 0
        self._piece = piece

    async def read(self, limit: int) -> bytes:
        piece = self.data[self.given : self.given + min(limit, self._piece)]
        self.given += len(piece)
        return piece


class EndlessSource(BytesSource):
    """Like the keyboard of somebody who types no more: no end comes."""

    async def read(self, limit: int) -> bytes:
        return await super().read(limit) or await asyncio.Event().wait()  # type: ignore[return-value]


class BytesSink:
    def __init__(self) -> None:
        self.data = b""

    async def write(self, data: bytes) -> None:
        self.data += data


class BrokenSink:
    async def write(self, data: bytes) -> None:
        raise BrokenPipeError(32, "write", "stdout")


def ends(source: BytesSource | None = None) -> tuple[StreamEnds, BytesSink, BytesSink]:
    stdout, stderr = BytesSink(), BytesSink()
    return StreamEnds(stdout=stdout, stderr=stderr, source=source), stdout, stderr


def noise(length: int, seed: bytes = b"noise") -> bytes:
    return hashlib.shake_128(seed).digest(length)


async def test_output_of_both_streams_and_the_exit_code_come_through(tmp_path: Path) -> None:
    process = FakeProcess(stdout=noise(200_000), stderr=b"oops\n", exit_code=42)
    service = FakeProcesses(process, [])
    stream_ends, stdout, stderr = ends()
    async with serving(service, tmp_path) as channel:
        status = await ProcessStreams(channel, PROCESS, stream_ends).run()
    assert (status.code, stdout.data, stderr.data) == (42, noise(200_000), b"oops\n")


async def test_four_mebibytes_through_cat_come_back_whole(tmp_path: Path) -> None:
    """A program that reads all of a big input and writes it back must not stall."""
    data = noise(4 << 20)
    process = FakeProcess(echo=True)
    stream_ends, stdout, _ = ends(BytesSource(data))
    async with serving(FakeProcesses(process, []), tmp_path) as channel:
        await ProcessStreams(channel, PROCESS, stream_ends).run()
    assert process.received == data
    assert stdout.data == data


async def test_without_a_source_the_input_ends_at_once(tmp_path: Path) -> None:
    process = FakeProcess(echo=True)
    stream_ends, stdout, _ = ends()
    async with serving(FakeProcesses(process, []), tmp_path) as channel:
        await ProcessStreams(channel, PROCESS, stream_ends).run()
    assert process.input_closed
    assert stdout.data == b""


async def test_a_process_that_ends_does_not_wait_for_the_keyboard(tmp_path: Path) -> None:
    process = FakeProcess(stdout=b"done\n")
    stream_ends, stdout, _ = ends(EndlessSource(b"typed\n"))
    async with serving(FakeProcesses(process, []), tmp_path) as channel:
        await ProcessStreams(channel, PROCESS, stream_ends).run()
    assert stdout.data == b"done\n"


async def test_input_that_nobody_acknowledges_is_read_up_to_the_window(tmp_path: Path) -> None:
    """Back-pressure: the host holds at most one window of input."""
    process = FakeProcess(echo=True, acknowledges=False)
    source = BytesSource(noise(3 << 20))
    stream_ends, _, _ = ends(source)
    async with serving(FakeProcesses(process, []), tmp_path) as channel:
        running = asyncio.create_task(ProcessStreams(channel, PROCESS, stream_ends).run())
        while await process.arrivals.get() < INPUT_WINDOW:
            pass
        assert source.given == INPUT_WINDOW
        running.cancel()
        await asyncio.wait({running})
    assert len(process.received) == INPUT_WINDOW


@pytest.mark.parametrize("ending", ["abort", "crash", "end", "no exit"])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_a_call_that_ends_early_is_taken_up_again(
    tmp_path: Path, ending: str, after: int
) -> None:
    process = FakeProcess(stdout=noise(100_000), stderr=noise(70_000, b"err"), exit_code=7)
    service = FakeProcesses(process, [(after if ending != "no exit" else -1, ending)])
    stream_ends, stdout, stderr = ends()
    async with serving(service, tmp_path) as channel:
        status = await ProcessStreams(channel, PROCESS, stream_ends).run()
    assert status.code == 7
    assert (stdout.data, stderr.data) == (process.stdout, process.stderr)


async def test_the_exit_is_asked_for_when_the_streams_ended_without_it(tmp_path: Path) -> None:
    service = FakeProcesses(FakeProcess(stdout=b"x", exit_code=9), [(-1, "no exit")])
    stream_ends, _, _ = ends()
    async with serving(service, tmp_path) as channel:
        status = await ProcessStreams(channel, PROCESS, stream_ends).run()
    assert (status.code, service.waits, len(service.opens)) == (9, 1, 1)


async def test_a_second_call_opens_at_the_offsets_that_the_first_had(tmp_path: Path) -> None:
    process = FakeProcess(stdout=noise(100_000))
    service = FakeProcesses(process, [(3, "abort")])
    stream_ends, _, _ = ends()
    async with serving(service, tmp_path) as channel:
        await ProcessStreams(channel, PROCESS, stream_ends).run()
    assert [opened.stdout_offset for opened in service.opens] == [0, 2 << 15]


async def test_a_connection_that_does_not_come_back_is_given_up_with_the_reason(
    tmp_path: Path,
) -> None:
    service = FakeProcesses(FakeProcess(stdout=b"x"), [(0, "abort")] * 1000)
    stream_ends, _, _ = ends()
    async with serving(service, tmp_path) as channel:
        with pytest.raises(StreamsError, match=r"within 0\.2 s: the agent is away"):
            await ProcessStreams(channel, PROCESS, stream_ends, patience=0.2).run()


async def test_an_answer_of_the_guest_is_not_taken_for_a_lost_connection(tmp_path: Path) -> None:
    class Unknown(FakeProcesses):
        async def Attach(self, requests, context):  # type: ignore[no-untyped-def]  # noqa: N802
            await context.abort(grpc.StatusCode.NOT_FOUND, "no container c1")
            yield

    stream_ends, _, _ = ends()
    async with serving(Unknown(FakeProcess(), []), tmp_path) as channel:
        with pytest.raises(grpc.RpcError, match="no container c1"):
            await ProcessStreams(channel, PROCESS, stream_ends).run()


async def test_output_that_nobody_reads_any_more_ends_the_run(tmp_path: Path) -> None:
    stream_ends = StreamEnds(stdout=BrokenSink(), stderr=BytesSink())
    async with serving(FakeProcesses(FakeProcess(stdout=b"x"), []), tmp_path) as channel:
        with pytest.raises(BrokenPipeError):
            await ProcessStreams(channel, PROCESS, stream_ends).run()


async def test_the_terminal_size_is_sent_again_after_a_lost_connection(tmp_path: Path) -> None:
    process = FakeProcess(echo=True, terminal=True)

    class Typist(BytesSource):
        """Ends the input when both connections have carried the size."""

        async def read(self, limit: int) -> bytes:
            if typed := await super().read(limit):
                return typed
            assert [await process.sizes.get(), await process.sizes.get()] == [(24, 80)] * 2
            return b""

    service = FakeProcesses(process, [(2, "abort")])
    stream_ends, _, _ = ends(Typist(b"ls\n"))
    async with serving(service, tmp_path) as channel:
        streams = ProcessStreams(channel, PROCESS, stream_ends)
        streams.resize(24, 80)
        await streams.run()
    assert len(service.opens) == 2


async def test_output_that_was_passed_on_is_acknowledged(tmp_path: Path) -> None:
    process = FakeProcess(echo=True)

    class Waiter(BytesSource):
        """Ends the input when all the output so far was acknowledged but for less than a
        step, which is below every stream's window."""

        async def read(self, limit: int) -> bytes:
            if typed := await super().read(limit):
                return typed
            offset = 0
            while offset < 200_000 - STEP:
                _, offset = await process.acknowledged.get()
            return b""

    stream_ends, _, _ = ends(Waiter(noise(200_000)))
    async with serving(FakeProcesses(process, []), tmp_path) as channel:
        await ProcessStreams(channel, PROCESS, stream_ends).run()


@pytest.mark.parametrize("endings", [[], [(3, "abort"), (5, "end"), (6, "crash"), (1, "abort")]])
async def test_a_child_left_behind_is_waited_for_only_when_that_is_asked(
    tmp_path: Path, endings: list[tuple[int, str]]
) -> None:
    """`nohup something & echo done`: the streams go on after the exit."""
    for until, output in ((UNTIL_EXIT, noise(100_000)), (UNTIL_END, noise(300_000))):
        process = FakeProcess(stdout=noise(100_000), later=noise(300_000)[100_000:], exit_code=3)
        stream_ends, stdout, _ = ends()
        async with serving(FakeProcesses(process, list(endings)), tmp_path) as channel:
            status = await ProcessStreams(channel, PROCESS, stream_ends, until=until).run()
        assert (status.code, status.stdout_bytes) == (3, 100_000)
        assert stdout.data == output


async def test_dropped_output_is_an_error_unless_it_may_be(tmp_path: Path) -> None:
    process = FakeProcess(stdout=noise(100_000), dropped=60_000)
    stream_ends, stdout, _ = ends()
    async with serving(FakeProcesses(process, []), tmp_path) as channel:
        with pytest.raises(StreamsError, match="bytes 0 to 60000 of the process's stdout"):
            await ProcessStreams(channel, PROCESS, stream_ends).run()
        assert stdout.data == b""
        service = FakeProcesses(process, [])
    async with serving(service, tmp_path) as channel:
        await ProcessStreams(channel, PROCESS, stream_ends, may_miss=True).run()
    assert stdout.data == process.stdout[60_000:]
    assert service.opens[0].may_miss


async def test_an_exit_before_all_the_output_is_an_error(tmp_path: Path) -> None:
    """It says how much there is, so that a guest that loses bytes does not go unseen."""

    class Short(FakeProcess):
        def marks(self) -> dict[types_pb2.StreamKind.ValueType, int]:
            return {stream: size + 1 for stream, size in super().marks().items()}

    stream_ends, _, _ = ends()
    async with serving(FakeProcesses(Short(stdout=b"abc"), []), tmp_path) as channel:
        with pytest.raises(StreamsError, match="bytes 3 to 4 of the process's stdout"):
            await ProcessStreams(channel, PROCESS, stream_ends).run()


CUTS = st.lists(st.integers(min_value=60, max_value=400_000), max_size=5)
ENDINGS = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(["abort", "crash", "end"])), max_size=4
)


@settings(max_examples=25, deadline=None)
@given(size=st.integers(0, 300_000), piece=st.integers(1000, 1 << 16), cuts=CUTS, endings=ENDINGS)
def test_no_byte_is_lost_or_repeated_whatever_breaks(
    size: int, piece: int, cuts: list[int], endings: list[tuple[int, str]]
) -> None:
    """`cat` over a wire that is cut anywhere gives back exactly its input."""
    data = noise(size)

    async def scenario(folder: Path) -> None:
        process = FakeProcess(echo=True, stderr=noise(50_000, b"err"), exit_code=3)
        stream_ends, stdout, stderr = ends(BytesSource(data, piece))
        async with serving(FakeProcesses(process, endings), folder, cuts) as channel:
            status = await ProcessStreams(channel, PROCESS, stream_ends).run()
        assert process.received == data
        assert stdout.data == data
        assert stderr.data == process.stderr
        assert status.code == 3

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))
