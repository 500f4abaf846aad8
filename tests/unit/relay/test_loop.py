"""The relay's loop: edges, timers, turns."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from agent.relay.loop import Loop
from tests.fakes.clock import FakeClock

pytestmark = [pytest.mark.unit, pytest.mark.boot]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def loop(clock: FakeClock) -> Iterator[Loop]:
    loop = Loop(clock)
    yield loop
    loop.close()


def test_an_edge_is_told_once(loop: Loop) -> None:
    """What is left unread is not told again: a port without a host would be told for ever."""
    told: list[int] = []
    left, right = socket.socketpair()
    with left, right:
        loop.watch(right.fileno(), told.append)
        left.send(b"x")
        loop.turn()
        assert len(told) == 1
        loop.again(lambda: None)
        loop.turn()
        assert len(told) == 1
        left.send(b"y")
        loop.turn()
        assert len(told) == 2


def test_timers_come_in_order_and_can_be_called_off(loop: Loop, clock: FakeClock) -> None:
    called: list[str] = []
    loop.later(2, lambda: called.append("second"))
    loop.later(1, lambda: called.append("first"))
    loop.later(1.5, lambda: called.append("never")).cancel()
    clock.advance(1)
    loop.turn()
    assert called == ["first"]
    clock.advance(1)
    loop.turn()
    assert called == ["first", "second"]


def test_a_descriptor_lives_until_the_turn_ends(loop: Loop) -> None:
    """Closed at once, its number could be given to another and get its events."""
    fds: list[int] = []
    left, right = socket.socketpair()
    with left:
        fd = right.detach()

        def close_and_open(_events: int) -> None:
            loop.dispose(fd)
            fds.append(os.dup(left.fileno()))

        loop.watch(fd, close_and_open)
        left.send(b"x")
        loop.turn()
        assert fds[0] != fd
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    os.close(fds[0])


def test_again_waits_for_the_others(loop: Loop) -> None:
    called: list[str] = []
    loop.again(lambda: loop.again(lambda: called.append("later")))
    loop.turn()
    assert called == []
    loop.turn()
    assert called == ["later"]
