"""A log's pump and its readers: a restart in the middle, rotation, the process's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason, not_found
from agent.core.life import LogOptions
from agent.core.model import ProcessRef, Stream
from agent.core.roots import Roots
from agent.handlers.runtime.logs.outputlog import (
    LogPump,
    LogQuery,
    LogSpace,
    ProcessLogs,
    log_directory,
)
from agent.handlers.runtime.logs.records import LogPiece
from tests.fakes.waiting import until
from tests.fakes.written import LoggedOne, WrittenStreams

pytestmark = [pytest.mark.unit, pytest.mark.containers]

OUT, ERR = Stream.STDOUT, Stream.STDERR
WEB = ProcessRef(container_id="web")


@dataclass
class OneContainer:
    processes: dict[str, LoggedOne] = field(default_factory=dict)


class OneTable:
    """A table with the container `web`."""

    def __init__(self) -> None:
        self.web = OneContainer()

    def container(self, container_id: str) -> OneContainer:
        if container_id != "web":
            raise not_found("there is none", reason=Reason.UNKNOWN_CONTAINER)
        return self.web

    def process(self, ref: ProcessRef) -> LoggedOne:
        found = self.container(ref.container_id).processes.get(ref.exec_id)
        if found is None:
            raise not_found("there is none", reason=Reason.UNKNOWN_PROCESS)
        return found


class Bench:
    """The container's first process, its streams, its log and who reads it."""

    def __init__(self, top: Path) -> None:
        self.roots = Roots(run=top)
        self.streams = WrittenStreams()
        self.options = LogOptions()
        self.space = LogSpace()
        self.table = OneTable()
        self.process = self.table.web.processes[""] = LoggedOne(None)
        self.logs = ProcessLogs(self.table, self.roots)
        self.pump = self.make_pump()

    def make_pump(self) -> LogPump:
        directory = log_directory(self.roots, WEB)
        self.pump = LogPump(self.streams, directory, self.options, space=self.space)
        self.process.log = self.pump
        self.pump.start()
        return self.pump

    async def settled(self) -> None:
        """Until the log has all that was written."""
        await until(
            lambda: all(
                self.pump.written(stream) == len(data)
                for stream, data in self.streams.written.items()
            )
        )

    async def write(self, data: bytes, stream: Stream = OUT) -> None:
        self.streams.write(stream, data)
        await self.settled()

    async def pieces(self, query: LogQuery | None = None) -> list[LogPiece]:
        async with aclosing(self.logs.logs(WEB, query or LogQuery())) as logs:
            return [piece async for piece in logs]

    async def text(self, query: LogQuery | None = None) -> bytes:
        return b"".join(piece.data for piece in await self.pieces(query))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.streams.end()
    await bench.pump.stop()


async def test_what_was_written_can_be_read(bench: Bench) -> None:
    await bench.write(b"hello\n")
    await bench.write(b"oh\xff", ERR)
    out, err = await bench.pieces()
    assert (out.stream, out.offset, out.data) == (OUT, 0, b"hello\n")
    assert (err.stream, err.offset, err.data) == (ERR, 0, b"oh\xff")
    assert await bench.text(LogQuery(streams=frozenset({ERR}))) == b"oh\xff"


async def test_a_terminal_has_one_stream(tmp_path: Path) -> None:
    streams = WrittenStreams(terminal=True)
    pump = LogPump(streams, tmp_path / "log", LogOptions(), space=LogSpace())
    pump.start()
    streams.write(OUT, b"x")
    streams.end()
    await until(lambda: pump.ended)
    assert pump.written(OUT) == 1
    await pump.stop()


async def test_the_next_agent_goes_on_exactly(bench: Bench) -> None:
    """Killed anywhere, also in the middle of a line of the log."""
    await bench.write(b"one\n" * 100)
    await bench.pump.stop()
    [file] = bench.pump.directory.iterdir()
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 20)
    bench.streams.write(OUT, b"two\n")
    bench.make_pump()
    await bench.settled()
    assert await bench.text() == b"one\n" * 100 + b"two\n"


async def test_what_the_streams_gave_up_meanwhile_is_a_gap(bench: Bench) -> None:
    await bench.write(b"0123456789")
    await bench.pump.stop()
    bench.streams.write(OUT, b"abcdefghij")
    bench.streams.kept[OUT] = 15
    bench.make_pump()
    await bench.settled()
    assert [(each.offset, each.data) for each in await bench.pieces()] == [
        (0, b"0123456789"),
        (15, b"fghij"),
    ]


@pytest.mark.parametrize(
    ("tail", "text"),
    [
        (0, b""),
        (1, b"five"),
        (2, b"four\nfive"),
        (4, b"two\nthree\nfour\nfive"),
        (5, b"one\ntwo\nthree\nfour\nfive"),
        (6, b"one\ntwo\nthree\nfour\nfive"),
    ],
)
async def test_the_last_lines(bench: Bench, tail: int, text: bytes) -> None:
    """As tail(1) counts them: a last one without its newline is one."""
    for part in (b"one\ntw", b"o\nthree\n", b"four\n", b"five"):
        await bench.write(part)
    assert await bench.text(LogQuery(tail=tail)) == text
    if text:
        pieces = await bench.pieces(LogQuery(tail=tail))
        whole = bytes(bench.streams.written[OUT])
        assert pieces[0].offset == len(whole) - len(text)


