"""Our own standard streams, whatever they are."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from innkeeper.cli.descriptors import Collector, FdSink, FdSource
from innkeeper.cli.errors import CliError

pytestmark = [pytest.mark.unit, pytest.mark.operations]


@pytest.fixture
def pipe() -> object:
    ends = list(os.pipe())
    yield ends
    for fd in ends:
        if fd >= 0:
            os.close(fd)


async def test_a_pipe_gives_what_is_there_and_then_its_end(pipe: list[int]) -> None:
    os.write(pipe[1], b"hello")
    source = FdSource(pipe[0])
    assert await source.read(100) == b"hello"
    os.close(pipe[1])
    pipe[1] = -1
    assert await source.read(100) == b""


async def test_a_full_disk_is_told_by_the_streams_name() -> None:
    """/dev/full, full(4): every write ends with ENOSPC."""
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(CliError, match=r"^stdout: No space left on device$"):
        await FdSink(full, "stdout").write(b"data")
    os.close(full)


async def test_a_read_that_is_cancelled_takes_nothing(pipe: list[int]) -> None:
    source = FdSource(pipe[0])
    reading = asyncio.create_task(source.read(100))
    await asyncio.wait({reading}, timeout=0)
    reading.cancel()
    await asyncio.wait({reading})
    os.write(pipe[1], b"kept")
    assert await source.read(100) == b"kept"


@pytest.mark.parametrize("name", ["/dev/null", "file"])
async def test_what_can_not_be_waited_for_is_read_all_the_same(tmp_path: Path, name: str) -> None:
    """epoll_ctl(2) refuses regular files and /dev/null with EPERM."""
    (tmp_path / "file").write_bytes(b"data")
    with (tmp_path / name).open("rb") as file:
        source = FdSource(file.fileno())
        assert await source.read(100) == (b"data" if name == "file" else b"")
        assert await source.read(100) == b""


async def test_a_full_pipe_holds_the_writer_back_and_not_the_loop(pipe: list[int]) -> None:
    data = os.urandom(300_000)
    writing = asyncio.create_task(FdSink(pipe[1]).write(data))
    read = b""
    while len(read) < len(data):
        read += await FdSource(pipe[0]).read(1 << 16)
    await writing
    assert read == data


async def test_a_pipe_stays_in_blocking_mode(pipe: list[int]) -> None:
    """It is the shell's pipe too, and the next program's."""
    await FdSink(pipe[1]).write(b"x")
    await FdSource(pipe[0]).read(1)
    assert os.get_blocking(pipe[0])
    assert os.get_blocking(pipe[1])


async def test_a_file_is_written_whole(tmp_path: Path) -> None:
    data = os.urandom(600_000)
    with (tmp_path / "out").open("wb") as file:
        await FdSink(file.fileno()).write(data)
    assert (tmp_path / "out").read_bytes() == data


async def test_nobody_reading_is_an_error(pipe: list[int]) -> None:
    os.close(pipe[0])
    pipe[0] = -1
    with pytest.raises(BrokenPipeError):
        await FdSink(pipe[1]).write(b"x")


async def test_a_collector_keeps_no_more_than_its_limit() -> None:
    sink = Collector(limit=5)
    await sink.write(b"abc")
    await sink.write(b"defgh")
    assert sink.data == b"abcde"
