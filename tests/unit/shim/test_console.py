"""The console's last lines, and what follows its beginning."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from innkeeper.shim.console import Console
from innkeeper.shim.console_log import ConsoleLog

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def pipe() -> tuple[FileIO, FileIO]:
    ours, theirs = os.pipe()
    return os.fdopen(ours, "rb", buffering=0), os.fdopen(theirs, "wb", buffering=0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ConsoleLog]:
    with contextlib.closing(ConsoleLog(tmp_path / "console.log")) as made:
        yield made


@pytest.fixture
def console(log: ConsoleLog) -> Console:
    with open(os.devnull, "rb", buffering=0) as unused:
        return Console(unused, log)


def test_lines_are_put_together_from_pieces(console: Console) -> None:
    seen: list[str] = []
    console.on_line(seen.append)
    for piece in (b"Linux ver", b"sion 6\r\nand", b" on\r\n"):
        console.feed(piece)
    assert seen == ["Linux version 6", "and on"]


def test_the_tail_has_the_unfinished_line_too(console: Console) -> None:
    """A kernel that panics does not end its last line."""
    console.feed(b"one\ntwo\nKernel pan")
    assert console.tail() == ("one", "two", "Kernel pan")


def test_escape_sequences_do_not_reach_the_error(console: Console) -> None:
    console.feed(b"\x1bc\x1b[?7l\x1b[2J\x1b[1;31mred\x1b[0m\x07\n\x1b]0;t\x07")
    assert console.tail()[0] == "red"


def test_bytes_that_are_no_text_do_no_harm(console: Console) -> None:
    console.feed(b"\xff\xfe ok\n")
    assert console.tail() == ("\ufffd\ufffd ok",)


def test_the_tail_is_bounded_in_lines_and_in_their_length(console: Console) -> None:
    console.feed(b"".join(b"%d\n" % number for number in range(1000)))
    assert console.tail()[0] == "970"
    assert len(console.tail()) == 30
    console.feed(b"x" * 100_000)
    assert max(len(line) for line in console.tail()) == 400


async def test_following_ends_when_qemu_closes_its_end(log: ConsoleLog) -> None:
    ours, theirs = pipe()
    console = Console(ours, log)
    following = asyncio.create_task(console.follow())
    with theirs:
        theirs.write(b"hello\nlast")
        await console.activity.wait()
    await following
    assert console.tail() == ("hello", "last")


async def test_all_that_the_guest_said_is_in_the_log_once_qemu_is_gone(
    log: ConsoleLog, tmp_path: Path
) -> None:
    """QEMU may be killed: what is in the pipe then still comes, byte for byte."""
    ours, theirs = pipe()
    console = Console(ours, log)
    said = b"".join(b"line %d \xff\r\n" % number for number in range(5000))
    with theirs:
        sending = asyncio.create_task(asyncio.to_thread(theirs.write, said))
        following = asyncio.create_task(console.follow())
        assert await sending == len(said)
    await following
    assert (tmp_path / "console.log").read_bytes() == said
