"""The socket's protocol, over a socketpair and without a PID 1."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.linux import fdpass
from agent.linux.pidfd import ChildExit
from agent.pid1.journal import Journal
from agent.pid1.layout import PowerAction
from agent.pid1.loop import Loop
from agent.pid1.requests import Requests
from agent.pid1.server import Server
from agent.pid1.store import Store

pytestmark = [pytest.mark.unit, pytest.mark.boot]


class Bench:
    """A server with one loop that the test turns by hand."""

    def __init__(self, path: Path) -> None:
        self.errors: list[Exception] = []
        self.said: list[str] = []
        self.power: list[PowerAction] = []
        self.loop = Loop(self.errors.append)
        self.store = Store(limit=8)
        self.journal = Journal(str(path), limit=16)
        requests = Requests(
            store=self.store, journal=self.journal, status=lambda: {"boot": {"pid1_start": 0.5}}
        )
        self.server = Server(self.loop, requests, self.journal, self.said.append, self.power.append)
        self._clients: list[socket.socket] = []

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server.add(theirs)
        ours.settimeout(0)
        self._clients.append(ours)
        return ours

    def ask(self, client: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> Any:
        answer, received = self.ask_fds(client, message, fds)
        assert received == []
        return answer

    def ask_fds(
        self, client: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        fdpass.send(client, message, fds)
        self.turn()
        return fdpass.receive(client)

    def turn(self) -> None:
        """One round; a timer keeps it from waiting when nothing is ready."""
        self.loop.call_after(0, lambda: None)
        self.loop.run_once()

    def exits(self, count: int) -> None:
        for _ in range(count):
            self.journal.append(ChildExit(1, 0, 0), cgroup="/pods/s/c", at=0.0, comm="x")
        self.server.publish()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for _ in range(3):
            self.turn()
        self.store.drop(self.store.names(prefix="", after=""))
        self.journal.close()
        self.loop.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "exits.jsonl")
    yield bench
    bench.close()
    assert bench.errors == []


def entries(client: socket.socket) -> list[int]:
    """Numbers of all entries that have been pushed."""
    numbers: list[int] = []
    while True:
        try:
            message, _ = fdpass.receive(client)
        except BlockingIOError:
            return numbers
        numbers.append(message["entry"]["seq"])


def test_ping(bench: Bench) -> None:
    bench.exits(3)
    answer = bench.ask(bench.connect(), {"op": "ping"})
    assert answer == {"ok": True, "boot": {"pid1_start": 0.5}, "journal_sequence": 3}


def test_stored_descriptors_come_back_as_duplicates(bench: Bench) -> None:
    client = bench.connect()
    reader, writer = os.pipe()
    assert bench.ask(client, {"op": "store", "name": "a"}, (reader,)) == {"ok": True}
    assert bench.ask(client, {"op": "store", "name": "b"}, (writer,)) == {"ok": True}
    os.close(reader)
    os.close(writer)
    for _ in range(2):
        answer, fds = bench.ask_fds(client, {"op": "fetch", "names": ["b", "missing", "a"]})
        assert answer == {"ok": True, "names": ["b", "a"]}
        os.write(fds[0], b"x")
        assert os.read(fds[1], 10) == b"x"
        for fd in fds:
            os.close(fd)


def test_drop_and_names(bench: Bench) -> None:
    client = bench.connect()
    with open("/dev/null", "rb") as null:
        for name in ("x/1", "x/2", "y"):
            bench.ask(client, {"op": "store", "name": name}, (null.fileno(),))
    names = bench.ask(client, {"op": "names", "prefix": "x/"})
    assert names == {"ok": True, "names": ["x/1", "x/2"], "more": False}
    dropped = bench.ask(client, {"op": "drop", "names": ["x/1", "nothing"]})
    assert dropped == {"ok": True, "dropped": 1}
    assert bench.ask(client, {"op": "names", "prefix": "", "after": "x/2"})["names"] == ["y"]


def test_the_journal_is_read_from_a_number_on(bench: Bench) -> None:
    bench.exits(20)
    answer = bench.ask(bench.connect(), {"op": "journal", "after": 17, "limit": 2})
    assert [entry["seq"] for entry in answer["entries"]] == [18, 19]
    assert (answer["oldest"], answer["last"]) == (5, 20)


def test_long_paths_do_not_make_a_page_too_large(bench: Bench) -> None:
    """A container may nest its groups down to a path of 4096 bytes, all of them escaped in JSON."""
    for _ in range(16):
        bench.journal.append(
            ChildExit(1, 0, 0), cgroup="/\u0001" * 2048, at=0.0, comm="\u0001" * 15
        )
    client = bench.connect()
    seen: list[int] = []
    while len(seen) < 16:
        answer = bench.ask(client, {"op": "journal", "after": seen[-1] if seen else 0})
        assert answer["entries"]
        seen += [entry["seq"] for entry in answer["entries"]]
    assert seen == list(range(1, 17))


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        ({}, "unknown op"),
        ({"op": 1}, "unknown op"),
        ({"op": "x" * 5000}, "unknown op"),
        ({"op": "store", "name": "a"}, "one descriptor"),
        ({"op": "store", "name": ""}, "'name'"),
        ({"op": "store", "name": "x" * 256}, "'name'"),
        ({"op": "store", "name": "a\nb"}, "'name'"),
        ({"op": "drop"}, "'names'"),
        ({"op": "drop", "names": [1]}, "'name'"),
        ({"op": "fetch", "names": ["x"] * 17}, "'names'"),
        ({"op": "names", "prefix": 1}, "'prefix'"),
        ({"op": "journal", "after": -1}, "'after'"),
        ({"op": "journal", "after": True}, "'after'"),
        ({"op": "journal", "limit": 201}, "'limit'"),
        ({"op": "subscribe", "after": "0"}, "'after'"),
        ({"op": "power"}, "'action'"),
        ({"op": "power", "action": "suspend"}, "'action'"),
    ],
)
def test_a_bad_request_is_answered_with_what_is_wrong(
    bench: Bench, message: dict[str, Any], wrong: str
) -> None:
    client = bench.connect()
    answer = bench.ask(client, message)
    assert answer["ok"] is False
    assert wrong in answer["error"]
    assert bench.ask(client, {"op": "ping"})["ok"]
    assert bench.power == []


def test_subscribers_get_the_past_and_the_future_in_order(bench: Bench) -> None:
    bench.exits(3)
    first, second = bench.connect(), bench.connect()
    assert bench.ask(first, {"op": "subscribe", "after": 1})["last"] == 3
    assert bench.ask(second, {"op": "subscribe", "after": 3})["last"] == 3
    bench.exits(2)
    assert entries(first) == [2, 3, 4, 5]
    assert entries(second) == [4, 5]


def test_a_subscriber_that_asks_for_too_old_numbers_is_told(bench: Bench) -> None:
    bench.exits(20)
    client = bench.connect()
    assert bench.ask(client, {"op": "subscribe", "after": 0}) == {
        "ok": True,
        "oldest": 5,
        "last": 20,
    }
    assert entries(client) == list(range(5, 21))


def test_a_subscriber_from_the_future_waits_for_it(bench: Bench) -> None:
    client = bench.connect()
    assert bench.ask(client, {"op": "subscribe", "after": 2})["ok"]
    bench.exits(3)
    assert entries(client) == [3]


def test_a_slow_subscriber_misses_nothing_while_memory_reaches_back(bench: Bench) -> None:
    slow = bench.connect()
    bench.ask(slow, {"op": "subscribe", "after": 0})
    fill(bench)
    held = bench.journal.last
    bench.exits(5)
    seen = entries(slow)
    while seen[-1] < held + 5:
        bench.turn()
        seen += entries(slow)
    assert seen == list(range(1, held + 6))
    assert bench.ask(slow, {"op": "ping"})["ok"]


def fill(bench: Bench) -> None:
    """Exits until the subscriber's buffer is full, which shows as a place that stays behind."""
    (connection,) = bench.server.connections
    while connection.sent == bench.journal.last:
        bench.exits(1)


