"""One direction of a connection, through a pipe."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from agent.relay.flow import Flow, Pipes

pytestmark = [pytest.mark.unit, pytest.mark.boot]


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    pipes = Pipes()
    yield pipes
    pipes.close()


class Bench:
    """sender -> source | flow | sink -> receiver."""

    def __init__(self, pipes: Pipes) -> None:
        self.sender, self.source = socket.socketpair()
        self.sink, self.receiver = socket.socketpair()
        for sock in (self.sender, self.source, self.sink, self.receiver):
            sock.setblocking(False)
        self.flow = Flow(self.source, self.sink, pipes)

    def close(self) -> None:
        self.flow.close()
        for sock in (self.sender, self.source, self.sink, self.receiver):
            sock.close()


@pytest.fixture
def bench(pipes: Pipes) -> Iterator[Bench]:
    bench = Bench(pipes)
    yield bench
    bench.close()


def test_bytes_pass_and_the_end_follows(bench: Bench) -> None:
    bench.sender.send(b"hello")
    bench.sender.shutdown(socket.SHUT_WR)
    assert bench.flow.pump() is False
    assert bench.flow.done
    assert bench.receiver.recv(100) == b"hello"
    assert bench.receiver.recv(100) == b""


def test_a_half_close_leaves_the_other_direction_open(bench: Bench) -> None:
    bench.sender.shutdown(socket.SHUT_WR)
    bench.flow.pump()
    bench.receiver.send(b"still here")
    assert bench.sink.recv(100) == b"still here"


def test_a_slow_receiver_slows_the_sender_and_loses_nothing(bench: Bench) -> None:
    payload = os.urandom(4 * 1024 * 1024)
    sent, received = 0, bytearray()
    stuck = 0
    while len(received) < len(payload):
        try:
            sent += bench.sender.send(payload[sent : sent + 300_000])
        except BlockingIOError:
            stuck += 1
        bench.flow.pump()
        if stuck:  # only a full chain is drained, and only by a little
            received += bench.receiver.recv(50_000)
    assert bytes(received) == payload
    assert stuck


def test_a_busy_source_asks_for_another_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.relay.flow._TURN", 10_000)
    bench.sender.send(bytes(50_000))
    assert bench.flow.pump() is True


def test_a_reset_source_is_an_error(bench: Bench) -> None:
    """Leaving with unread data resets a unix socket."""
    bench.source.send(b"never read")
    bench.sender.close()
    with pytest.raises(ConnectionResetError):
        bench.flow.pump()


def test_a_sink_that_is_gone_ends_the_flow_quietly(bench: Bench) -> None:
    bench.sender.send(b"hello")
    bench.receiver.close()
    assert bench.flow.pump() is False
    assert bench.flow.done


def test_an_idle_flow_holds_no_pipe(bench: Bench, pipes: Pipes) -> None:
    bench.sender.send(b"hello")
    bench.flow.pump()
    pipe = pipes.take()
    pipes.give(pipe)
    bench.sender.send(b"again")
    bench.flow.pump()
    assert pipes.take() == pipe
    pipes.give(pipe)


def test_a_pipe_that_is_given_back_full_is_dropped(bench: Bench) -> None:
    """Bytes of one connection must never come out of another."""
    while True:
        try:
            bench.sink.send(bytes(65536))
        except BlockingIOError:
            break
    bench.sender.send(b"stuck")
    bench.flow.pump()
    bench.flow.close()
    assert bench.flow.done


def test_no_piece_is_larger_than_a_vsock_device_takes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices lost packets over 32 KiB without a word."""
    counts: list[int] = []
    splice = os.splice

    def noted(source: int, target: int, count: int, **options: int) -> int:
        moved: int = splice(source, target, count, **options)
        if target == bench.sink.fileno():
            counts.append(count)
        return moved

    monkeypatch.setattr(os, "splice", noted)
    bench.sender.send(bytes(100_000))
    bench.flow.pump()
    assert max(counts) == 32 * 1024
