"""Messages of any size between the agent and its workers."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from agent.linux import fdpass, parcels

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        left.settimeout(10)
        right.settimeout(10)
        yield left, right


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("size", [0, 1, fdpass.MESSAGE_LIMIT, 1 << 20, parcels.LIMIT - 100])
def test_a_message_of_any_size_comes_back(
    pair: tuple[socket.socket, socket.socket], size: int
) -> None:
    left, right = pair
    before = descriptors()
    parcels.send(left, {"text": "é" * (size // 6), "more": [1, None]})
    assert parcels.receive(right) == {"text": "é" * (size // 6), "more": [1, None]}
    assert descriptors() == before


def test_five_hundred_paths_of_the_longest_kind(pair: tuple[socket.socket, socket.socket]) -> None:
    """PATH_MAX is 4096 with its NUL."""
    left, right = pair
    message = {"paths": ["/" + "x" * 4094] * 500}
    parcels.send(left, message)
    assert parcels.receive(right) == message


def test_more_is_a_mistake_of_ours(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(ValueError, match="over the limit"):
        parcels.send(pair[0], {"text": "x" * parcels.LIMIT})


def test_a_message_that_looks_like_the_note_is_only_a_message(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    left, right = pair
    parcels.send(left, {"in memfd": 3})
    assert parcels.receive(right) == {"in memfd": 3}


def test_descriptors_that_nobody_asked_for_are_closed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    left, right = pair
    before = descriptors()
    fdpass.send(left, {"a": 1}, [left.fileno(), right.fileno()])
    assert parcels.receive(right) == {"a": 1}
    assert descriptors() == before


def test_the_end_is_told(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    threading.Thread(target=left.close).start()
    with pytest.raises(EOFError):
        parcels.receive(right)