async def test_the_newline_at_the_end_begins_no_line(bench: Bench) -> None:
    await bench.write(b"one\ntwo\n")
    assert await bench.text(LogQuery(tail=1)) == b"two\n"
    await bench.write(b"other\n", ERR)
    assert await bench.text(LogQuery(tail=1, streams=frozenset({OUT}))) == b"two\n"


async def test_the_last_lines_across_files(bench: Bench) -> None:
    bench.options = LogOptions(max_bytes=4096, files=16)
    await bench.pump.stop()
    bench.make_pump()
    text = b"".join(b"line %d\n" % number for number in range(2000))
    await bench.write(text)
    lines = text.splitlines(keepends=True)
    for tail in (1, 700, 1999, 2000, 5000):
        assert await bench.text(LogQuery(tail=tail)) == b"".join(lines[-tail:])


async def test_only_what_came_since(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in (100.0, 200.0, 300.0):
        monkeypatch.setattr("agent.handlers.runtime.logs.outputlog.time.time", lambda at=at: at)
        await bench.write(b"at %d\n" % at)
    assert await bench.text(LogQuery(since=200.0)) == b"at 200\nat 300\n"
    assert await bench.text(LogQuery(since=200.5, tail=10)) == b"at 300\n"
    assert await bench.text(LogQuery(since=301.0)) == b""
    assert [each.at for each in await bench.pieces()] == [100.0, 200.0, 300.0]


async def test_following_ends_with_the_process(bench: Bench) -> None:
    """A child left behind may hold the streams open."""
    await bench.write(b"before\n")
    reader = asyncio.create_task(bench.text(LogQuery(follow=True)))
    await bench.write(b"while\n", ERR)
    bench.streams.write(OUT, b"last")
    bench.process.end(bench.streams)
    assert await reader == b"before\nwhile\nlast"
    assert not bench.pump.ended
    assert await bench.text(LogQuery(follow=True)) == b"before\nwhile\nlast"


async def test_following_from_the_end_gives_what_comes_alone(bench: Bench) -> None:
    await bench.write(b"before\n")
    async with aclosing(bench.logs.logs(WEB, LogQuery(follow=True, tail=0))) as logs:
        first = asyncio.ensure_future(anext(logs))
        count = 0
        while not first.done():
            # It begins some time: what was written until then is not for it.
            await bench.write(b"%d\n" % (count := count + 1))
        assert (await first).data.split()[-1] <= b"%d" % count
        assert b"before" not in (await first).data


async def test_without_following_it_ends_at_once(bench: Bench) -> None:
    assert await bench.text() == b""
    await bench.write(b"x")
    assert await bench.text() == b"x"


async def test_any_number_of_readers(bench: Bench) -> None:
    readers = [asyncio.create_task(bench.text(LogQuery(follow=True))) for _ in range(50)]
    for number in range(20):
        await bench.write(b"%d\n" % number)
    bench.process.end(bench.streams)
    text = bytes(bench.streams.written[OUT])
    assert await asyncio.gather(*readers) == [text] * 50


async def test_a_reader_that_is_slower_than_the_rotation_goes_on_with_the_oldest(
    bench: Bench,
) -> None:
    bench.options = LogOptions(max_bytes=4096, files=2)
    await bench.pump.stop()
    bench.make_pump()
    await bench.write(b"first\n")
    async with aclosing(bench.logs.logs(WEB, LogQuery(follow=True))) as logs:
        assert (await anext(logs)).data == b"first\n"
        text = b"".join(b"line %d\n" % number for number in range(5000))
        await bench.write(text)
        bench.process.end(bench.streams)
        rest = [piece async for piece in logs]
    assert rest[0].offset > len(b"first\n"), "the gap is what the offsets say"
    data = b"".join(piece.data for piece in rest)
    assert (b"first\n" + text)[rest[0].offset :] == data
    # It reads whatever is kept, and holds nothing else.
    assert len(list(bench.pump.directory.iterdir())) == 2


async def test_a_forgotten_process_still_has_its_log(bench: Bench) -> None:
    """An exec is forgotten some time after its end, its log goes with the container."""
    await bench.write(b"kept\n")
    bench.streams.end()
    await until(lambda: bench.pump.ended)
    await bench.pump.stop()
    bench.table.web.processes.clear()
    assert await bench.text(LogQuery(follow=True)) == b"kept\n"
    bench.pump.discard()
    with pytest.raises(AgentError) as caught:
        await bench.pieces()
    assert caught.value.reason is Reason.UNKNOWN_PROCESS


async def test_readers_end_when_it_is_removed(bench: Bench) -> None:
    await bench.write(b"gone\n")
    reader = asyncio.create_task(bench.text(LogQuery(follow=True)))
    await asyncio.sleep(0)
    bench.pump.discard()
    await reader
    assert not log_directory(bench.roots, WEB).parent.exists()


async def test_a_process_without_a_log(bench: Bench) -> None:
    bench.table.web.processes["e1"] = LoggedOne(None)
    logs = bench.logs.logs(ProcessRef(container_id="web", exec_id="e1"), LogQuery())
    with pytest.raises(AgentError) as caught:
        await anext(logs)
    assert caught.value.reason is Reason.NO_LOG


async def test_a_container_that_is_not_there(bench: Bench) -> None:
    with pytest.raises(AgentError) as caught:
        await anext(bench.logs.logs(ProcessRef(container_id="other"), LogQuery()))
    assert caught.value.reason is Reason.UNKNOWN_CONTAINER
