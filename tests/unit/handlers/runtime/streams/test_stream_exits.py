"""Where a process's end is in its streams, and what goes on after it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.life import StreamOptions, Until, WhenFull
from agent.core.model import OutputChunk, Stream
from agent.handlers.runtime.streams import outputs
from agent.handlers.runtime.streams.streams import StreamHome, Streams
from agent.linux import splicing
from tests.fakes.stream_ends import (
    OPTIONS,
    PIPE,
    REF,
    WINDOW,
    Agent,
    Child,
    Terminal,
    pieces,
    read,
    text,
)
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.containers]


async def filled(child: Child) -> int:
    """Writes until nothing goes any more; how much went."""
    written, refused = 0, 0
    while refused < 100:
        count = child.write_all(4096)
        written, refused = written + count, 0 if count else refused + 1
        await asyncio.sleep(0)
    return written


async def test_a_child_that_keeps_the_pipe_does_not_hold_the_exit(
    agent: Agent, child: Child
) -> None:
    """`nohup tail -f /dev/null & echo done`: the pipe's end comes much later, or never."""
    os.write(child.stdout, b"done\n")
    assert await agent.streams.ended() == (5, 0)
    chunks = await read(agent.streams, stdout=0, stderr=0)
    assert text(chunks) == b"done\n"
    assert not any(chunk.end for chunk in chunks), "the streams have not ended"


async def test_what_such_a_child_writes_later_comes_to_whom_reads_on(
    agent: Agent, child: Child
) -> None:
    os.write(child.stdout, b"done\n")
    reading = asyncio.create_task(read(agent.streams, until=Until.END))
    await agent.streams.ended()
    os.write(child.stdout, b"later\n")
    child.close(child.stdout)
    chunks = await reading
    assert text(chunks) == b"done\nlater\n"
    assert [chunk.end for chunk in chunks][-1:] == [True]
    # Who wants what was there at the exit gets no more than that.
    until_exit = await read(agent.streams)
    assert text(until_exit) == b"done\n"
    assert not until_exit[-1].end
    assert await read(agent.streams, stdout=8) == []


async def test_a_stream_that_is_over_with_its_process_says_so(agent: Agent, child: Child) -> None:
    os.write(child.stdout, b"out")
    os.write(child.stderr, b"errors")
    child.close()
    assert await agent.streams.ended() == (3, 6)
    chunks = await read(agent.streams, stdout=0, stderr=0)
    assert {chunk.stream for chunk in chunks if chunk.end} == {Stream.STDOUT, Stream.STDERR}


async def test_all_that_was_written_is_taken_at_the_exit_with_nobody_reading(
    agent: Agent, child: Child
) -> None:
    """The window is full and so is the pipe: the end of the output must not wait there for a
    reader, whom the exit tells how much there is."""
    written = await filled(child)
    assert WINDOW + PIPE - 4096 <= written <= WINDOW + PIPE
    assert await agent.streams.ended() == (written, 0)
    assert agent.streams._outputs[Stream.STDOUT].spool.size == written
    # The child in the background has the window for itself again, and no more.
    assert await filled(child) <= PIPE
    assert len(text(await read(agent.streams))) == written


async def test_a_child_that_writes_without_pause_does_not_hold_the_exit(
    agent: Agent, child: Child
) -> None:
    stopped = asyncio.Event()

    async def chatter() -> None:
        while not stopped.is_set():
            child.write_all(4096)
            await asyncio.sleep(0)

    talking = asyncio.create_task(chatter())
    async with asyncio.timeout(30):
        mark, _ = await agent.streams.ended()
        assert len(text(await read(agent.streams))) == mark
    stopped.set()
    await talking


async def test_ended_twice_is_the_same(agent: Agent, child: Child) -> None:
    os.write(child.stdout, b"done\n")
    assert await agent.streams.ended() == (5, 0)
    os.write(child.stdout, b"later\n")
    assert await agent.streams.ended() == (5, 0)


async def test_bytes_that_somebody_else_took_from_the_pipe_are_not_waited_for(
    agent: Agent, child: Child
) -> None:
    """A container can open its own output for reading, by /proc/self/fd."""
    taking = os.open(f"/proc/self/fd/{child.stdout}", os.O_RDONLY | os.O_NONBLOCK)
    written = await filled(child)
    pump = agent.streams._outputs[Stream.STDOUT]
    pump.process_ended()
    assert pump.mark == written
    assert len(os.read(taking, PIPE)) > 0
    os.close(taking)
    async with asyncio.timeout(10):
        mark, _ = await agent.streams.ended()
        assert mark < written
        assert len(text(await read(agent.streams))) == mark


