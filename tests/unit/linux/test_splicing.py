"""Splicing, on memory files: they are tmpfs files, which spools are too."""

from __future__ import annotations

import os
import pty
import tty
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from agent.linux import splicing

pytestmark = [pytest.mark.unit, pytest.mark.containers]

PAGE = splicing.PAGE


class Pipe:
    """Both ends, not blocking."""

    def __init__(self, stack: ExitStack) -> None:
        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._open = {self.read_end, self.write_end}
        stack.callback(self.close)

    def close(self, *ends: int) -> None:
        for end in ends or tuple(self._open):
            self._open.discard(end)
            os.close(end)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def pipe(stack: ExitStack) -> Pipe:
    return Pipe(stack)


@pytest.fixture
def file(stack: ExitStack) -> int:
    fd = os.memfd_create("spool")
    stack.callback(os.close, fd)
    return fd


def test_pipe_to_file_goes_to_the_offset_and_leaves_the_position(pipe: Pipe, file: int) -> None:
    os.write(pipe.write_end, b"hello")
    assert splicing.splice_to_file(pipe.read_end, file, 3, 100) == 5
    assert os.pread(file, 100, 0) == b"\0\0\0hello"
    assert os.lseek(file, 0, os.SEEK_CUR) == 0


def test_file_to_pipe_advances_the_position_that_duplicates_share(pipe: Pipe, file: int) -> None:
    """What a keeper of a duplicate sees is how far the pipe was fed, to the byte."""
    os.pwrite(file, b"abcdef", 0)
    kept = os.dup(file)
    assert splicing.splice(file, pipe.write_end, 4) == 4
    assert os.lseek(kept, 0, os.SEEK_CUR) == 4
    os.close(file)
    assert splicing.splice(kept, pipe.write_end, 4) == 2
    os.dup2(kept, file)
    os.close(kept)
    assert os.read(pipe.read_end, 10) == b"abcdef"


def test_an_empty_pipe_blocks_and_a_closed_one_ends(pipe: Pipe, file: int) -> None:
    with pytest.raises(BlockingIOError):
        splicing.splice(pipe.read_end, file, 10)
    pipe.close(pipe.write_end)
    assert splicing.splice(pipe.read_end, file, 10) == 0


def test_a_full_pipe_blocks(pipe: Pipe, file: int) -> None:
    os.pwrite(file, bytes(1 << 20), 0)
    moved = splicing.splice(file, pipe.write_end, 1 << 20)
    with pytest.raises(BlockingIOError):
        splicing.splice(file, pipe.write_end, 1 << 20)
    assert moved == splicing.waiting_bytes(pipe.read_end) == os.lseek(file, 0, os.SEEK_CUR)


def test_a_pipe_that_nobody_reads_is_an_error_and_no_signal(pipe: Pipe, file: int) -> None:
    os.pwrite(file, b"x", 0)
    pipe.close(pipe.read_end)
    with pytest.raises(BrokenPipeError, match=r"splice.*Broken pipe"):
        splicing.splice(file, pipe.write_end, 1)


def test_terminal_to_pipe_to_file(pipe: Pipe, file: int, stack: ExitStack) -> None:
    """A terminal does not splice to a file, so a pipe goes between."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    stack.callback(os.close, master)
    os.write(slave, b"on screen")
    assert splicing.splice(master, pipe.write_end, 100) == 9
    assert splicing.splice_to_file(pipe.read_end, file, 0, 100) == 9
    assert os.pread(file, 100, 0) == b"on screen"
    with pytest.raises(BlockingIOError):
        splicing.splice(master, pipe.write_end, 100)
    os.close(slave)
    with pytest.raises(OSError, match="Input/output error"):
        splicing.splice(master, pipe.write_end, 100)


def test_file_to_pipe_to_terminal(pipe: Pipe, file: int, stack: ExitStack) -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    stack.callback(os.close, master)
    stack.callback(os.close, slave)
    os.pwrite(file, b"typed", 0)
    assert splicing.splice(file, pipe.write_end, 100) == 5
    assert splicing.splice(pipe.read_end, master, 100) == 5
    assert os.read(slave, 100) == b"typed"


def test_a_punched_hole_keeps_the_size_and_gives_back_the_memory(file: int) -> None:
    os.pwrite(file, b"x" * (4 * PAGE), 0)
    splicing.punch_hole(file, 0, 3 * PAGE)
    status = os.fstat(file)
    assert (status.st_size, status.st_blocks * 512) == (4 * PAGE, PAGE)
    assert splicing.data_start(file) == 3 * PAGE
    assert os.pread(file, 1, 3 * PAGE) == b"x"


def test_where_all_is_hole_the_data_starts_at_the_end(file: int) -> None:
    assert splicing.data_start(file) == 0
    os.pwrite(file, b"x" * PAGE, 0)
    splicing.punch_hole(file, 0, PAGE)
    assert splicing.data_start(file) == PAGE


def test_what_lies_in_a_pipe_survives_the_hole(pipe: Pipe, file: int) -> None:
    os.pwrite(file, b"x" * (2 * PAGE), 0)
    splicing.splice(file, pipe.write_end, PAGE)
    splicing.punch_hole(file, 0, PAGE)
    assert os.read(pipe.read_end, PAGE) == b"x" * PAGE


def test_a_pipe_can_be_made_bigger(pipe: Pipe) -> None:
    assert splicing.set_pipe_size(pipe.write_end, 100_000) >= 100_000
