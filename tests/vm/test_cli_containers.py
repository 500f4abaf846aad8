"""The commands for what runs, on a real VM: terminals, figures, logs, ends, events."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import secrets
import signal
import struct
import termios
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import pytest

from innkeeper.v1 import containers_pb2
from tests.command_line import INNKEEPER, Innkeeper

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.vm.guest import Guest

pytestmark = [pytest.mark.vm, pytest.mark.containers]

MIB = 1 << 20


@pytest.fixture
def innkeeper() -> Innkeeper:
    return Innkeeper(environment=os.environ)


@asynccontextmanager
async def running(guest: Guest, script: str) -> AsyncIterator[str]:
    """A container of a name of its own, for as long as the block lasts."""
    name = await guest.start(script, id=f"cli-{secrets.token_hex(4)}")
    try:
        yield name
    finally:
        answer = await guest.containers.List(containers_pb2.ListContainersRequest())
        left = {each.id for each in answer.containers}
        if name in left:
            await guest.remove(name)


class Window:
    """A terminal of 33 lines of 99 characters, and what was shown in it."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(33, 99)
        self._shown = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    async def until(self, pattern: bytes) -> None:
        """Reads until the pattern was shown, and forgets all up to it; the test's own
        timeout is the bound."""
        while not (found := re.search(pattern, self._shown)):
            self._shown += await asyncio.to_thread(os.read, self.ours, 4096)
        self._shown = self._shown[found.end() :]

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(*INNKEEPER, *words), stdin=self.theirs, stdout=self.theirs, stderr=self.theirs
        )

    @property
    def mode(self) -> list[object]:
        return list(termios.tcgetattr(self.theirs))


@contextmanager
def window() -> Iterator[Window]:
    made = Window()
    try:
        yield made
    finally:
        os.close(made.ours)
        os.close(made.theirs)


async def test_a_terminal_is_left_and_found_again(guest: Guest) -> None:
    """The shell lives on with its variables; its terminal follows the size of ours."""
    vm = guest.vm.name
    async with running(guest, "sleep 600") as name:
        with window() as shown:
            before = shown.mode
            process = await shown.start("exec", "-it", "--id", "sh", vm, name, "--", "sh")
            shown.type(b"X=4; stty size\n")
            await shown.until(rb"33 99\r\n")
            shown.resize(40, 120)
            process.send_signal(signal.SIGWINCH)
            # The size goes on its own way beside the keys.
            shown.type(b"until stty size | grep 120; do sleep 0.1; done\n")
            await shown.until(rb"40 120\r\n")
            shown.type(b"\x10\x11")
            await shown.until(rb"innkeeper attach \S+ (\S+/sh)")
            assert await process.wait() == 0
            assert shown.mode == before
        with window() as shown:
            process = await shown.start("attach", vm, f"{name}/sh")
            shown.type(b"echo $X$X\n")
            await shown.until(rb"\r\n44\r\n")
            shown.type(b"exit 3\n")
            assert await process.wait() == 3


async def test_a_containers_first_process_is_attached_to(
    guest: Guest, innkeeper: Innkeeper
) -> None:
    """What it wrote before comes first; two may look at the same time."""
    async with running(guest, "echo before; read line; echo got $line; exit 5") as name:
        looker = asyncio.create_task(innkeeper("attach", "--no-stdin", guest.vm.name, name))
        done = await innkeeper("attach", guest.vm.name, name, stdin=b"typed\n")
        assert (done.code, done.out) == (5, b"before\ngot typed\n"), done.err
        assert (await looker).out == b"before\ngot typed\n"