async def test_a_tmpfs_that_stays_full_does_not_hold_the_exit(
    agent: Agent, child: Child, home: StreamHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offset is exact all the same, and the bytes come when there is space."""
    real = splicing.splice_to_file

    def full(pipe: int, file: int, offset: int, count: int) -> int:
        raise OSError(errno.ENOSPC, "splice: No space left on device")

    monkeypatch.setattr(splicing, "splice_to_file", full)
    monkeypatch.setattr(outputs, "FULL_PATIENCE", 0.01)
    os.write(child.stdout, b"kept in the pipe")
    assert await agent.streams.ended() == (16, 0)
    reading = asyncio.create_task(read(agent.streams))
    await asyncio.sleep(0)
    assert not reading.done()
    monkeypatch.setattr(splicing, "splice_to_file", real)
    home.space.freed()
    assert text(await reading) == b"kept in the pipe"


async def test_space_that_comes_in_time_completes_the_exit(
    agent: Agent, child: Child, home: StreamHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = splicing.splice_to_file
    refused = asyncio.Event()

    def full(pipe: int, file: int, offset: int, count: int) -> int:
        refused.set()
        raise OSError(errno.ENOSPC, "splice: No space left on device")

    monkeypatch.setattr(splicing, "splice_to_file", full)
    monkeypatch.setattr(outputs, "FULL_PATIENCE", 30)
    os.write(child.stdout, b"kept in the pipe")
    ending = asyncio.create_task(agent.streams.ended())
    await refused.wait()
    monkeypatch.setattr(splicing, "splice_to_file", real)
    home.space.freed()
    assert await ending == (16, 0)
    assert agent.streams._outputs[Stream.STDOUT].spool.size == 16


async def test_an_heir_knows_the_exit_that_was_marked(
    agent: Agent, child: Child, home: StreamHome
) -> None:
    os.write(child.stdout, b"done\n")
    marks = await agent.streams.ended()
    await agent.streams.let_go()
    os.write(child.stdout, b"later\n")
    heir = Streams(home, REF, terminal=False, options=OPTIONS)
    await heir.adopt(input_end=None, marks=marks)
    assert text(await read(heir)) == b"done\n"
    reading = asyncio.create_task(read(heir, until=Until.END))
    child.close(child.stdout)
    assert text(await reading) == b"done\nlater\n"
    await heir.let_go()


async def test_an_heir_finds_the_exit_that_nobody_saw(
    agent: Agent, child: Child, home: StreamHome
) -> None:
    os.write(child.stdout, b"before ")
    await agent.streams.let_go()
    os.write(child.stdout, b"last words")
    child.close()
    heir = Streams(home, REF, terminal=False, options=OPTIONS)
    await heir.adopt(input_end=None)
    assert await heir.ended() == (17, 0)
    assert text(await read(heir)) == b"before last words"
    await heir.let_go()


async def test_the_tail_ends_with_the_process(agent: Agent, child: Child) -> None:
    os.write(child.stderr, b"0123456789")
    await until(lambda: agent.streams.tail(Stream.STDERR, 100) == b"0123456789")
    await agent.streams.ended()
    os.write(child.stderr, b"of a child")
    await until(lambda: agent.streams._outputs[Stream.STDERR].spool.size == 20)
    assert agent.streams.tail(Stream.STDERR, 4) == b"6789"
    assert agent.streams.tail(Stream.STDERR, 0) == b""
    assert agent.streams.tail(Stream.STDOUT, 100) == b""
    child.close(child.stderr)
    await until(lambda: agent.streams._outputs[Stream.STDERR].ended)
    assert agent.streams.tail(Stream.STDERR, 100) == b"0123456789"
    await agent.streams.discard()
    assert agent.streams.tail(Stream.STDERR, 100) == b""


async def test_a_reader_of_a_process_that_drops_gets_a_gap_up_to_the_exit(home: StreamHome) -> None:
    """What a child in the background wrote pushed all of the process's own out."""
    agent = Agent(home, StreamOptions(window=WINDOW, when_full=WhenFull.DROP))
    child = await agent.start()
    os.write(child.stdout, b"done\n")
    await agent.streams.ended()
    left = 10 * WINDOW
    while left:
        left -= child.write_all(min(left, 4096))
        await asyncio.sleep(0)
    (gap,) = await pieces(agent.streams)
    assert not isinstance(gap, OutputChunk)
    assert (gap.start, gap.end) == (0, 5)
    child.close()
    await agent.streams.discard()


async def test_discarding_ends_what_a_child_kept_open(agent: Agent, child: Child) -> None:
    os.write(child.stdout, b"done\n")
    reading = asyncio.create_task(read(agent.streams, until=Until.END))
    await agent.streams.ended()
    await asyncio.sleep(0)
    await agent.streams.discard()
    chunks = await reading
    assert text(chunks) == b"done\n"
    assert chunks[-1].end
    with pytest.raises(BrokenPipeError):
        os.write(child.stdout, b"to nobody")


async def test_discarding_hangs_a_terminal_up(home: StreamHome) -> None:
    """Its session's leader gets SIGHUP (tty_vhangup_session), as when a modem lost its line."""
    terminal = Terminal()
    streams = Streams(home, REF, terminal=True, options=OPTIONS)
    await streams.open_terminal(terminal.master)
    # A session's leader gets the terminal that it opens as its own (credentials(7)).
    opening = (os.POSIX_SPAWN_OPEN, 0, os.ttyname(terminal.slave), os.O_RDWR, 0)
    leader = os.posix_spawn(  # noqa: ASYNC221 - it returns once the program is there
        "/bin/sleep",
        ["sleep", "300"],
        {},
        file_actions=[opening],
        setsid=True,
        setsigdef=[signal.SIGHUP],
    )
    os.close(terminal.slave)
    streams.begin()
    await streams.discard()
    _, status = await asyncio.to_thread(os.waitpid, leader, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGHUP


async def test_the_input_of_a_process_that_ended_is_over(agent: Agent, child: Child) -> None:
    await agent.streams.ended()
    with pytest.raises(AgentError) as caught:
        await agent.streams.write_input(0, b"x")
    assert caught.value.reason is Reason.INPUT_CLOSED


# Terminals.


async def test_a_terminals_end_counts_at_once(on_terminal: tuple[Streams, Terminal]) -> None:
    streams, terminal = on_terminal
    os.write(terminal.slave, b"done\n")
    os.close(terminal.slave)
    assert await streams.ended() == (6, 0)
    chunks = await read(streams)
    assert text(chunks) == b"done\r\n"
    assert chunks[-1].end


async def test_a_child_that_keeps_the_terminal_does_not_hold_the_exit(
    on_terminal: tuple[Streams, Terminal],
) -> None:
    """`sleep 30 & echo done` on a terminal: no end of file until the child ends."""
    streams, terminal = on_terminal
    os.write(terminal.slave, b"done\n")
    assert await streams.ended() == (6, 0)
    reading = asyncio.create_task(read(streams, until=Until.END))
    os.write(terminal.slave, b"later\n")
    chunks = await read(streams)
    assert text(chunks) == b"done\r\n"
    assert not any(chunk.end for chunk in chunks)
    os.close(terminal.slave)
    assert text(await reading) == b"done\r\nlater\r\n"


async def test_a_terminal_is_taken_whole_at_the_exit_with_nobody_reading(
    on_terminal: tuple[Streams, Terminal],
) -> None:
    streams, terminal = on_terminal
    written = 0
    # The kernel moves bytes to the other side in its own time.
    while await asyncio.to_thread(select.select, [], [terminal.slave], [], 1) != ([], [], []):
        with contextlib.suppress(BlockingIOError):
            written += os.write(terminal.slave, b"x" * 4096)
    assert written > WINDOW
    assert await streams.ended() == (written, 0)
    assert text(await read(streams)) == b"x" * written


async def test_a_terminals_tail_is_of_its_one_stream(on_terminal: tuple[Streams, Terminal]) -> None:
    streams, terminal = on_terminal
    os.write(terminal.slave, b"oh no\n")
    await streams.ended()
    assert streams.tail(Stream.STDERR, 4) == b"no\r\n"
