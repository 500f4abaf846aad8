"""Streams of a process: offsets, back-pressure, ends, and an agent that dies in between.

The test plays the process, at the other ends of the pipes.
"""

from __future__ import annotations

import asyncio
import os
import tty

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.model import OutputChunk, Stream
from agent.handlers.runtime.streams.streams import StreamHome, Streams
from agent.linux import splicing
from tests.fakes.pid1 import FakePid1
from tests.fakes.stream_ends import OPTIONS, REF, WINDOW, Agent, Child, Terminal, read, text
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.containers]


async def test_output_comes_with_offsets_and_each_stream_ends(agent: Agent, child: Child) -> None:
    os.write(child.stdout, b"hello\n")
    os.write(child.stderr, b"oh\n")
    child.close(child.stdout, child.stderr)
    chunks = await read(agent.streams, stdout=0, stderr=0)
    assert (text(chunks), text(chunks, Stream.STDERR)) == (b"hello\n", b"oh\n")
    ends = {chunk.stream: chunk.offset + len(chunk.data) for chunk in chunks if chunk.end}
    assert ends == {Stream.STDOUT: 6, Stream.STDERR: 3}


async def test_reading_again_from_an_offset_repeats_and_misses_nothing(
    agent: Agent, child: Child
) -> None:
    os.write(child.stdout, b"0123456789")
    child.close(child.stdout)
    assert text(await read(agent.streams, stdout=0)) == b"0123456789"
    (chunk,) = await read(agent.streams, stdout=4)
    assert (chunk.offset, chunk.data, chunk.end) == (4, b"456789", True)


async def test_readers_at_once_get_the_same(agent: Agent, child: Child) -> None:
    both = asyncio.gather(read(agent.streams, stdout=0), read(agent.streams, stdout=0))
    for number in range(50):
        os.write(child.stdout, b"%d," % number)
        await asyncio.sleep(0)
    child.close(child.stdout)
    first, second = await both
    assert text(first) == text(second) == b"".join(b"%d," % number for number in range(50))


async def test_all_of_a_big_output_arrives_with_its_end(agent: Agent, child: Child) -> None:
    """The tail of the output was lost elsewhere when the process ended before it was read."""
    reading = asyncio.create_task(read(agent.streams, stdout=0))
    left = 3_000_000
    while left:
        left -= child.write_all(left)
        await asyncio.sleep(0)
    await until(lambda: child.write_all(4) == 4)
    child.close(child.stdout)
    await agent.streams.ended()
    assert len(text(await reading)) == 3_000_004


async def test_without_a_reader_the_window_is_kept_and_the_process_waits(
    agent: Agent, child: Child
) -> None:
    written = 0
    pipe = 65536
    for _ in range(200):
        written += child.write_all(4096)
        await asyncio.sleep(0)
    assert WINDOW <= written <= WINDOW + pipe
    child.close(child.stdout)
    assert len(text(await read(agent.streams, stdout=0))) == written


async def test_what_was_read_long_ago_is_not_kept(agent: Agent, child: Child) -> None:
    reading = asyncio.create_task(read(agent.streams, stdout=0))
    left = 10 * WINDOW
    while left:
        left -= child.write_all(min(left, 4096))
        await asyncio.sleep(0)
    child.close(child.stdout)
    assert len(text(await reading)) == 10 * WINDOW
    with pytest.raises(AgentError) as caught:
        await read(agent.streams, stdout=0)
    assert (caught.value.code, caught.value.reason) == (Code.OUT_OF_RANGE, Reason.OFFSET_NOT_KEPT)
    oldest = int(caught.value.fields["oldest"])
    assert 8 * WINDOW <= oldest <= 9 * WINDOW
    assert len(text(await read(agent.streams, stdout=oldest))) == 10 * WINDOW - oldest


async def test_what_is_not_acknowledged_stays_and_stops_the_process(
    agent: Agent, child: Child
) -> None:
    reading = asyncio.create_task(read(agent.streams, stdout=0, reader="one"))
    await asyncio.sleep(0)
    agent.streams.acknowledge(Stream.STDOUT, 0, "one")
    written = 0
    for _ in range(400):
        written += child.write_all(4096)
        await asyncio.sleep(0)
    assert 2 * WINDOW <= written <= 2 * WINDOW + 65536
    agent.streams.acknowledge(Stream.STDOUT, 2 * WINDOW, "one")
    await until(lambda: child.write_all(1))
    child.close(child.stdout)
    await reading


