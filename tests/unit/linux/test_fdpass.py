"""Packets with descriptors: whole or not at all, and no descriptor is ever lost."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.linux import fdpass

pytestmark = [pytest.mark.unit, pytest.mark.boot]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        left.settimeout(10)
        right.settimeout(10)
        yield left, right


@given(st.dictionaries(st.text(), JSON))
def test_any_object_comes_back(message: dict[str, object]) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        fdpass.send(left, message)
        assert fdpass.receive(right) == (message, [])


def test_descriptors_arrive_in_order_and_close_on_exec(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    reader, writer = os.pipe()
    fdpass.send(pair[0], {"op": "store"}, (reader, writer))
    os.close(reader)
    os.close(writer)
    _, (got_reader, got_writer) = fdpass.receive(pair[1])
    try:
        os.write(got_writer, b"through")
        assert os.read(got_reader, 10) == b"through"
        assert not os.get_inheritable(got_reader)
    finally:
        os.close(got_reader)
        os.close(got_writer)


def test_the_largest_message_fits_and_one_byte_more_does_not(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    padding = "x" * (fdpass.MESSAGE_LIMIT - len('{"a":""}'))
    fdpass.send(pair[0], {"a": padding})
    assert fdpass.receive(pair[1]) == ({"a": padding}, [])
    with pytest.raises(ValueError, match="over the limit of 65536"):
        fdpass.send(pair[0], {"a": padding + "x"})


def test_sixteen_descriptors_and_no_more(pair: tuple[socket.socket, socket.socket]) -> None:
    with open("/dev/null", "rb") as null:
        fdpass.send(pair[0], {}, [null.fileno()] * 16)
        _, fds = fdpass.receive(pair[1])
        for fd in fds:
            os.close(fd)
        assert len(fds) == 16
        with pytest.raises(ValueError, match="over the limit of 16"):
            fdpass.send(pair[0], {}, [null.fileno()] * 17)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"[]", b"7", b"{", b"[" * 60000, b'{"a":NaN', b"x"])
def test_a_packet_that_is_no_object_is_refused_and_its_descriptors_closed(
    pair: tuple[socket.socket, socket.socket], data: bytes
) -> None:
    """The autouse guard of the unit tier sees a descriptor that stayed open."""
    with open("/dev/null", "rb") as null:
        socket.send_fds(pair[0], [data], [null.fileno()])
    with pytest.raises(fdpass.MessageError):
        fdpass.receive(pair[1])


def test_a_peer_with_more_descriptors_than_allowed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    with open("/dev/null", "rb") as null:
        socket.send_fds(pair[0], [b"{}"], [null.fileno()] * 100)
    with pytest.raises(fdpass.MessageError, match="more than 16 descriptors"):
        fdpass.receive(pair[1])


def test_the_end_of_the_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    with pytest.raises(EOFError):
        fdpass.receive(pair[1])
    # An error here, never SIGPIPE.
    with pytest.raises(BrokenPipeError):
        fdpass.send(pair[1], {})