def test_a_subscriber_that_fell_behind_is_dropped(bench: Bench) -> None:
    deaf, other = bench.connect(), bench.connect()
    bench.ask(deaf, {"op": "subscribe", "after": 0})
    bench.exits(10_000)
    bench.turn()
    assert len(bench.said) == 1
    assert "dropped" in bench.said[0]
    with pytest.raises(EOFError):
        entries(deaf)
    assert bench.ask(other, {"op": "ping"})["ok"]


def test_a_client_that_does_not_read_its_answers_is_not_served_on(bench: Bench) -> None:
    """Its answers wait in its own buffers; nothing is queued without end, nothing is lost."""
    client, other = bench.connect(), bench.connect()
    sent = 0
    for _ in range(10_000):
        try:
            fdpass.send(client, {"op": "ping", "padding": "x" * 1000})
            sent += 1
        except BlockingIOError:
            break
        bench.turn()
    assert 0 < sent < 10_000
    assert bench.ask(other, {"op": "ping"})["ok"]
    answered = 0
    for _ in range(10 * sent):
        bench.turn()
        try:
            fdpass.receive(client)
            answered += 1
        except BlockingIOError:
            if answered == sent:
                break
    assert answered == sent


def test_descriptors_of_a_waiting_answer_survive_their_drop(bench: Bench) -> None:
    client, other = bench.connect(), bench.connect()
    with open("/dev/null", "rb") as null:
        bench.ask(client, {"op": "store", "name": "a"}, (null.fileno(),))
    waiting = 0
    while not any(connection.unsent for connection in bench.server.connections):
        fdpass.send(client, {"op": "fetch", "names": ["a"]})
        waiting += 1
        bench.turn()
    bench.ask(other, {"op": "drop", "names": ["a"]})
    for _ in range(waiting):
        answer, fds = fdpass.receive(client)
        bench.turn()
        assert answer["names"] == ["a"]
        for fd in fds:
            assert os.fstat(fd).st_rdev == os.stat("/dev/null").st_rdev
            os.close(fd)


