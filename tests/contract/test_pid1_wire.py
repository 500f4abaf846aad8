"""The agent's client of PID 1's socket against PID 1's own server: both sides of one wire."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError
from agent.core.exits import ExitWatcher, Expectation
from agent.core.pid1 import Pid1Client

pytestmark = [pytest.mark.contract, pytest.mark.containers]

REPOSITORY = Path(__file__).parents[2]


PROGRAM = """
import sys
from agent.linux.pidfd import ChildExit
from agent.pid1.journal import Journal
from agent.pid1.loop import READ, Loop
from agent.pid1.requests import Requests
from agent.pid1.server import Server
from agent.pid1.store import Store

def fail(error):
    raise error

def put_exit(_events):
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    pid, code = map(int, line.split())
    journal.append(ChildExit(pid, code, 0), cgroup="/pods/s/c1", at=1.5, comm="sh")
    server.publish()

directory = sys.argv[1]
loop = Loop(fail)
journal = Journal(f"{directory}/exits.jsonl", limit=4096)
requests = Requests(store=Store(limit=64), journal=journal, status=lambda: {"boot": {}})
say = lambda text: print(text, flush=True)
server = Server(loop, requests, journal, say, lambda action: say(action.value))
server.listen(f"{directory}/init.sock")
loop.watch(0, READ, put_exit)
say("listening")
while True:
    loop.run_once()
"""


class Pid1:
    """PID 1's own server, in a process of its own; exits are told to it on its input."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "init.sock"
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(directory)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.said() == "listening"

    def exits(self, pid: int, code: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pid} {code}\n")
        self._process.stdin.flush()

    def said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0


@pytest.fixture
def pid1(tmp_path: Path) -> Iterator[Pid1]:
    pid1 = Pid1(tmp_path)
    yield pid1
    pid1.stop()


@pytest.fixture
async def client(pid1: Pid1) -> AsyncIterator[Pid1Client]:
    client = Pid1Client(pid1.path)
    yield client
    client.close()


async def test_descriptors_are_kept_listed_given_back_and_dropped(client: Pid1Client) -> None:
    names = [f"streams/c1/-/{number:02}" for number in range(40)]
    mine = os.memfd_create("kept")
    for name in names:
        await client.store(name, mine)
    os.write(mine, b"abc")
    os.lseek(mine, 1, os.SEEK_SET)
    assert await client.names("streams/c1/") == tuple(names)
    found = await client.fetch([*names, "streams/c1/-/other"])
    assert list(found) == names
    assert os.read(found[names[0]], 10) == b"bc"
    for fd in (mine, *found.values()):
        os.close(fd)
    await client.drop(names)
    await client.drop(names)
    assert await client.names("") == ()


async def test_a_full_store_is_told_by_its_errno(client: Pid1Client) -> None:
    mine = os.memfd_create("kept")
    with pytest.raises(AgentError) as caught:  # noqa: PT012 - the 65th is the one
        for number in range(65):
            await client.store(f"n{number}", mine)
    os.close(mine)
    assert caught.value.fields["errno"] == "EMFILE"


async def test_exits_before_and_after_the_watcher_came(pid1: Pid1, client: Pid1Client) -> None:
    pid1.exits(41, 1)
    exits = ExitWatcher(client)
    await exits.start()
    early = await exits.wait(Expectation(pid=41, cgroup="/pods/s/c1", after=0))
    assert (early.code, early.at, early.comm) == (1, 1.5, "sh")
    note = await exits.note()
    pid1.exits(42, 2)
    late = await exits.wait(Expectation(pid=42, cgroup="/pods/s/c1", after=note))
    assert (late.sequence, late.code) == (2, 2)
    await exits.stop()


async def test_power_reaches_pid1(pid1: Pid1, client: Pid1Client) -> None:
    await client.power("reboot")
    assert pid1.said() == "reboot"
    with pytest.raises(AgentError, match="off, reboot"):
        await client.power("nap")
