"""Detach keys: what reaches the process, and what leaves it."""

from __future__ import annotations

import asyncio

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from innkeeper.cli.detach import Detached, DetachSource, parse_keys

pytestmark = [pytest.mark.unit, pytest.mark.containers]

KEYS = b"\x10\x11"


class Typed:
    """What is typed, piece by piece; the end of input comes after the last one."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def read(self, limit: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


async def nothing_waits() -> None:
    """All has been taken."""


async def passed(*pieces: bytes, keys: bytes = KEYS) -> tuple[bytes, bool]:
    """What reaches the process, and whether the keys were seen."""
    source = DetachSource(Typed(*pieces), keys, nothing_waits)
    data = b""
    try:
        while got := await source.read(1000):
            data += got
    except Detached:
        return data, True
    return data, False


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("ctrl-p,ctrl-q", b"\x10\x11"),
        ("ctrl-P", b"\x10"),
        ("a,b", b"ab"),
        ("ctrl-@", b"\x00"),
        ("ctrl-[", b"\x1b"),
        ("ctrl-\\,ctrl-]", b"\x1c\x1d"),
        ("ctrl-^,ctrl-_", b"\x1e\x1f"),
        ("", b""),
    ],
)
def test_keys_are_the_bytes_that_a_terminal_sends(text: str, keys: bytes) -> None:
    """As docker's --detach-keys."""
    assert parse_keys(text) == keys


@pytest.mark.parametrize("text", ["ctrl-", "ctrl-1", "ab", "a,", ",", "ä", "ctrl-pp", "strg-p"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no key"):
        parse_keys(text)


async def test_the_keys_leave_and_are_not_for_the_process() -> None:
    assert await passed(b"ls\n\x10\x11rest") == (b"ls\n", True)


async def test_they_may_come_one_by_one() -> None:
    assert await passed(b"a", b"\x10", b"\x11") == (b"a", True)


async def test_a_beginning_that_goes_on_otherwise_is_passed_on() -> None:
    assert await passed(b"\x10", b"x") == (b"\x10x", False)
    assert await passed(b"\x10", b"\x10", b"\x11") == (b"\x10", True)


async def test_a_beginning_at_the_end_of_input_is_passed_on() -> None:
    assert await passed(b"x\x10") == (b"x\x10", False)


async def test_keys_that_begin_with_themselves() -> None:
    assert await passed(b"aab", b"aac", keys=b"aac") == (b"aab", True)


@given(
    st.binary(max_size=30).map(lambda data: data.translate(bytes([97, 98, 99] * 85 + [97]))),
    st.lists(st.integers(1, 5), max_size=30),
    st.sampled_from([b"ab", b"aab", b"aba", b"abab"]),
)
def test_whatever_the_pieces_the_bytes_are_those_before_the_keys(
    data: bytes, sizes: list[int], keys: bytes
) -> None:
    pieces = []
    rest = data
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    pieces = [piece for piece in (*pieces, rest) if piece]
    before, found, _ = data.partition(keys)
    assert asyncio.run(passed(*pieces, keys=keys)) == (before, bool(found))


async def test_leaving_waits_until_the_process_has_what_was_typed_before() -> None:
    taken = asyncio.Event()

    async def wait() -> None:
        await taken.wait()

    source = DetachSource(Typed(b"ls\n\x10\x11"), KEYS, wait)
    assert await source.read(100) == b"ls\n"
    leaving = asyncio.create_task(source.read(100))
    await asyncio.sleep(0)
    assert not leaving.done()
    taken.set()
    with pytest.raises(Detached):
        await leaving
