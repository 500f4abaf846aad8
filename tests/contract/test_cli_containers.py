"""The commands for what runs, as programs, with a VM's daemon that is a fake."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from google.protobuf.message import Message

from innkeeper.v1 import containers_pb2, processes_pb2, sandbox_pb2, types_pb2
from tests.command_line import INNKEEPER, Innkeeper
from tests.fakes.vm_daemon import FakeGuest, running_vm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.contract, pytest.mark.containers]

RUNNING = containers_pb2.CONTAINER_STATE_RUNNING
STOPPED = containers_pb2.CONTAINER_STATE_STOPPED
STDOUT, STDERR = types_pb2.STREAM_KIND_STDOUT, types_pb2.STREAM_KIND_STDERR
MIB = 1 << 20
Call = TypeVar("Call", bound=Message)
OUT_OF_MEMORY = types_pb2.ExitStatus(
    code=137,
    signal=9,
    cause=types_pb2.END_CAUSE_OUT_OF_MEMORY,
    out_of_memory=types_pb2.OutOfMemory(victim="stress", pid=42, limit_bytes=64 * MIB, cgroup="/"),
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "INNKEEPER_STATE_DIR": str(tmp_path / "vms"), "TERM": "xterm"}


@pytest.fixture
async def guest(environment: dict[str, str], tmp_path: Path) -> AsyncIterator[FakeGuest]:
    (tmp_path / "vms").mkdir(mode=0o700)
    guest = FakeGuest()
    async with running_vm(tmp_path / "vms", guest):
        yield guest


@pytest.fixture
def innkeeper(environment: dict[str, str]) -> Innkeeper:
    return Innkeeper(environment=environment)


class Screen:
    """A terminal with a program in it: our end, and what came out of it."""

    def __init__(self, ours: int, theirs: int, environment: dict[str, str]) -> None:
        self.ours, self.theirs = ours, theirs
        self._environment = environment
        self.seen = b""

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(*INNKEEPER, *words),
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env=self._environment,
        )

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    async def until(self, text: bytes) -> None:
        """Reads until `text` was there; the test's own timeout is the bound."""
        while text not in self.seen:
            self.seen += await asyncio.to_thread(os.read, self.ours, 4096)

    @property
    def mode(self) -> list[object]:
        return list(termios.tcgetattr(self.theirs))


@contextmanager
def screen(environment: dict[str, str]) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    try:
        yield Screen(ours, theirs, environment)
    finally:
        os.close(ours)
        os.close(theirs)


def calls(guest: FakeGuest, kind: type[Call]) -> list[Call]:
    return [each for each in guest.lives.calls if isinstance(each, kind)]


def status(container: str, **more: object) -> containers_pb2.ContainerStatus:
    return containers_pb2.ContainerStatus(**{"id": container, "state": RUNNING, **more})  # type: ignore[arg-type]


async def test_a_terminal_is_left_by_keys_and_the_process_goes_on(
    guest: FakeGuest, environment: dict[str, str]
) -> None:
    """What was typed before the keys reaches the process, and the keys do not."""
    guest.process.echo = guest.process.terminal = True
    with screen(environment) as shown:
        before = shown.mode
        process = await shown.start("exec", "-it", "--id", "one", "web", "main", "--", "sh")
        assert await guest.process.sizes.get() == (33, 99)
        shown.type(b"ls\n\x10x\x10\x11more")
        await shown.until(b"innkeeper attach web main/one")
        assert await process.wait() == 0
        assert shown.mode == before
    assert bytes(guest.process.received) == b"ls\n\x10x"
    assert guest.signals.empty()
    assert not guest.process.input_closed


async def test_detach_keys_can_be_others_or_none(
    guest: FakeGuest, environment: dict[str, str]
) -> None:
    guest.process.echo = guest.process.terminal = True
    with screen({**environment, "INNKEEPER_DETACH_KEYS": "ctrl-],q"}) as shown:
        process = await shown.start("exec", "-t", "web", "main", "--", "sh")
        await guest.process.sizes.get()
        shown.type(b"\x10\x11")
        await shown.until(b"\x10\x11")
        shown.type(b"\x1dq")
        assert await process.wait() == 0


