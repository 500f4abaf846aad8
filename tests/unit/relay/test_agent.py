"""The agent as the relay sees it: there, away, back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from agent.relay.agent import Agent
from agent.relay.loop import Loop
from tests.fakes.clock import FakeClock

pytestmark = [pytest.mark.unit, pytest.mark.boot]


class Bench:
    def __init__(self, run_dir: Path) -> None:
        self.clock = FakeClock()
        self.loop = Loop(self.clock)
        self.path = run_dir / "agent.sock"
        self.status = run_dir / "agent.status"
        self.agent = Agent(self.loop, socket_path=str(self.path), status_path=str(self.status))
        self.back: list[int] = []

    def wait(self, key: int) -> None:
        self.agent.when_back(key, lambda: self.back.append(key))

    def settle(self) -> None:
        for _ in range(5):
            self.loop.again(lambda: None)
            self.loop.turn()

    def bound(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(self.path))
        return sock


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for key in range(10):
        bench.agent.forget(key)
    bench.loop.close()


def test_there_is_nobody_then_a_dead_socket_then_an_agent(bench: Bench) -> None:
    assert bench.agent.connect() is None
    with bench.bound():
        assert bench.agent.connect() is None
    bench.path.unlink()
    with bench.bound() as listener:
        listener.listen()
        sock = bench.agent.connect()
        assert sock is not None
        assert sock.getblocking() is False
        sock.close()


def reason_now(bench: Bench) -> str:
    assert bench.agent.connect() is None
    return bench.agent.reason()


def test_without_pid_1s_word_the_reason_is_the_kernels(bench: Bench) -> None:
    with bench.bound() as listener:
        assert "nothing listens there any more" in reason_now(bench)
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(bench.path))
            assert "its queue of connections is full" in reason_now(bench)


def test_the_reason_is_pid_1s_first_line(bench: Bench) -> None:
    assert f"{bench.path}: not there (yet)" in reason_now(bench)
    bench.status.write_text("restarting; last exit: 1\nmore\n")
    assert bench.agent.reason() == "innkeeper agent is not serving (restarting; last exit: 1)"
    bench.status.write_bytes(b"x" * 5000)
    assert len(bench.agent.reason()) < 600
    bench.status.write_bytes(b"\xff\xfe")
    assert bench.agent.reason().isprintable()


def test_all_that_wait_hear_of_the_arrival_once(bench: Bench) -> None:
    bench.wait(1)
    bench.wait(2)
    bench.settle()
    assert bench.back == []
    with bench.bound() as listener:
        listener.listen()
        bench.settle()
        assert bench.back == [1, 2]
        bench.settle()
    assert bench.back == [1, 2]


def test_it_is_looked_at_again_soon_after_it_was_bound(bench: Bench) -> None:
    """bind makes an event, listen makes none."""
    bench.wait(1)
    bench.settle()
    with bench.bound() as listener:
        bench.settle()
        assert bench.back == []
        listener.listen()
        bench.clock.advance(0.02)
        bench.settle()
        assert bench.back == [1]


def test_the_looks_become_rare(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    connect = bench.agent.connect

    def noted() -> socket.socket | None:
        looks.append(bench.clock.now)
        return connect()

    monkeypatch.setattr(bench.agent, "connect", noted)
    bench.wait(1)
    for _ in range(1000):
        bench.loop.again(lambda: None)
        bench.loop.turn()
        bench.clock.advance(0.01)
    gaps = [after - before for before, after in pairwise(looks)]
    assert min(gaps) == pytest.approx(0.02, abs=0.001)
    assert max(gaps) == pytest.approx(1.0, abs=0.02)
    assert len(looks) < 20


def test_an_agent_that_came_before_the_watch_is_seen(bench: Bench) -> None:
    with bench.bound() as listener:
        listener.listen()
        bench.wait(1)
        bench.settle()
        assert bench.back == [1]


def test_who_left_hears_nothing_and_the_last_one_ends_the_watch(bench: Bench) -> None:
    bench.wait(1)
    bench.agent.forget(1)
    with bench.bound() as listener:
        listener.listen()
        bench.settle()
    assert bench.back == []


def test_without_a_directory_the_timer_looks(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "later")
    bench.wait(1)
    bench.settle()
    bench.path.parent.mkdir()
    with bench.bound() as listener:
        listener.listen()
        bench.clock.advance(1)
        bench.settle()
    assert bench.back == [1]
    bench.loop.close()