async def test_figures_of_what_runs(guest: Guest, innkeeper: Innkeeper) -> None:
    vm = guest.vm.name
    async with running(guest, "while :; do :; done") as name:
        (row,) = [line for line in (await innkeeper("ps", vm)).lines if line.startswith(name)]
        assert row.split()[1] == "running"
        assert row.endswith("sh -c 'while :; do :; done'")
        (process,) = json.loads((await innkeeper("ps", "--json", vm, name)).out)
        assert (process["container_pid"], process["process"]["container_id"]) == (1, name)
        done = await innkeeper("update", "--memory", "64M", "--pids", "50", vm, name)
        assert done.code == 0, done.err
        done = await innkeeper("stats", "--once", "--json", vm, name)
        figures = json.loads(done.out)
        assert figures["memory"]["limit"] == 64 * MIB
        assert figures["pids"]["limit"] == 50
        assert 0 < figures["memory_used_bytes"] < 64 * MIB
        # One of two CPUs; how much of it the host gives is its own affair.
        assert 1 < figures["cpu_percent"] < 150
        head, row, _, columns, *processes = (await innkeeper("top", "--once", vm, name)).lines
        assert head.split()[:2] == ["ID", "STATE"]
        assert row.split()[:2] == [name, "running"]
        assert columns.split()[0] == "PID"
        assert len(processes) == 1


async def test_top_goes_on_until_q(guest: Guest) -> None:
    async with running(guest, "sleep 600") as name:
        with window() as shown:
            process = await shown.start("top", "--interval", "0.5", guest.vm.name, name)
            await shown.until(rb"sleep 600")
            shown.type(b"q")
            assert await process.wait() == 0


async def test_a_detached_process_is_followed_waited_for_and_killed(
    guest: Guest, innkeeper: Innkeeper
) -> None:
    vm = guest.vm.name
    async with running(guest, "sleep 600") as name:
        script = "for i in 1 2 3; do echo line $i; echo error $i >&2; done; cat; exit 4"
        done = await innkeeper("exec", "-d", "--id", "job", vm, name, "--", "sh", "-c", script)
        assert (done.code, done.out) == (0, f"{name}/job\n".encode()), done.err
        done = await innkeeper("logs", "-f", vm, f"{name}/job")
        assert (done.code, done.lines) == (0, ["line 1", "line 2", "line 3"]), done.err
        assert done.err == "error 1\nerror 2\nerror 3\n"
        done = await innkeeper("wait", "--stderr", vm, f"{name}/job")
        assert (done.code, done.lines) == (4, ["4"])
        assert done.err == "error 1\nerror 2\nerror 3\n"
        done = await innkeeper("logs", "--tail", "1", "--no-stderr", "-t", vm, f"{name}/job")
        assert re.fullmatch(r"20\S+T\S+Z line 3", done.lines[0])
        await innkeeper("exec", "-d", "--id", "idle", vm, name, "--", "sleep", "600")
        waiting = asyncio.create_task(innkeeper("wait", "--json", vm, f"{name}/idle"))
        assert (await innkeeper("kill", "-s", "term", vm, f"{name}/idle")).code == 0
        done = await waiting
        (ended,) = json.loads(done.out)
        assert (done.code, ended["exit"]["signal"]) == (128 + signal.SIGTERM, signal.SIGTERM)
        assert ended["exit"]["cause"] == "killed-by-agent"


async def test_a_life_in_events(guest: Guest, innkeeper: Innkeeper) -> None:
    """Paused, resumed, left alone by `rm`, ended by `rm -f`: all of it is told, in order."""
    vm = guest.vm.name
    async with running(guest, "sleep 600") as name:
        assert (await innkeeper("pause", vm, name)).lines == [name]
        (row,) = [line for line in (await innkeeper("ps", vm)).lines if line.startswith(name)]
        assert row.split()[1] == "paused"
        assert (await innkeeper("unpause", vm, name)).lines == [name]
        done = await innkeeper("rm", vm, name)
        assert done.code == 125
        assert f"innkeeper rm -f {vm} {name}" in done.err
        assert (await innkeeper("rm", "-f", vm, name)).lines == [name]
        done = await innkeeper("wait", vm, name)
        assert (done.code, done.lines) == (137, ["137"]), done.err
        words = ("events", "--since", "5m", "--no-follow", "--filter", f"container={name}")
        told = [line.split()[2] for line in (await innkeeper(*words, vm)).lines]
        assert told == [
            *("container-created", "container-started", "container-paused"),
            *("container-resumed", "process-exited", "container-removed"),
        ]
