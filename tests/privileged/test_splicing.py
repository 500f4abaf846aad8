"""Streams on a real tmpfs that gets full, and an agent that is killed between any two calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent.core.model import OutputChunk, ProcessRef, Stream
from agent.core.pid1 import Pid1Client
from agent.handlers.runtime.streams.streams import StreamHome, Streams
from agent.linux import mounting
from tests.fakes.pid1 import FakePid1
from tests.fakes.waiting import until

pytestmark = [pytest.mark.privileged, pytest.mark.containers]

REPOSITORY = Path(__file__).parents[2]
SIZE = 256 * 1024


@pytest.fixture
def spools(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a tmpfs")
    directory = tmp_path / "spools"
    directory.mkdir()
    mounting.mount("tmpfs", str(directory), "tmpfs", data=f"size={SIZE}")
    yield directory
    mounting.unmount(str(directory))


@pytest.fixture
async def home(tmp_path: Path, spools: Path) -> AsyncIterator[StreamHome]:
    async with FakePid1(tmp_path / "init.sock") as pid1:
        client = Pid1Client(pid1.path)
        yield StreamHome(keeper=client, spools=spools)
        client.close()


class Writer:
    """A process that writes as much as it can."""

    def __init__(self, home: StreamHome, name: str) -> None:
        self.streams = Streams(home, ProcessRef(container_id=name), terminal=False)
        self.written = 0
        self._stdout = -1

    async def start(self) -> None:
        stdio = await self.streams.open_pipes()
        assert stdio.stdout is not None
        self._stdout = os.dup(stdio.stdout)
        os.set_blocking(self._stdout, False)
        self.streams.begin()

    async def write(self, size: int) -> None:
        """Write `size` bytes, however long it takes."""
        goal = self.written + size
        while self.written < goal:
            self._try(goal - self.written)
            await asyncio.sleep(0)

    async def fill(self) -> None:
        """Write until nothing goes any more."""
        tries = 0
        while tries < 100:
            tries = 0 if self._try(65536) else tries + 1
            await asyncio.sleep(0)

    def _try(self, size: int) -> int:
        try:
            count = os.write(self._stdout, b"x" * size)
        except BlockingIOError:
            return 0
        self.written += count
        return count

    def end(self) -> None:
        os.close(self._stdout)

    async def read(self) -> int:
        pieces = self.streams.output({Stream.STDOUT: 0})
        return sum([len(each.data) async for each in pieces if isinstance(each, OutputChunk)])


async def test_a_full_tmpfs_makes_processes_wait_and_loses_nothing(home: StreamHome) -> None:
    """The window is larger than the tmpfs: what readers had must make room."""
    first, second = Writer(home, "c1"), Writer(home, "c2")
    for writer in (first, second):
        await writer.start()
    await first.fill()
    assert first.written <= SIZE + 65536
    await second.fill()
    assert second.written <= 65536
    readers = [asyncio.create_task(writer.read()) for writer in (first, second)]
    await asyncio.gather(first.write(2_000_000), second.write(2_000_000))
    for writer in (first, second):
        writer.end()
    assert await asyncio.gather(*readers) == [first.written, second.written]
    for writer in (first, second):
        await writer.streams.discard()
    assert os.listdir(home.spools) == []


async def test_space_of_a_container_that_is_removed_lets_another_go_on(home: StreamHome) -> None:
    first, second = Writer(home, "c1"), Writer(home, "c2")
    for writer in (first, second):
        await writer.start()
    await first.fill()
    await second.fill()
    first.end()
    await first.streams.discard()
    await second.write(SIZE // 2)
    second.end()
    assert await second.read() == second.written
    await second.streams.discard()


async def test_input_that_finds_no_space_is_refused_and_can_be_sent_again(
    home: StreamHome,
) -> None:
    writer = Writer(home, "c1")
    await writer.start()
    await writer.fill()
    with pytest.raises(Exception, match="spools are full"):
        await writer.streams.write_input(0, bytes(200_000))
    reading = asyncio.create_task(writer.read())
    await until(lambda: home.space.reclaim() or not home.space.short)
    sent = await writer.streams.write_input(writer.streams.input_offset, b"")
    assert sent == writer.streams.input_offset
    writer.end()
    await reading
    await writer.streams.discard()


AGENT = """
import os, sys
from agent.linux import splicing
pipe, out, spool, stdin = map(int, sys.argv[1:])
os.set_blocking(pipe, False)
while True:
    try:
        splicing.splice_to_file(pipe, out, os.fstat(out).st_size, 5000)
    except BlockingIOError:
        pass
    try:
        splicing.splice(spool, stdin, 3000)
    except BlockingIOError:
        pass
"""


def pattern(size: int) -> bytes:
    """Bytes of which none is where another could be without notice."""
    return b"".join(b"%09d\n" % number for number in range(size // 10))


class Ends:
    """The process that an agent serves: it writes, and reads what it is fed."""

    def __init__(self, data: bytes, stdout: int, stdin: int, out: int) -> None:
        self._data = data
        self._stdout = stdout
        self._stdin = stdin
        self._out = out
        self.written = 0
        self.got = bytearray()

    @property
    def moved(self) -> int:
        """Bytes that came through, in both directions."""
        return os.fstat(self._out).st_size + len(self.got)

    def turn(self) -> None:
        """Write and read what goes now."""
        with contextlib.suppress(BlockingIOError):
            part = self._data[self.written : self.written + 4096]
            self.written += os.write(self._stdout, part) if part else 0
        with contextlib.suppress(BlockingIOError):
            self.got += os.read(self._stdin, 4096)


def test_a_process_that_splices_can_be_killed_at_any_point() -> None:
    """Neither direction misses or repeats a byte: each call moves and advances at once."""
    data = pattern(3_000_000)
    with contextlib.ExitStack() as stack:
        out, spool, stdout_read, stdout_write, stdin_read, stdin_write = fds = (
            os.memfd_create("out"),
            os.memfd_create("in"),
            *os.pipe2(os.O_CLOEXEC),
            *os.pipe2(os.O_CLOEXEC),
        )
        for fd in fds:
            stack.callback(os.close, fd)
        for fd in (stdout_write, stdin_read):
            os.set_blocking(fd, False)
        os.pwrite(spool, data, 0)
        process = Ends(data, stdout_write, stdin_read, out)
        dice = random.Random(7)
        lives = 0
        while process.moved < 2 * len(data):
            goal = min(2 * len(data), process.moved + dice.randrange(1_000_000))
            with one_life(stdout_read, out, spool, stdin_write) as agent:
                lives += 1
                while process.moved < goal:
                    process.turn()
                    assert agent.poll() is None, "the agent ended by itself"
        assert os.pread(out, len(data), 0) == data
        assert process.got == data
        assert lives > 1


@contextlib.contextmanager
def one_life(*fds: int) -> Iterator[subprocess.Popen[bytes]]:
    """An agent that only splices, killed when the block ends, whatever it does then."""
    argv = [sys.executable, "-c", AGENT, *map(str, fds)]
    agent = subprocess.Popen(argv, pass_fds=fds, cwd=REPOSITORY)
    try:
        yield agent
    finally:
        agent.kill()
        agent.wait()
