"""Several readers of one process: slow ones, fast ones, ones that may miss, ones that broke off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.life import StreamOptions, Until, WhenFull
from agent.core.model import OutputChunk, OutputGap, Stream
from agent.handlers.runtime.streams import outputs, reading
from agent.handlers.runtime.streams.streams import StreamHome, Streams
from tests.fakes.stream_ends import OPTIONS, PIPE, REF, WINDOW, Agent, Child, pieces, read, text
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.containers]

DROP = StreamOptions(window=WINDOW, when_full=WhenFull.DROP)


@asynccontextmanager
async def started(
    home: StreamHome, options: StreamOptions = OPTIONS
) -> AsyncIterator[tuple[Streams, Child]]:
    agent = Agent(home, options)
    child = await agent.start()
    yield agent.streams, child
    child.close()
    await agent.streams.discard()


async def written(child: Child, size: int) -> None:
    """Writes all of it, however long that takes."""
    left = size
    while left:
        left -= child.write_all(min(left, 4096))
        await asyncio.sleep(0)


async def stuck(child: Child) -> int:
    """Writes until nothing goes any more; how much went."""
    count, refused = 0, 0
    while refused < 100:
        went = child.write_all(4096)
        count, refused = count + went, 0 if went else refused + 1
        await asyncio.sleep(0)
    return count


class Reader:
    """Takes pieces one by one, when it is asked to."""

    def __init__(self, streams: Streams, *, offset: int = 0, **how: Any) -> None:
        self._streams = streams
        self._offset = offset
        self._name = how.get("reader", "")
        self._pieces = streams.output({Stream.STDOUT: offset}, **how)
        self.got: list[OutputChunk | OutputGap] = []

    async def take(self) -> OutputChunk | OutputGap:
        async with asyncio.timeout(10):
            self.got.append(await anext(self._pieces))
        return self.got[-1]

    async def rest(self) -> None:
        async with asyncio.timeout(30):
            async for piece in self._pieces:
                self.got.append(piece)
                if self._name:
                    self._streams.acknowledge(Stream.STDOUT, self.end, self._name)

    async def leave(self) -> None:
        await self._pieces.aclose()

    @property
    def end(self) -> int:
        """Where it has come to, with everything before that in sequence."""
        at = self._offset
        for piece in self.got:
            start = piece.start if isinstance(piece, OutputGap) else piece.offset
            assert start == at
            at = piece.end if isinstance(piece, OutputGap) else start + len(piece.data)
        return at


async def test_a_fast_reader_gets_what_there_is_however_slow_another_is(home: StreamHome) -> None:
    async with started(home) as (streams, child):
        slow, fast = Reader(streams), Reader(streams)
        child.write_all(10)
        await slow.take()
        await fast.take()
        reading_on = asyncio.create_task(fast.rest())
        count = await stuck(child)
        # The slow one has taken nothing since, and so the process waits at its window.
        assert WINDOW <= 10 + count <= 10 + WINDOW + PIPE + WINDOW
        await until(lambda: fast.end == streams._outputs[Stream.STDOUT].spool.size)
        going = asyncio.create_task(slow.rest())
        await written(child, 5 * WINDOW)
        child.close(child.stdout)
        await asyncio.gather(going, reading_on)
        assert slow.end == fast.end == 10 + count + 5 * WINDOW


async def test_one_that_may_miss_never_holds_the_process(home: StreamHome) -> None:
    async with started(home) as (streams, child):
        careless, steady = Reader(streams, may_miss=True), Reader(streams)
        child.write_all(10)
        await careless.take()
        going = asyncio.create_task(steady.rest())
        await written(child, 10 * WINDOW)
        child.close(child.stdout)
        await going
        assert steady.end == 10 + 10 * WINDOW
        await careless.rest()
        assert careless.end == steady.end
        gaps = [piece for piece in careless.got if isinstance(piece, OutputGap)]
        assert len(gaps) == 1
        assert gaps[0].start == 10
        assert steady.end - gaps[0].end >= WINDOW - PIPE


async def test_one_that_may_miss_begins_anywhere(home: StreamHome) -> None:
    async with started(home) as (streams, child):
        steady = Reader(streams)
        going = asyncio.create_task(steady.rest())
        await written(child, 10 * WINDOW)
        child.close(child.stdout)
        await going
        with pytest.raises(AgentError) as caught:
            await read(streams)
        assert caught.value.reason is Reason.OFFSET_NOT_KEPT
        gap, *chunks = await pieces(streams, may_miss=True)
        assert isinstance(gap, OutputGap)
        assert (gap.start, gap.end) == (0, int(caught.value.fields["oldest"]))
        assert gap.end + len(text(chunks)) == 10 * WINDOW


async def test_a_process_that_drops_never_waits(home: StreamHome) -> None:
    async with started(home, DROP) as (streams, child):
        slow = Reader(streams)
        child.write_all(10)
        await slow.take()
        await written(child, 20 * WINDOW)
        child.close(child.stdout)
        await slow.rest()
        assert slow.end == 10 + 20 * WINDOW
        (gap,) = [piece for piece in slow.got if isinstance(piece, OutputGap)]
        assert gap.start == 10
        assert WINDOW <= slow.end - gap.end <= 3 * WINDOW


async def test_nobody_reading_a_process_that_drops(home: StreamHome) -> None:
    """It is as if the window were a ring: the newest is there for who comes at last."""
    async with started(home, DROP) as (streams, child):
        await written(child, 20 * WINDOW)
        child.close()
        assert await streams.ended() == (20 * WINDOW, 0)
        gap, *chunks = await pieces(streams)
        assert isinstance(gap, OutputGap)
        assert gap.start == 0
        assert WINDOW <= len(text(chunks)) == 20 * WINDOW - gap.end
        assert streams.tail(Stream.STDOUT, 10) == b"x" * 10


async def test_a_lost_connection_keeps_its_place_though_others_read_on(home: StreamHome) -> None:
    """What was under way when it broke is there when it comes back, and then the process
    goes on."""
    async with started(home) as (streams, child):
        fast, slow = Reader(streams), Reader(streams, reader="slow")
        child.write_all(1000)
        await slow.take()
        await fast.take()
        streams.acknowledge(Stream.STDOUT, 500, "slow")
        await slow.leave()
        reading_on = asyncio.create_task(fast.rest())
        await stuck(child)
        again = Reader(streams, offset=500, reader="slow")
        first = await again.take()
        assert isinstance(first, OutputChunk)
        assert first.offset == 500
        going = asyncio.create_task(again.rest())
        await written(child, 5 * WINDOW)
        child.close(child.stdout)
        await asyncio.gather(going, reading_on)


async def test_a_reader_may_be_back_before_its_old_call_is_over(home: StreamHome) -> None:
    """An agent sees late, or never, that a connection is lost."""
    async with started(home) as (streams, child):
        old = Reader(streams, reader="one")
        child.write_all(1000)
        await old.take()
        streams.acknowledge(Stream.STDOUT, 500, "one")
        new = Reader(streams, offset=500, reader="one")
        assert (await new.take()) == OutputChunk(stream=Stream.STDOUT, offset=500, data=b"x" * 500)
        await old.leave()
        assert await stuck(child) >= WINDOW
        streams.acknowledge(Stream.STDOUT, 1000, "one")
        await new.leave()
        assert len(streams._outputs[Stream.STDOUT].spool.readers.away) == 1
        child.close(child.stdout)
        rest = await read(streams, stdout=1000, reader="one")
        assert len(text(rest)) == streams._outputs[Stream.STDOUT].spool.size - 1000


async def test_a_reader_that_stays_away_holds_nobody_for_long(
    home: StreamHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "RETURN", 0.05)
    async with started(home) as (streams, child):
        fast, slow = Reader(streams), Reader(streams, reader="slow")
        child.write_all(1000)
        await slow.take()
        await slow.leave()
        reading_on = asyncio.create_task(fast.rest())
        await written(child, 10 * WINDOW)
        child.close(child.stdout)
        await reading_on
        assert fast.end == 1000 + 10 * WINDOW


async def test_a_reader_without_a_name_holds_nobody_when_it_is_gone(home: StreamHome) -> None:
    async with started(home) as (streams, child):
        fast, slow = Reader(streams), Reader(streams)
        child.write_all(1000)
        await slow.take()
        await slow.leave()
        reading_on = asyncio.create_task(fast.rest())
        await written(child, 10 * WINDOW)
        child.close(child.stdout)
        await reading_on
        assert fast.end == 1000 + 10 * WINDOW


async def test_places_outlive_the_agent(home: StreamHome) -> None:
    async with started(home) as (streams, child):
        readers = [Reader(streams, reader=name) for name in ("one", "two")]
        child.write_all(1000)
        for each in readers:
            await each.take()
        await streams.let_go()
        for each in readers:
            await each.leave()
        heir = Streams(home, REF, terminal=False, options=OPTIONS)
        await heir.adopt(input_end=None)
        first = Reader(heir, offset=1000, reader="one")
        child.write_all(1000)
        await first.take()
        going = asyncio.create_task(first.rest())
        await stuck(child)
        # The other one has not come back yet, and misses nothing.
        second = Reader(heir, offset=0, reader="two")
        await second.take()
        assert heir._outputs[Stream.STDOUT].spool.readers.away == ()
        ending = asyncio.create_task(second.rest())
        await written(child, 5 * WINDOW)
        child.close(child.stdout)
        await asyncio.gather(going, ending)
        await heir.let_go()


async def test_a_place_of_before_is_given_up_in_time(
    home: StreamHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "RETURN", 0.05)
    async with started(home) as (streams, child):
        reader = Reader(streams, reader="one")
        child.write_all(1000)
        await reader.take()
        await streams.let_go()
        await reader.leave()
        heir = Streams(home, REF, terminal=False, options=OPTIONS)
        await heir.adopt(input_end=None)
        going = asyncio.create_task(Reader(heir, offset=1000).rest())
        await written(child, 10 * WINDOW)
        child.close(child.stdout)
        await going
        await heir.let_go()


async def test_a_reader_that_goes_in_the_middle_is_closed_at_once(home: StreamHome) -> None:
    async with started(home) as (streams, child):
        child.write_all(1000)
        async with aclosing(
            streams.output({Stream.STDOUT: 0}, until=Until.END, reader="one")
        ) as got:
            await anext(got)
        assert len(streams._outputs[Stream.STDOUT].spool.readers.away) == 1


async def test_acknowledgements_are_those_of_the_name_that_brings_them(home: StreamHome) -> None:
    """What one host has for good is kept for another that has not, while all of it was sent."""

    async def attached(streams: Streams, name: str, *, acknowledges: int | None) -> None:
        reader = Reader(streams, reader=name)
        while reader.end < 2 * WINDOW:
            await reader.take()
            had = reader.end if acknowledges is None else acknowledges
            streams.acknowledge(Stream.STDOUT, had, name)
        await reader.leave()

    async with started(home) as (streams, child):
        both = asyncio.gather(
            attached(streams, "one", acknowledges=None), attached(streams, "two", acknowledges=10)
        )
        await written(child, 2 * WINDOW)
        await both
        child.close(child.stdout)
        rest = await read(streams, stdout=10, reader="two")
        assert len(text(rest)) == 2 * WINDOW - 10
