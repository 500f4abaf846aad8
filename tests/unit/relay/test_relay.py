"""Who may connect, for how long one may be silent, and what is counted."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.relay import __main__ as entry
from agent.relay import relay as relay_module
from tests.fakes.in_process_relay import PREFACE, RelayBench, relay_bench

pytestmark = [pytest.mark.unit, pytest.mark.boot]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RelayBench]:
    with relay_bench(tmp_path) as bench:
        yield bench


def closed(client: socket.socket) -> bool:
    """Whether the relay let go; both a reset and an end mean that."""
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def test_a_greeted_connection_reaches_the_agent_and_back(bench: RelayBench) -> None:
    with bench.agent_listens() as listener, bench.connection() as client:
        client.send(PREFACE)
        bench.settle()
        agent, _ = listener.accept()
        with agent:
            assert agent.recv(100) == PREFACE
            agent.send(b"answer")
            bench.settle()
            assert client.recv(100) == b"answer"
        bench.settle()
        assert closed(client)
    bench.settle()
    assert bench.counts["open"] == 0


@pytest.mark.parametrize("beginning", [b"", b"PRI * H"])
def test_the_half_open_are_dropped_in_time(bench: RelayBench, beginning: bytes) -> None:
    """Connected, and then silent: those were known to stay for ever."""
    clients = [bench.connection() for _ in range(50)]
    for client in clients:
        client.sendall(beginning)
    bench.settle()
    bench.clock.advance(9.9)
    bench.settle()
    assert bench.counts["open"] == 50
    bench.clock.advance(0.1)
    bench.settle()
    assert (bench.counts["open"], bench.counts["silent"]) == (0, 50)
    for client in clients:
        assert closed(client)
        client.close()


def test_who_leaves_in_the_middle_of_the_preface_is_not_waited_for(bench: RelayBench) -> None:
    with bench.connection() as client:
        client.send(b"PRI * H")
        bench.settle()
    bench.settle()
    assert (bench.counts["open"], bench.counts["silent"]) == (0, 1)


@pytest.mark.parametrize(
    ("words", "said"), [(b"\0\0\0\x10", "ttrpc"), (b"GET / HTTP/1.1\r\n", "no protocol")]
)
def test_other_protocols_are_refused(
    bench: RelayBench, capfd: pytest.CaptureFixture[str], words: bytes, said: str
) -> None:
    with bench.connection() as client:
        client.send(words)
        bench.settle()
        assert closed(client)
    assert bench.counts["refused_greeting"] == 1
    assert said in capfd.readouterr().err


def test_others_than_the_host_are_closed_and_counted(
    bench: RelayBench, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The guest's own processes come with CID 1 through loopback."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "listener"))
        listener.listen()
        listener.setblocking(False)
        bench.relay.listen(listener, admit=lambda _address: False)
        for _ in range(5):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "listener"))
                client.send(PREFACE)
                bench.settle()
                assert closed(client)
        bench.relay.loop.unwatch(listener.fileno())
    assert (bench.counts["refused_cid"], bench.counts["accepted"]) == (5, 0)
    assert capfd.readouterr().err.count("not the host's") == 3  # the 1st, the 2nd, the 4th


def test_there_is_a_limit_of_connections(
    bench: RelayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "CONNECTION_LIMIT", 2)
    clients = [bench.connection() for _ in range(3)]
    assert closed(clients[2])
    assert (bench.counts["open"], bench.counts["refused_full"]) == (2, 1)
    for client in clients:
        client.close()


def test_a_client_that_vanishes_leaves_the_agent_too(bench: RelayBench) -> None:
    with bench.agent_listens() as listener, bench.connection() as client:
        client.send(PREFACE)
        bench.settle()
        agent, _ = listener.accept()
        with agent:
            agent.send(b"unread")
            bench.settle()
            client.close()
            bench.settle()
            assert agent.recv(100) == PREFACE
            assert closed(agent)


def test_an_agent_that_vanishes_takes_the_client_along(bench: RelayBench) -> None:
    """Its last bytes arrive, then the end; the client's own end is not waited for."""
    with bench.agent_listens() as listener, bench.connection() as client:
        client.send(PREFACE)
        bench.settle()
        agent, _ = listener.accept()
        agent.recv(100)
        agent.send(b"last words")
        agent.close()
        bench.settle()
        assert client.recv(100) == b"last words"
        assert closed(client)
        with pytest.raises(BrokenPipeError):
            client.send(b"anybody?")


def test_the_counters_file_follows(bench: RelayBench) -> None:
    with bench.connection() as client:
        bench.settle()
        counters = json.loads((bench.run_dir / "relay.json").read_text())
        assert (counters["accepted"], counters["open"]) == (1, 1)
        client.close()
        bench.settle()
    counters = json.loads((bench.run_dir / "relay.json").read_text())
    assert (counters["accepted"], counters["open"]) == (1, 0)


def test_a_full_run_directory_does_not_stop_the_relay(
    bench: RelayBench, capfd: pytest.CaptureFixture[str]
) -> None:
    (bench.run_dir / "relay.json.new").mkdir()
    with bench.connection():
        bench.settle()
    assert "counters not saved" in capfd.readouterr().err


def test_the_agent_back_ends_the_answering(bench: RelayBench) -> None:
    """GOAWAY, then the end: the client's next connection reaches the agent."""
    with bench.connection() as client:
        client.send(PREFACE)
        bench.settle()
        assert client.recv(100)[3] == 4  # SETTINGS
        with bench.agent_listens():
            bench.clock.advance(0.02)
            bench.settle()
            assert client.recv(100)[3] == 7  # GOAWAY
            assert closed(client)
            client.close()
            bench.settle()
    assert (bench.counts["open"], bench.counts["away_sessions"]) == (0, 1)


def test_a_client_that_reads_no_answers_is_not_read_either(bench: RelayBench) -> None:
    ping = bytes.fromhex("000008060000000000") + bytes(8)
    with bench.connection() as client:
        client.send(PREFACE)
        client.setblocking(False)
        sent = 0
        while True:
            bench.settle()
            try:
                sent += client.send(ping * 1000)
            except BlockingIOError:
                break
        assert sent < 4 * 1024 * 1024


def test_options_have_defaults_and_unknown_ones_are_named() -> None:
    assert entry.settings([]) == {
        "port": "1024",
        "run-dir": "/run/innkeeper",
        "ports": "innkeeper.agent.",
    }
    assert entry.settings(["--port=1030"])["port"] == "1030"
    for wrong in ("--prot=1", "port=1", "--port", "--port=x"):
        with pytest.raises(ValueError, match="port"):
            entry.settings([wrong])


def test_a_wrong_option_ends_the_start(capfd: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--nonsense=1"]) == 2
    assert "--port=1024" in capfd.readouterr().err
