"""The console's last lines, and what follows its beginning."""

from __future__ import annotations

import asyncio
import socket

import pytest

from innkeeper.shim.console import Console

pytestmark = [pytest.mark.unit, pytest.mark.boot]


@pytest.fixture
def console() -> Console:
    ours, theirs = socket.socketpair()
    theirs.close()
    ours.close()
    return Console(ours)


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


async def test_following_ends_when_qemu_closes_its_end() -> None:
    ours, theirs = socket.socketpair()
    console = Console(ours)
    following = asyncio.create_task(console.follow())
    with theirs:
        theirs.sendall(b"hello\nlast")
        await console.activity.wait()
    await following
    assert console.tail() == ("hello", "last")
