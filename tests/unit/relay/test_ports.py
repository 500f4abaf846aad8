"""Sessions on a port; a socketpair stands in for it, and its other end for the host."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from innkeeper.v1.session import NONCE_SIZE, Decoder, Encoder, End, Event, Start
from tests.fakes.in_process_relay import LONGEST_TURN, PREFACE, RelayBench, relay_bench

pytestmark = [pytest.mark.unit, pytest.mark.boot]

FIRST = bytes(NONCE_SIZE)
SECOND = bytes(range(NONCE_SIZE))


class PortBench:
    """A relay with one port, and what the host sees of it."""

    def __init__(self, bench: RelayBench) -> None:
        self.bench = bench
        self.host, port = socket.socketpair()
        self.host.settimeout(LONGEST_TURN)
        port.setblocking(False)
        self.gone: list[str] = []
        bench.relay.serve_port("test", port.detach(), gone=lambda: self.gone.append("gone"))
        self.encoder = Encoder()
        self.decoder = Decoder()

    def start(self, nonce: bytes) -> None:
        self.host.sendall(self.encoder.start(nonce))
        self.bench.settle()

    def send(self, data: bytes) -> None:
        self.host.sendall(self.encoder.data(data))
        self.bench.settle()

    def wire(self) -> bytes:
        """All that waits for the host."""
        self.bench.settle()
        self.host.setblocking(False)
        wire = b""
        try:
            while piece := self.host.recv(65536):
                wire += piece
                self.bench.settle()
        except BlockingIOError:
            pass
        self.host.settimeout(LONGEST_TURN)
        return wire

    def events(self) -> list[Event]:
        return self.decoder.feed(self.wire())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RelayBench]:
    with relay_bench(tmp_path) as bench:
        yield bench


@pytest.fixture
def port(bench: RelayBench) -> Iterator[PortBench]:
    port = PortBench(bench)
    yield port
    port.host.close()


@pytest.fixture
def listener(bench: RelayBench) -> Iterator[socket.socket]:
    with bench.agent_listens() as listener:
        yield listener


def connected(port: PortBench, listener: socket.socket) -> socket.socket:
    port.send(PREFACE)
    agent, _ = listener.accept()
    agent.settimeout(LONGEST_TURN)
    assert agent.recv(100) == PREFACE
    return agent


def test_a_relay_that_comes_new_says_that_no_session_is_open(port: PortBench) -> None:
    assert port.wire() == Encoder().end()


def test_a_start_is_echoed_and_data_goes_both_ways(
    port: PortBench, listener: socket.socket
) -> None:
    port.start(FIRST)
    assert port.events() == [Start(FIRST)]
    with connected(port, listener) as agent:
        agent.sendall(b"answer")
        assert port.events() == [b"answer"]
    assert port.bench.counts["port_sessions"] == 1


def test_a_new_start_drops_the_former_session(port: PortBench, listener: socket.socket) -> None:
    """The agent's connection is closed, what waits for the host is dropped, the new one works."""
    port.start(FIRST)
    assert port.events() == [Start(FIRST)]
    with connected(port, listener) as agent:
        agent.setblocking(False)
        blocked = False
        while not blocked:  # until the whole chain is full
            try:
                agent.send(bytes(65536))
            except BlockingIOError:
                before = port.bench.counts
                port.bench.settle()
                try:
                    agent.send(bytes(65536))
                except BlockingIOError:
                    blocked = True
                assert port.bench.counts == before
        port.start(SECOND)
        agent.settimeout(LONGEST_TURN)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            agent.sendall(bytes(65536))
    events = port.events()
    assert events[-1] == Start(SECOND)
    with connected(port, listener) as agent:
        agent.sendall(b"fresh")
        assert port.events() == [b"fresh"]


def test_a_session_may_begin_in_the_middle_of_another_ones_start(port: PortBench) -> None:
    port.host.sendall(Encoder().start(FIRST)[:12])
    port.start(SECOND)
    assert port.events() == [Start(SECOND)]