async def test_an_offset_that_was_not_reached_is_refused(agent: Agent, child: Child) -> None:
    with pytest.raises(AgentError, match="beyond its 0 bytes") as caught:
        await read(agent.streams, stdout=1)
    assert caught.value.code is Code.OUT_OF_RANGE


async def test_at_the_end_nothing_is_left_in_the_store(
    agent: Agent, child: Child, pid1: FakePid1
) -> None:
    assert sorted(pid1.store) == [
        "streams/c1/-/stderr",
        "streams/c1/-/stdin",
        "streams/c1/-/stdin.spool",
        "streams/c1/-/stdout",
    ]
    child.close()
    await agent.streams.ended()
    await until(lambda: not pid1.store)


async def test_an_agent_that_dies_misses_and_repeats_nothing(
    agent: Agent, child: Child, home: StreamHome
) -> None:
    os.write(child.stdout, b"before ")
    assert await agent.streams.write_input(0, b"in1 ") == 4
    await agent.streams.let_go()
    os.write(child.stdout, b"meanwhile ")
    heir = Streams(home, REF, terminal=False, options=OPTIONS)
    await heir.adopt(input_end=None)
    assert heir.input_offset == 4
    assert await heir.write_input(2, b"1 in2") == 7
    os.write(child.stdout, b"after")
    child.close(child.stdout)
    assert text(await read(heir, stdout=0)) == b"before meanwhile after"
    assert child.read() == b"in1 in2"
    heir.close_input(7)
    await until(lambda: child.read() == b"")
    await heir.let_go()


async def test_input_is_acknowledged_repeated_and_refused_with_a_gap(
    agent: Agent, child: Child
) -> None:
    assert await agent.streams.write_input(0, b"abc") == 3
    assert await agent.streams.write_input(0, b"abc") == 3
    assert await agent.streams.write_input(1, b"bcd") == 4
    with pytest.raises(AgentError) as caught:
        await agent.streams.write_input(6, b"x")
    assert caught.value.code is Code.OUT_OF_RANGE
    assert caught.value.fields["expected"] == "4"
    assert child.read() == b"abcd"


async def test_the_end_of_input_comes_after_the_input_and_twice_is_fine(
    agent: Agent, child: Child, pid1: FakePid1
) -> None:
    """`cat` waited for ever where PID 1's duplicate of the pipe was still open."""
    data = os.urandom(3 * WINDOW)
    writing = asyncio.create_task(agent.streams.write_input(0, data))
    got = b""
    while not writing.done():
        got += child.read() or b""
        await asyncio.sleep(0)
    agent.streams.close_input(len(data))
    agent.streams.close_input(len(data))
    async with asyncio.timeout(10):
        while (part := child.read()) != b"":
            got += part or b""
            await asyncio.sleep(0)
    assert got == data
    assert "streams/c1/-/stdin" not in pid1.store


async def test_an_end_that_was_told_before_the_agent_died(
    agent: Agent, child: Child, home: StreamHome
) -> None:
    """The rest of the input must still be fed, and then the end must come."""
    data = os.urandom(WINDOW)
    await agent.streams.write_input(0, data)
    await agent.streams.let_go()
    heir = Streams(home, REF, terminal=False, options=OPTIONS)
    await heir.adopt(input_end=len(data))
    got = b""
    async with asyncio.timeout(10):
        while (part := child.read()) != b"":
            got += part or b""
            await asyncio.sleep(0)
    assert got == data
    with pytest.raises(AgentError, match="closed"):
        await heir.write_input(len(data), b"more")
    await heir.let_go()


async def test_an_end_before_the_input_is_whole_is_refused(agent: Agent, child: Child) -> None:
    await agent.streams.write_input(0, b"abc")
    for wrong in (2, 4):
        with pytest.raises(AgentError, match="can't end there"):
            agent.streams.close_input(wrong)
    assert await agent.streams.write_input(3, b"d") == 4