@pytest.mark.parametrize("action", ["off", "reboot"])
def test_power_is_answered_before_anything_happens(bench: Bench, action: str) -> None:
    client = bench.connect()
    answered: list[bool] = []

    def on_power(_action: PowerAction) -> None:
        answered.append(fdpass.receive(client)[0]["ok"])

    bench.server.on_power = on_power
    fdpass.send(client, {"op": "power", "action": action})
    bench.turn()
    assert answered == [True]


def test_power_for_a_client_that_left(bench: Bench) -> None:
    client = bench.connect()
    fdpass.send(client, {"op": "power", "action": "off"})
    client.close()
    bench.turn()
    assert bench.power == [PowerAction.OFF]


def test_a_client_that_leaves_is_forgotten(bench: Bench) -> None:
    client = bench.connect()
    client.close()
    bench.turn()
    assert bench.server.connections == ()


def test_the_socket_is_for_root_only(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "s"
    bench.server.listen(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(10)
        client.connect(str(path))
        bench.turn()
        fdpass.send(client, {"op": "ping"})
        bench.turn()
        assert fdpass.receive(client)[0]["ok"]
    bench.server.close()


def test_a_fault_that_a_client_can_repeat_costs_only_its_connection(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted among PID 1's own errors, a hundred of them would have powered the VM off."""

    def fail(*_: object) -> None:
        raise ValueError("a bug of ours")

    with monkeypatch.context() as broken:
        broken.setattr(Requests, "handle", fail)
        client = bench.connect()
        fdpass.send(client, {"op": "ping"})
        bench.turn()
        with pytest.raises(EOFError):
            fdpass.receive(client)
    assert bench.errors == []
    assert any("a bug of ours" in line for line in bench.said)
    assert bench.ask(bench.connect(), {"op": "ping"})["ok"]