def test_an_agent_that_closes_ends_the_session_behind_its_data(
    port: PortBench, listener: socket.socket
) -> None:
    port.start(FIRST)
    with connected(port, listener) as agent:
        agent.sendall(b"last words")
    assert port.events() == [Start(FIRST), b"last words", End()]


def test_the_hosts_end_closes_the_agents_connection(
    port: PortBench, listener: socket.socket
) -> None:
    port.start(FIRST)
    with connected(port, listener) as agent:
        port.host.sendall(port.encoder.end())
        port.bench.settle()
        assert agent.recv(100) == b""


def test_a_host_that_closed_for_a_moment_keeps_the_session(
    port: PortBench, listener: socket.socket
) -> None:
    """The news of it may come later than the next session's first bytes."""
    port.start(FIRST)
    with connected(port, listener) as agent:
        port.host.shutdown(socket.SHUT_WR)  # reading the port gives nothing, as without a host
        port.bench.settle()
        port.bench.clock.advance(0.9)
        port.bench.settle()
        agent.sendall(b"still there")
        assert port.events() == [Start(FIRST), b"still there"]


def test_a_host_that_stays_away_ends_it(port: PortBench, listener: socket.socket) -> None:
    port.start(FIRST)
    with connected(port, listener) as agent:
        port.host.shutdown(socket.SHUT_WR)
        port.bench.settle()
        port.bench.clock.advance(1)
        port.bench.settle()
        assert agent.recv(100) == b""


def test_an_agent_that_takes_nothing_slows_the_host_then_loses_it(
    port: PortBench, listener: socket.socket
) -> None:
    """Bounded at 1 MiB; after 10 s the session goes, as a new one's start may lie behind."""
    port.start(FIRST)
    with connected(port, listener) as agent:
        port.host.setblocking(False)
        sent = 0
        while True:
            port.bench.settle()
            try:
                sent += port.host.send(bytes(65536))
            except BlockingIOError:
                break
        assert sent < 4 * 1024 * 1024
        port.bench.clock.advance(10)
        port.bench.settle()
        port.host.settimeout(LONGEST_TURN)
        assert port.events()[-1] == End()
        port.start(SECOND)
        assert port.events() == [Start(SECOND)]
        agent.close()


def test_an_agent_that_takes_again_keeps_the_session(
    port: PortBench, listener: socket.socket
) -> None:
    port.start(FIRST)
    with connected(port, listener) as agent:
        port.host.setblocking(False)
        payload = bytes(range(256)) * 8192
        sent, received = 0, bytearray()
        while len(received) < len(payload):
            port.bench.settle()
            try:
                sent += port.host.send(payload[sent:])
            except BlockingIOError:
                port.bench.clock.advance(6)
                received += agent.recv(300_000)
            else:
                if sent == len(payload):
                    received += agent.recv(300_000)
        assert bytes(received) == payload
        port.bench.settle()
        assert End() not in port.events()


def test_calls_are_answered_while_the_agent_is_away(port: PortBench) -> None:
    port.start(FIRST)
    port.send(PREFACE + bytes.fromhex("000001010500000001") + b"\x83")
    start, answers = port.events()
    assert start == Start(FIRST)
    assert isinstance(answers, bytes)
    assert b"not serving" in answers
    with port.bench.agent_listens():
        port.bench.clock.advance(0.02)
        goaway, end = port.events()
        assert isinstance(goaway, bytes)
        assert (goaway[3], end) == (7, End())
    assert (port.bench.counts["away_sessions"], port.bench.counts["away_replies"]) == (1, 1)


def test_a_session_that_speaks_something_else_is_ended(port: PortBench) -> None:
    port.start(FIRST)
    port.send(b"GET / HTTP/1.1\r\n")
    assert port.events() == [Start(FIRST), End()]
    assert port.bench.counts["refused_greeting"] == 1


def test_an_unplugged_port_is_let_go(bench: RelayBench, listener: socket.socket) -> None:
    port = PortBench(bench)
    port.start(FIRST)
    with connected(port, listener) as agent:
        bench.settle()
        agent.sendall(b"never read")
        bench.settle()
        port.host.close()  # with unread data: reading the port fails
        bench.settle()
        assert port.gone == ["gone"]
        assert agent.recv(100) == b""