async def test_back_pressure_is_not_acknowledging(agent: Agent, child: Child) -> None:
    writing = asyncio.create_task(agent.streams.write_input(0, bytes(4 * WINDOW)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not writing.done()
    got = 0
    async with asyncio.timeout(10):
        while got < 4 * WINDOW:
            got += len(child.read() or b"")
            await asyncio.sleep(0)
    assert await writing == 4 * WINDOW


async def test_input_for_a_process_that_closed_it(agent: Agent, child: Child) -> None:
    """EPIPE, and no SIGPIPE that would end the agent."""
    child.close(child.stdin)
    await agent.streams.write_input(0, b"x")
    with pytest.raises(AgentError) as caught:
        await agent.streams.write_input(1, b"y")
    assert caught.value.reason is Reason.INPUT_CLOSED


async def test_a_writer_that_waits_is_told_when_the_process_ends(
    agent: Agent, child: Child
) -> None:
    writing = asyncio.create_task(agent.streams.write_input(0, bytes(4 * WINDOW)))
    await asyncio.sleep(0)
    await agent.streams.ended()
    with pytest.raises(AgentError) as caught:
        await writing
    assert caught.value.reason is Reason.INPUT_CLOSED


async def test_discarding_leaves_no_files_and_no_names(
    agent: Agent, child: Child, home: StreamHome, pid1: FakePid1
) -> None:
    os.write(child.stdout, b"unread")
    await agent.streams.write_input(0, b"unread")
    await agent.streams.discard()
    assert (pid1.store, list(home.spools.iterdir())) == ({}, [])


async def test_a_reader_at_work_reads_on_when_the_streams_are_discarded(
    agent: Agent, child: Child
) -> None:
    os.write(child.stdout, b"first ")
    chunks = agent.streams.output({Stream.STDOUT: 0})
    first = await anext(chunks)
    os.write(child.stdout, b"second")
    await agent.streams.ended()
    await agent.streams.settle(10)
    await agent.streams.discard()
    rest = [chunk async for chunk in chunks]
    assert text([first, *rest]) == b"first second"
    assert isinstance(rest[-1], OutputChunk)
    assert rest[-1].end


async def test_a_full_tmpfs_stops_a_stream_until_space_is_given_back(
    agent: Agent, child: Child, home: StreamHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = splicing.splice_to_file

    def full(pipe: int, file: int, offset: int, count: int) -> int:
        raise OSError(28, "splice: No space left on device")

    monkeypatch.setattr(splicing, "splice_to_file", full)
    os.write(child.stdout, b"kept in the pipe")
    child.close(child.stdout)
    reading = asyncio.create_task(read(agent.streams, stdout=0))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not reading.done()
    monkeypatch.setattr(splicing, "splice_to_file", real)
    home.space.freed()
    assert text(await reading) == b"kept in the pipe"


async def test_a_terminal_has_output_and_no_errors(on_terminal: tuple[Streams, Terminal]) -> None:
    streams, terminal = on_terminal
    os.write(terminal.slave, b"hello\n")
    os.close(terminal.slave)
    chunks = await read(streams, stdout=0, stderr=0)
    assert text(chunks) == b"hello\r\n"
    assert [chunk.end for chunk in chunks if chunk.stream is Stream.STDERR] == [True]


async def test_a_terminal_gets_input_and_end_of_file(
    on_terminal: tuple[Streams, Terminal],
) -> None:
    streams, terminal = on_terminal
    await streams.write_input(0, b"123\n")
    await until(lambda: terminal.read() == b"123\n")
    streams.close_input(4)
    streams.close_input(4)
    await until(lambda: terminal.read() == b"")
    assert streams.input_offset == 4
    os.write(terminal.slave, b"still heard")
    await until(lambda: streams._outputs[Stream.STDOUT].spool.size > len(b"123\r\n"))


async def test_an_agent_that_dies_gives_its_terminal_on(
    on_terminal: tuple[Streams, Terminal], home: StreamHome
) -> None:
    streams, terminal = on_terminal
    tty.setraw(terminal.slave)
    os.write(terminal.slave, b"one ")
    await streams.write_input(0, b"in1 ")
    await until(lambda: streams._outputs[Stream.STDOUT].spool.size == 4)
    await streams.let_go()
    os.write(terminal.slave, b"two ")
    heir = Streams(home, REF, terminal=True, options=OPTIONS)
    got = bytearray()
    await heir.adopt(input_end=None)
    heir.resize(10, 20)
    assert os.get_terminal_size(terminal.slave) == (20, 10)
    assert await heir.write_input(4, b"in2") == 7
    os.write(terminal.slave, b"three")

    def got_all() -> bool:
        got.extend(terminal.read() or b"")
        return got == b"in1 in2"

    await until(got_all)
    await heir.ended()
    assert text(await read(heir, stdout=0)) == b"one two three"
    await heir.let_go()
    with pytest.raises(AgentError, match="ended"):
        heir.resize(1, 1)