async def test_attach_comes_back_to_a_terminal(
    guest: FakeGuest, environment: dict[str, str]
) -> None:
    """A size that is not ours comes first, so that a program draws its screen anew."""
    guest.lives.statuses = [status("main", terminal=True)]
    guest.process.echo = guest.process.terminal = True
    guest.process.received += b"$ kept\r\n"
    with screen(environment) as shown:
        process = await shown.start("attach", "web")
        await shown.until(b"$ kept\r\n")
        assert await guest.process.sizes.get() == (33, 99)
        shown.type(b"\x10\x11")
        assert await process.wait() == 0
        await shown.until(b"attach again with: innkeeper attach web main")
    (other,) = calls(guest, processes_pb2.ResizeRequest)
    assert other == processes_pb2.ResizeRequest(
        process=types_pb2.ProcessRef(container_id="main"),
        size=types_pb2.WindowSize(rows=34, columns=99),
    )


async def test_a_terminal_that_is_stopped_and_goes_on_is_raw_again(
    guest: FakeGuest, environment: dict[str, str]
) -> None:
    guest.process.echo = guest.process.terminal = True
    with screen(environment) as shown:
        before = shown.mode
        process = await shown.start("exec", "-t", "web", "main", "--", "sh")
        await guest.process.sizes.get()
        raw = shown.mode
        process.send_signal(signal.SIGTSTP)
        await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert shown.mode == before
        fcntl.ioctl(shown.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        process.send_signal(signal.SIGCONT)
        assert await guest.process.sizes.get() == (40, 120)
        assert shown.mode == raw
        shown.type(b"\x10\x11")
        assert await process.wait() == 0
        assert shown.mode == before


async def test_attach_only_looks_without_input(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    """The process's input stays open, and what is typed here is not for it."""
    guest.lives.statuses = [status("main")]
    guest.process.stdout = b"out\n"
    guest.process.exit_code = 5
    done = await innkeeper("attach", "-n", "web", "main", stdin=b"not for it")
    assert (done.code, done.out) == (5, b"out\n")
    assert not guest.process.input_closed
    assert not guest.process.received


async def test_attach_begins_with_what_is_kept_of_the_output(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.statuses = [status("main")]
    guest.process.stdout, guest.process.kept = b"forgotten\nkept\n", 10
    done = await innkeeper("attach", "-n", "web", "main")
    assert (done.code, done.out, done.err) == (0, b"kept\n", "")


async def test_attach_passes_the_first_interrupt_on_and_the_second_leaves(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.statuses = [status("main")]
    guest.process.echo = True
    process = await innkeeper.start("attach", "web", "main")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"x")
    await process.stdout.readexactly(1)
    process.send_signal(signal.SIGINT)
    assert await guest.signals.get() == signal.SIGINT
    process.send_signal(signal.SIGUSR1)
    assert await guest.signals.get() == signal.SIGUSR1
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert b"main goes on" in err
    assert guest.signals.empty()


async def test_attach_tells_a_script_what_sigterm_did(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.statuses = [status("main")]
    guest.process.echo = True
    process = await innkeeper.start("attach", "web", "main")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(b"x")
    await process.stdout.readexactly(1)
    process.send_signal(signal.SIGTERM)
    told = await process.stderr.readline()
    assert told == b"SIGTERM was passed on to main; a second one leaves it running\n"
    assert await guest.signals.get() == signal.SIGTERM
    process.send_signal(signal.SIGTERM)
    await process.communicate()
    assert process.returncode == 128 + signal.SIGTERM


async def test_attach_without_a_terminal_there_says_how_to_leave(
    guest: FakeGuest, environment: dict[str, str]
) -> None:
    guest.lives.statuses = [status("main")]
    guest.process.stdout = b"out"
    with screen(environment) as shown:
        process = await shown.start("attach", "-n", "web", "main")
        await shown.until(b"Ctrl-C goes to main; a second one leaves it running")
        await process.wait()


async def test_attach_leaves_at_once_without_sig_proxy(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.statuses = [status("main")]
    guest.process.echo = True
    process = await innkeeper.start("attach", "--no-sig-proxy", "web", "main")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"x")
    await process.stdout.readexactly(1)
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert guest.signals.empty()


@pytest.mark.parametrize(
    ("container", "told"),
    [("nosuch", "there are: main, new"), ("new", "was created, and not started yet")],
)
async def test_attach_says_why_it_cannot(
    guest: FakeGuest, innkeeper: Innkeeper, container: str, told: str
) -> None:
    created = containers_pb2.CONTAINER_STATE_CREATED
    guest.lives.statuses = [status("main"), status("new", state=created)]
    done = await innkeeper("attach", "web", container)
    assert done.code == 125
    assert told in done.err


async def test_a_detached_exec_keeps_a_log_has_no_input_and_is_named(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.process.echo = True
    done = await innkeeper("exec", "-d", "--id", "job", "web", "main", "--", "cat")
    assert (done.code, done.out) == (0, b"main/job\n")
    assert guest.executed[0].exec_id == "job"
    assert guest.executed[0].streams.HasField("log")
    assert guest.process.input_closed


async def test_an_execs_variables_are_added_to_those_of_the_container(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    done = await innkeeper("exec", "-n", "-e", "A=1", "-e", "B=", "web", "main", "--", "true")
    assert done.code == 0
    assert "env" not in json.loads(guest.executed[0].process)
    assert list(guest.executed[0].more_environment) == ["A=1", "B="]


async def test_ps_shows_what_runs_and_with_a_all(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    ended = types_pb2.ExitStatus(code=3, cause=types_pb2.END_CAUSE_EXITED)
    guest.lives.statuses = [
        status("main", pid=77, arguments=["sh", "-c", "sleep 1; \x1b[2Jecho"]),
        status("old", state=STOPPED, exit=ended, arguments=["false"]),
        status("oom", state=STOPPED, exit=OUT_OF_MEMORY),
    ]
    running = (await innkeeper("ps", "web")).lines
    assert running[0].split() == ["ID", "STATE", "AGE", "PID", "COMMAND"]
    assert running[1].split(maxsplit=4) == ["main", "running", "-", "77", "sh -c 'sleep 1; echo'"]
    assert len(running) == 2
    everything = (await innkeeper("ps", "-a", "web")).lines
    assert everything[2].split() == ["old", "exited", "(3)", "-", "-", "false"]
    assert everything[3].startswith("oom   out of memory (137)")
    assert (await innkeeper("ps", "-aq", "web")).lines == ["main", "old", "oom"]
    found = json.loads((await innkeeper("ps", "-a", "--json", "web")).out)
    assert [each["state"] for each in found] == ["running", "stopped", "stopped"]
    assert found[2]["exit"]["out_of_memory"]["limit_bytes"] == 64 * MIB


async def test_ps_of_a_container_shows_its_processes(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.processes["main"] = [
        processes_pb2.ProcessInfo(
            pid=100,
            container_pid=1,
            parent_pid=50,
            process=types_pb2.ProcessRef(container_id="main"),
            name="sh",
            arguments=["sh"],
            state="S",
            cpu_micros=62_500_000,
            resident_bytes=2 * MIB,
            threads=1,
            terminal=136 << 8 | 3,
        ),
        processes_pb2.ProcessInfo(pid=101, container_pid=2, parent_pid=100, name="x", state="Z"),
    ]
    lines = (await innkeeper("ps", "web", "main")).lines
    assert " ".join(lines[1].split()) == "100 1 50 0 S 1:02.50 2 MiB - pts/3 main sh"
    assert " ".join(lines[2].split()) == "101 2 100 0 Z 0:00.00 0 B - - - [x]"


def figures(container: str, at: int, cpu: int) -> containers_pb2.ContainerStats:
    """`at` in seconds, `cpu` in milliseconds."""
    return containers_pb2.ContainerStats(
        id=container,
        at_unix_micros=at * 1_000_000,
        cpu=containers_pb2.CpuStats(usage_micros=cpu * 1000),
        memory=containers_pb2.MemoryStats(current=48 * MIB, inactive_file=16 * MIB, limit=64 * MIB),
        pids=containers_pb2.PidsStats(current=3, limit=2**64 - 1),
        network=[containers_pb2.InterfaceStats(name="lo", received_bytes=at * 1024)],
        io=[containers_pb2.IoStats(name="vda", write_bytes=at * 2048)],
    )


TWO_READINGS = [figures("main", 10, 1000), figures("main", 12, 2000)]


async def test_stats_once_has_cpu_percent_of_two_readings(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    """One second of CPU time in two is 50 %."""
    guest.lives.statuses = [status("main")]
    guest.lives.stats = TWO_READINGS
    head, row = (await innkeeper("stats", "--once", "web")).lines
    assert " ".join(head.split()) == "ID CPU % MEMORY LIMIT MEM % PIDS NET IN NET OUT READ WRITTEN"
    assert " ".join(row.split()) == "main 50.0 32 MiB 64 MiB 50.0 3 12 KiB 0 B 0 B 24 KiB"


async def test_stats_as_json_lines_over_a_lost_connection(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.statuses = [status("main")]
    guest.lives.stats = TWO_READINGS
    guest.lives.breaks = [1]
    process = await innkeeper.start("stats", "--json", "web")
    assert process.stdout is not None
    lines = [json.loads(await process.stdout.readline()) for _ in range(3)]
    process.terminate()
    await process.communicate()
    assert [each["cpu_percent"] for each in lines] == [None, None, 50.0]
    assert lines[2]["cpu"]["usage_micros"] == 2_000_000
    assert lines[2]["pids"]["limit"] is None
    assert lines[2]["memory_used_bytes"] == 32 * MIB


async def test_stats_to_a_pipe_are_lines_with_tabs(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.lives.stats = TWO_READINGS
    process = await innkeeper.start("stats", "web", "main")
    assert process.stdout is not None
    lines = [(await process.stdout.readline()).decode().split("\t") for _ in range(3)]
    process.terminate()
    await process.communicate()
    assert lines[0][:3] == ["ID", "CPU %", "MEMORY"]
    assert [line[:3] for line in lines[1:]] == [["main", "-", "32 MiB"], ["main", "50.0", "32 MiB"]]


async def test_top_once_has_rates_and_the_processes_of_one_container(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.statuses = [status("main")]
    guest.lives.stats = TWO_READINGS
    guest.lives.processes["main"] = [
        processes_pb2.ProcessInfo(pid=9, name="sh", arguments=["sh"], state="S", threads=2)
    ]
    lines = [" ".join(line.split()) for line in (await innkeeper("top", "--once", "web")).lines]
    assert lines[1] == "main running 50.0 32 MiB 64 MiB 50.0 3 1 KiB 0 B 0 B 2 KiB"
    assert lines[3] == "PID UID STATE CPU % CPU MEMORY THREADS COMMAND"
    assert lines[4].split()[:3] == ["9", "0", "S"]


async def test_top_fills_the_screen_until_q(guest: FakeGuest, environment: dict[str, str]) -> None:
    """The alternate screen (xterm's ctlseqs, 1049) is left again, and the keys are as before."""
    guest.lives.statuses = [status("main")]
    guest.lives.stats = TWO_READINGS
    with screen(environment) as shown:
        before = shown.mode
        process = await shown.start("top", "web")
        await shown.until(b"50.0")
        shown.type(b"m")
        await shown.until(b"by memory")
        shown.type(b"q")
        assert await process.wait() == 0
        await shown.until(b"\x1b[?1049l")
        assert shown.mode == before


async def test_top_that_is_interrupted_leaves_the_terminal_as_it_was(
    guest: FakeGuest, environment: dict[str, str]
) -> None:
    guest.lives.statuses = [status("main")]
    guest.lives.stats = TWO_READINGS
    with screen(environment) as shown:
        before = shown.mode
        process = await shown.start("top", "web")
        await shown.until(b"50.0")
        process.terminate()
        await shown.until(b"\x1b[?1049l")
        assert await process.wait() == 128 + signal.SIGTERM
        assert shown.mode == before


async def test_top_needs_a_terminal(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    done = await innkeeper("top", "web")
    assert done.code == 125
    assert "innkeeper top --once web" in done.err


def piece(
    stream: types_pb2.StreamKind.ValueType, offset: int, at: int, data: bytes
) -> processes_pb2.LogsResponse:
    return processes_pb2.LogsResponse(stream=stream, offset=offset, at_unix_micros=at, data=data)


LOG = [
    piece(STDOUT, 0, 1_000_000, b"one\ntw"),
    piece(STDERR, 0, 1_500_000, b"oh\n"),
    piece(STDOUT, 6, 2_000_000, b"o\n"),
    piece(STDOUT, 8, 2_000_000, b"three"),
]


async def test_logs_come_whole_and_each_stream_as_ours(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.log = LOG
    done = await innkeeper("logs", "--tail", "7", "--since", "1970-01-01T00:00:01Z", "web", "main")
    assert (done.code, done.out, done.err) == (0, b"one\ntwo\nthree", "oh\n")
    (asked,) = calls(guest, processes_pb2.LogsRequest)
    assert (asked.tail_lines, asked.since_unix_micros, asked.follow) == (7, 1_000_000, False)


async def test_logs_miss_and_repeat_nothing_over_a_lost_connection(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    """The second call begins with the time of the last piece, which comes once more."""
    guest.lives.log = LOG
    guest.lives.breaks = [3]
    done = await innkeeper("logs", "-f", "--tail", "9", "web", "main/job")
    assert (done.code, done.out, done.err) == (0, b"one\ntwo\nthree", "oh\n")
    asked = calls(guest, processes_pb2.LogsRequest)
    assert [each.HasField("tail_lines") for each in asked] == [True, False]


async def test_lines_of_logs_have_the_time_of_their_beginning(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.log = LOG
    done = await innkeeper("logs", "-t", "web", "main")
    first, second = "1970-01-01T00:00:01.000000Z", "1970-01-01T00:00:02.000000Z"
    assert done.lines == [f"{first} one", f"{first} two", f"{second} three"]
    assert done.err == "1970-01-01T00:00:01.500000Z oh\n"


async def test_logs_of_a_process_without_one_say_where_its_output_is(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.has_log = False
    done = await innkeeper("logs", "web", "main")
    assert done.code == 125
    assert "innkeeper attach --no-stdin web main" in done.err


async def test_wait_prints_codes_and_why_and_ends_with_the_first_failure(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    done_ = types_pb2.ExitStatus(code=0, cause=types_pb2.END_CAUSE_EXITED)
    guest.lives.ends = {
        "main": processes_pb2.WaitResponse(exit=done_),
        "main/job": processes_pb2.WaitResponse(exit=OUT_OF_MEMORY, stderr_tail=b"no room"),
    }
    guest.lives.breaks = [0]
    done = await innkeeper("wait", "--stderr", "web", "main", "main/job")
    assert (done.code, done.lines) == (137, ["0", "137"])
    assert done.err.splitlines() == [
        "no room",
        "main/job: out of memory: the kernel killed stress (pid 42) at the limit of 64 MiB",
    ]


async def test_wait_gives_up_in_time(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    done = await innkeeper("wait", "--timeout", "0.2", "web", "main")
    assert done.code == 125
    assert "not all have ended within 0.2 s: main" in done.err


async def test_wait_as_json(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.lives.ends = {"main": processes_pb2.WaitResponse(exit=OUT_OF_MEMORY)}
    done = await innkeeper("wait", "--json", "web", "main")
    (ended,) = json.loads(done.out)
    assert (done.code, ended["id"], ended["exit"]["cause"]) == (137, "main", "out-of-memory")


async def test_kill_takes_names_and_numbers(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    assert (await innkeeper("kill", "web", "main")).lines == ["main"]
    await innkeeper("kill", "-s", "sighup", "web", "main/job")
    await innkeeper("kill", "-s", "RTMIN+3", "--all", "web", "main")
    await innkeeper("kill", "-s", "9", "web", "main")
    main = types_pb2.ProcessRef(container_id="main")
    job = types_pb2.ProcessRef(container_id="main", exec_id="job")
    assert calls(guest, processes_pb2.SignalRequest) == [
        processes_pb2.SignalRequest(process=main, name="KILL"),
        processes_pb2.SignalRequest(process=job, name="HUP"),
        processes_pb2.SignalRequest(process=main, name="RTMIN+3", all_processes=True),
        processes_pb2.SignalRequest(process=main, signal=9),
    ]


async def test_what_works_is_told_and_what_fails_too(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.unknown = {"b"}
    done = await innkeeper("pause", "web", "a", "b", "c")
    assert (done.code, done.lines) == (125, ["a", "c"])
    assert done.err.splitlines() == [
        "innkeeper: no container b",
        "  reason: UNKNOWN_CONTAINER",
        "  hint: innkeeper ps -a web shows those that are",
    ]
    assert (await innkeeper("resume", "web", "a")).lines == ["a"]
    assert (await innkeeper("unpause", "web", "a")).lines == ["a"]


async def test_rm_leaves_what_runs_alone_unless_told(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.statuses = [status("main"), status("old", state=STOPPED)]
    guest.lives.unknown = {"nosuch"}
    done = await innkeeper("rm", "web", "main", "old")
    assert (done.code, done.lines) == (125, ["old"])
    assert "innkeeper rm -f web main" in done.err
    assert (await innkeeper("rm", "-f", "web", "main", "nosuch")).code == 0
    assert (await innkeeper("rm", "--time", "10", "web", "main")).code == 0
    removed = calls(guest, containers_pb2.RemoveContainerRequest)
    told = [(each.id, each.grace_seconds, each.timeout_seconds) for each in removed]
    # Those of one command go at once, in whatever order.
    assert (told[0], told[3]) == (("old", 0, 0), ("main", 10, 40))
    assert sorted(told[1:3]) == [("main", 0, 0), ("nosuch", 0, 0)]


async def test_update_names_only_what_changes(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    done = await innkeeper("update", "--cpus", "1.5", "--memory", "max", "web", "main")
    assert (done.code, done.lines) == (0, ["main"])
    (asked,) = calls(guest, containers_pb2.UpdateContainerRequest)
    assert json.loads(asked.resources) == {
        "cpu": {"quota": 150_000, "period": 100_000},
        "memory": {"limit": -1},
    }


async def test_update_below_what_is_used_is_told(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.lives.stats = [figures("main", 0, 0)]
    done = await innkeeper("update", "-m", "4M", "--memory-swap", "-1", "web", "main")
    assert (done.code, done.lines) == (0, ["main"])
    assert done.err.startswith("main: the new limit of memory, 4 MiB, is less than the ")
    done = await innkeeper("update", "-m", "1G", "--pids-limit", "9", "web", "main")
    assert (done.code, done.err) == (0, "")


async def test_exec_without_dashes_is_understood_where_there_is_such_a_container(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    done = await innkeeper("exec", "web", "main", "ls", "-l")
    assert (done.code, done.err) == (0, "")
    (asked,) = guest.executed
    assert (asked.container_id, json.loads(asked.process)["args"]) == ("main", ["ls", "-l"])
    done = await innkeeper("exec", "-n", "web", "ls", "-l")
    assert (done.code, len(guest.executed)) == (2, 1)
    assert "VM web has no container ls; did you mean: innkeeper exec -n web -- ls -l" in done.err


def event(number: int, kind: str, subject: str, **details: str) -> sandbox_pb2.Event:
    return sandbox_pb2.Event(
        sequence=number,
        at_unix_micros=number * 1_000_000,
        kind=sandbox_pb2.EventKind.Value(f"EVENT_KIND_{kind}"),
        subject=subject,
        details=details,
    )


HAPPENED = [
    event(5, "CONTAINER_CREATED", "main"),
    event(6, "CONTAINER_STARTED", "main"),
    event(7, "HEALTH_CHANGED", "", status="SERVING", reason="all is well"),
    event(8, "CONTAINER_REMOVED", "other"),
]


async def test_events_are_lines_of_their_own_words(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    gone = event(9, "PROCESS_EXITED", "main/job", code="137")
    gone.exit.CopyFrom(OUT_OF_MEMORY)
    guest.lives.events = [*HAPPENED, gone]
    done = await innkeeper("events", "--since", "6", "--no-follow", "web")
    killed = "out of memory: the kernel killed stress (pid 42) at the limit of 64 MiB"
    assert done.lines == [
        "7 1970-01-01T00:00:07.000000Z health-changed - reason='all is well' status=SERVING",
        "8 1970-01-01T00:00:08.000000Z container-removed other",
        f"9 1970-01-01T00:00:09.000000Z process-exited main/job {killed}",
    ]


async def test_events_go_on_over_a_lost_connection_by_their_numbers(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.lives.events = HAPPENED
    guest.lives.breaks = [2, 1]
    done = await innkeeper("events", "--since", "0", "--no-follow", "--json", "web")
    assert [json.loads(line)["sequence"] for line in done.lines] == [5, 6, 7, 8]
    asked = calls(guest, sandbox_pb2.WatchRequest)
    assert [each.after_sequence for each in asked] == [0, 6, 7]


async def test_events_that_are_gone_are_told(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.lives.events = HAPPENED
    done = await innkeeper("events", "--since", "2", "--no-follow", "web")
    assert [line.split()[0] for line in done.lines] == ["5", "6", "7", "8"]
    assert "events 3 to 4 are no longer kept" in done.err


async def test_events_are_filtered(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.lives.events = HAPPENED
    words = ("events", "--since", "0", "--no-follow", "--filter", "container=main")
    done = await innkeeper(*words, "--filter", "kind=container-started", "web")
    assert [line.split()[0] for line in done.lines] == ["6"]
    done = await innkeeper("events", "--filter", "kind=nosuch", "web")
    assert done.code == 2
    assert "process-exited" in done.err


async def test_events_from_now_on_end_like_a_local_command_when_nobody_reads(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    """`innkeeper events | head -1`."""
    guest.lives.events = HAPPENED
    process = await innkeeper.start("events", "--since", "0", "web")
    assert process.stdout is not None
    await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == 128 + signal.SIGINT


async def test_a_shell_is_told_what_there_is(guest: FakeGuest, environment: dict[str, str]) -> None:
    """The protocol of click's completion for bash."""

    async def offered(line: str) -> list[str]:
        words = line.split(" ")
        process = await asyncio.create_subprocess_exec(
            # By its own name, which is that of the variables.
            str(Path(sys.executable).parent / "innkeeper"),
            stdout=asyncio.subprocess.PIPE,
            env={
                **environment,
                "_INNKEEPER_COMPLETE": "complete_bash",
                "COMP_WORDS": line,
                "COMP_CWORD": str(len(words) - 1),
            },
        )
        out, _ = await process.communicate()
        return out.decode().split()

    guest.lives.statuses = [status("main"), status("other")]
    assert await offered("innkeeper logs w") == ["web"]
    assert await offered("innkeeper logs web ma") == ["main"]
    assert await offered("innkeeper exec web ot") == ["other"]
    assert await offered("innkeeper kill --signal US") == ["USR1", "USR2"]
