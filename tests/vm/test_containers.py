"""Containers under the real crun and kernel: exits, streams, terminals, signals, what is left."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import processes_pb2_grpc
from innkeeper.v1 import types_pb2 as types
from tests.vm.attachment import STDERR, STDOUT, Attachment
from tests.vm.guest import PATH, PROBE, Finished, Guest, create_request, reason, refused
from tests.vm.observer import Observer, observing

pytestmark = [pytest.mark.vm, pytest.mark.containers]

SOAK = bool(os.environ.get("INNKEEPER_SOAK"))
MIB = 1 << 20
_EXECS = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def box(guest: Guest) -> AsyncIterator[str]:
    """A container for execs, whose first process takes in orphans as an init does."""
    name = await guest.start("while :; do sleep 1; done")
    yield name
    await guest.remove(name)


@pytest_asyncio.fixture(loop_scope="session")
async def observer(guest: Guest) -> AsyncIterator[Observer]:
    async with observing(guest) as running:
        yield running


def ref(name: str, exec_id: str = "") -> types.ProcessRef:
    return types.ProcessRef(container_id=name, exec_id=exec_id)


async def added(guest: Guest, box: str, script: str, **process: Any) -> types.ProcessRef:
    """A process that exec has started in the container."""
    words = {"args": ["sh", "-c", script], "cwd": "/", **process}
    request = processes.ExecRequest(
        container_id=box, exec_id=f"e{next(_EXECS)}", process=json.dumps(words).encode()
    )
    await guest.processes.Exec(request)
    return ref(box, request.exec_id)


async def done(guest: Guest, box: str, script: str, **process: Any) -> Finished:
    """What such a process came to."""
    return await guest.follow(await added(guest, box, script, **process))


async def attached(guest: Guest, process: types.ProcessRef, **offsets: Any) -> Attachment:
    return await Attachment(guest.processes, process=process, **offsets).open()


async def signal(guest: Guest, process: types.ProcessRef, number: int, **more: Any) -> None:
    request = processes.SignalRequest(process=process, signal=number, **more)
    await guest.processes.Signal(request)


async def state_of(guest: Guest, name: str) -> containers.ContainerStatus | None:
    listed = await guest.containers.List(containers.ListContainersRequest())
    return next((each for each in listed.containers if each.id == name), None)


# Life and exits.


async def test_a_life_from_create_to_remove(guest: Guest) -> None:
    created = await guest.containers.Create(create_request("life", "read line; exit 42"))
    assert created.state == containers.CONTAINER_STATE_CREATED
    started = await guest.containers.Start(containers.StartContainerRequest(id="life"))
    assert (started.state, started.pid) == (containers.CONTAINER_STATE_RUNNING, created.pid)
    waiting = [asyncio.ensure_future(guest.wait("life")) for _ in range(3)]
    attachment = await attached(guest, ref("life"))
    await attachment.send(b"\n")
    assert (await attachment.to_the_end()).code == 42
    assert {(await each).code for each in waiting} == {42}
    stopped = await state_of(guest, "life")
    assert stopped is not None
    assert stopped.state == containers.CONTAINER_STATE_STOPPED
    assert stopped.exit.code == 42
    await guest.remove("life")
    assert await state_of(guest, "life") is None
    # A host that asks a moment too late still gets it.
    assert (await guest.wait("life")).code == 42


async def test_exit_codes_of_added_processes(guest: Guest, box: str) -> None:
    """POSIX's shell says 127 for a command that is not there; signals are 128 and their number."""
    expected = {
        "exit 0": (0, 0),
        "exit 1": (1, 0),
        "exit 42": (42, 0),
        "exit 255": (255, 0),
        "no-such-command": (127, 0),
        "kill -TERM $$": (128 + 15, 15),
        "kill -KILL $$": (128 + 9, 9),
        "kill -SEGV $$": (128 + 11, 11),
    }
    for script, end in expected.items():
        status = await _exit(guest, await added(guest, box, script))
        assert (status.code, status.signal) == end, script


async def _exit(guest: Guest, process: types.ProcessRef) -> types.ExitStatus:
    return await guest.wait(process.container_id, process.exec_id)


async def test_signals_from_outside_reach_the_first_process(guest: Guest) -> None:
    """As they are: pid 1 of a pid namespace ignores what it has no handler for, but not KILL."""
    name = await guest.start("trap 'exit 3' USR1; echo ready; while :; do sleep 0.1; done")
    attachment = await attached(guest, ref(name))
    await attachment.until_text(b"ready\n")
    await signal(guest, ref(name), 15)
    await signal(guest, ref(name), 10)
    assert (await attachment.to_the_end()).code == 3
    # To one that has ended it goes to nobody, and that is fine.
    await signal(guest, ref(name), 15)
    assert (await guest.wait(name)).code == 3
    await guest.remove(name)


async def test_a_signal_to_all_reaches_all(guest: Guest) -> None:
    """Also when the first process is gone already and others are left (case 92)."""
    shared = {"namespaces": [{"type": "mount"}]}
    name = await guest.start("sleep 300 & exec sleep 300", linux=shared)
    others = [await added(guest, name, "exec sleep 300") for _ in range(3)]
    await signal(guest, ref(name), 9)
    assert (await guest.wait(name)).signal == 9
    await signal(guest, ref(name), 9, all_processes=True)
    assert [(await _exit(guest, each)).signal for each in others] == [9, 9, 9]
    await guest.remove(name)


@pytest.mark.parametrize("number", ["TERM", "KILL"])
@pytest.mark.parametrize("whom", ["0", "-1"])
async def test_a_kill_of_everybody_harms_nobody_outside(
    guest: Guest, box: str, number: str, whom: str
) -> None:
    """`kill -TERM 0` in a container once ended the agent, whose group it was in (case 91)."""
    before = await guest.describe()
    victim = await guest.start("sleep 300")
    await done(guest, victim, f"kill -{number} {whom}; kill -{number} -- {whom}")
    after = await guest.describe()
    assert (after.agent_pid, after.agent_restarts) == (before.agent_pid, before.agent_restarts)
    running = await state_of(guest, box)
    assert running is not None
    assert running.state == containers.CONTAINER_STATE_RUNNING
    await guest.remove(victim)


async def test_removal_ends_one_that_ignores_sigterm(guest: Guest) -> None:
    name = await guest.start("trap '' TERM; echo ready; while :; do sleep 1; done")
    attachment = await attached(guest, ref(name))
    await attachment.until_text(b"ready\n")
    await guest.containers.Remove(containers.RemoveContainerRequest(id=name, grace_seconds=0.3))
    assert (await guest.wait(name)).signal == 9


async def test_removal_lets_one_end_by_itself(guest: Guest) -> None:
    name = await guest.start("trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done")
    attachment = await attached(guest, ref(name))
    await attachment.until_text(b"ready\n")
    await guest.containers.Remove(containers.RemoveContainerRequest(id=name, grace_seconds=30))
    end = await guest.wait(name)
    assert (end.code, end.signal) == (5, 0)


async def test_what_is_not_there_or_has_ended_is_said(guest: Guest, box: str) -> None:
    name = await guest.start("exit 3")
    await guest.wait(name)
    missing = (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONTAINER")
    assert await refused(added(guest, "nobody", "true")) == missing
    assert await refused(signal(guest, ref("nobody"), 9)) == missing
    assert (
        await refused(guest.processes.Wait(processes.WaitRequest(process=ref("nobody")))) == missing
    )
    no_process = (grpc.StatusCode.NOT_FOUND, "UNKNOWN_PROCESS")
    assert await refused(signal(guest, ref(box, "nothing"), 9)) == no_process
    wrong = (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
    assert await refused(added(guest, name, "true")) == wrong
    await guest.remove(name)


async def test_environment_and_arguments_arrive_byte_for_byte(guest: Guest, box: str) -> None:
    """Newlines, control characters, text that is not ASCII (case 97)."""
    values = {
        "LINES": "a\nb",
        "TEXT": "\u00e9\u4e16",
        "CONTROL": "".join(map(chr, range(1, 32))),
        "EQUALS": "=x",
        "EMPTY": "",
        # The runtime would add one of its own.
        "HOME": "/",
    }
    env = [PATH, *(f"{name}={value}" for name, value in values.items())]
    words = ["cat", "/proc/self/environ", "/proc/self/cmdline"]
    whole = "".join(f"{each}\0" for each in (*env, *words)).encode()
    assert (await guest.run("", process={"args": words, "env": env})).stdout == whole
    assert (await done(guest, box, "", args=words, env=env)).stdout == whole


async def test_big_specifications(guest: Guest) -> None:
    """As long as the kernel's limit for one argument, and a mebibyte of environment (case 99)."""
    longest = "x" * 131_071
    env = [PATH, *(f"V{number}={'y' * 1000}" for number in range(1000))]
    args = ["sh", "-c", "echo ${#1}; env | wc -c", "sh", longest]
    finished = await guest.run("", process={"args": args, "env": env})
    length, size = map(int, finished.text.split())
    assert length == len(longest)
    assert size > MIB * 0.95


# Streams.


async def test_streams_are_separate_and_whole(guest: Guest, box: str) -> None:
    """The tail of a big output was lost when the process ended (case 85)."""
    finished = await done(
        guest, box, "echo error >&2; head -c 5000000 /dev/zero | tr '\\0' x; echo END; echo 2 >&2"
    )
    assert finished.code == 0
    assert finished.stdout == b"x" * 5_000_000 + b"END\n"
    assert finished.stderr == b"error\n2\n"


async def test_output_is_kept_until_somebody_reads(guest: Guest, box: str) -> None:
    """Waiting first and reading then gives every byte, every time."""
    for _ in range(100 if SOAK else 10):
        process = await added(guest, box, "echo hi")
        assert (await _exit(guest, process)).code == 0
        assert (await guest.follow(process)).stdout == b"hi\n"


async def test_a_mebibyte_waits_for_its_reader(guest: Guest, box: str) -> None:
    process = await added(guest, box, f"head -c {MIB} /dev/zero")
    assert (await _exit(guest, process)).code == 0
    assert (await guest.follow(process)).stdout == bytes(MIB)


async def test_four_mebibytes_through_cat(guest: Guest, box: str) -> None:
    """The reader comes late: input waits, other calls don't, and all comes back (case 86)."""
    data = os.urandom(MIB) * 4
    process = await added(guest, box, "cat")
    writer = await attached(guest, process, input_only=True)
    writing = asyncio.ensure_future(_write_all(writer, data))
    # What is in no window and no pipe can't be acknowledged before somebody reads.
    running = await state_of(guest, box)
    assert running is not None
    reader = await attached(guest, process)
    assert (await reader.to_the_end()).stdout == data
    await writing
    assert writer.acknowledged == len(data)


async def _write_all(writer: Attachment, data: bytes) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(writer.until(lambda: writer.acknowledged == len(data)))
        await writer.send(data)
        await writer.close_input()
    await writer.to_the_end()


async def test_four_mebibytes_in_before_any_come_out(guest: Guest, box: str) -> None:
    data = os.urandom(MIB) * 4
    process = await added(guest, box, "cat >/big; cat /big; rm /big")
    writer = await attached(guest, process, input_only=True)
    sending = asyncio.ensure_future(writer.send(data))
    await writer.until(lambda: writer.acknowledged == len(data))
    await sending
    await writer.close_input()
    assert (await guest.follow(process)).stdout == data


async def test_the_end_of_input(guest: Guest, box: str) -> None:
    """The end is a frame of its own, may be said twice, and takes no output along (case 87)."""
    attachment = await attached(guest, await added(guest, box, "cat"))
    await attachment.send(b"123\n")
    await attachment.send(b"")
    await attachment.close_input()
    await attachment.close_input()
    finished = await attachment.to_the_end()
    assert (finished.code, finished.stdout) == (0, b"123\n")


async def test_nothing_can_be_written_after_the_end(guest: Guest, box: str) -> None:
    process = await added(guest, box, "read line; exec sleep 300")
    attachment = await attached(guest, process)
    await attachment.close_input()
    await attachment.frame(input=processes.InputFrame(offset=0, data=b"late"))
    with pytest.raises(aio.AioRpcError) as caught:
        await attachment.to_the_end()
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert reason(caught.value) == "INPUT_CLOSED"
    await signal(guest, process, 9)


@pytest.mark.parametrize("terminal", [False, True])
async def test_a_child_in_the_background_holds_nobody_up(
    guest: Guest, box: str, terminal: bool
) -> None:
    """It keeps the pipe or the terminal open for ever; the process's end counts (case 84)."""
    script = "trap '' HUP; sleep 300 & echo done"
    finished = await done(guest, box, script, terminal=terminal)
    assert finished.code == 0
    assert finished.stdout.replace(b"\r", b"") == b"done\n"


async def test_output_read_by_offset_over_broken_connections(guest: Guest, box: str) -> None:
    """Connections break in mid-stream, and the agent dies: no byte is missed or repeated
    (case 136). The host acknowledges what it has, so that much is kept for it."""
    script = "seq 1 200000; echo END; seq 1 50000 >&2"
    process = await added(guest, box, script)
    expected = {STDOUT: b"".join(b"%d\n" % n for n in range(1, 200_001)) + b"END\n"}
    expected[STDERR] = b"".join(b"%d\n" % n for n in range(1, 50_001))
    had: dict[types.StreamKind.ValueType, bytes] = {STDOUT: b"", STDERR: b""}
    pieces = 0
    while (exit_status := await _read_some(guest, process, had, 150_000)) is None:
        pieces += 1
        if pieces == 3:
            await kill_agent(guest)
    assert exit_status.code == 0
    assert had == expected
    assert pieces > 5


async def _read_some(
    guest: Guest,
    process: types.ProcessRef,
    had: dict[types.StreamKind.ValueType, bytes],
    count: int,
) -> types.ExitStatus | None:
    """Reads `count` bytes on a channel of its own, which then breaks; or to the exit."""
    async with guest.vm.channel() as channel:
        attachment = await Attachment(
            processes_pb2_grpc.ProcessesStub(channel),
            process=process,
            stdout_offset=len(had[STDOUT]),
            stderr_offset=len(had[STDERR]),
        ).open()
        read = attachment.data
        await attachment.until(
            lambda: len(read[STDOUT]) + len(read[STDERR]) >= count or attachment.exit
        )
        for stream in had:
            had[stream] += read[stream]
            ack = processes.OutputAck(stream=stream, offset=len(had[stream]))
            # The call may be over by now: then nothing is kept for anybody anyway.
            with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
                await attachment.frame(ack=ack)
        return attachment.exit


async def kill_agent(guest: Guest) -> None:
    before = await guest.describe()
    killer = await guest.start(f"kill -9 {before.agent_pid}", **PROBE)
    await guest.wait(killer)
    assert (await guest.describe()).agent_pid != before.agent_pid
    await guest.remove(killer)


# Terminals.


async def test_a_terminal_has_the_size_that_it_was_given(guest: Guest) -> None:
    """Before the start, when nobody runs yet, and while it runs (case 89)."""
    script = "stty size; read line; stty size; tty; exit 4"
    await guest.containers.Create(create_request("tty", script, process={"terminal": True}))
    await _resize(guest, ref("tty"), 33, 99)
    attachment = await attached(guest, ref("tty"))
    assert attachment.opened is not None
    assert attachment.opened.terminal
    await guest.containers.Start(containers.StartContainerRequest(id="tty"))
    await attachment.until_text(b"33 99\r\n")
    await attachment.frame(resize=types.WindowSize(rows=50, columns=132))
    await attachment.send(b"go\n")
    finished = await attachment.to_the_end()
    assert finished.code == 4
    assert b"\r\n50 132\r\n/dev/" in finished.stdout
    wrong = (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
    assert await refused(_resize(guest, ref("tty"), 1, 1)) == wrong
    await guest.remove("tty")


async def _resize(guest: Guest, process: types.ProcessRef, rows: int, columns: int) -> None:
    size = types.WindowSize(rows=rows, columns=columns)
    await guest.processes.Resize(processes.ResizeRequest(process=process, size=size))


async def test_a_terminals_end_of_input_is_its_character(guest: Guest, box: str) -> None:
    attachment = await attached(guest, await added(guest, box, "cat; echo over", terminal=True))
    await attachment.send(b"abc\n")
    await attachment.until(lambda: attachment.data[STDOUT].count(b"abc") == 2)
    await attachment.close_input()
    finished = await attachment.to_the_end()
    assert (finished.code, finished.stdout) == (0, b"abc\r\nabc\r\nover\r\n")


async def test_ctrl_c_on_a_terminal_is_an_interrupt(guest: Guest, box: str) -> None:
    attachment = await attached(guest, await added(guest, box, "echo on; cat", terminal=True))
    await attachment.until_text(b"on\r\n")
    await attachment.send(b"\x03")
    finished = await attachment.to_the_end()
    assert finished.code in (128 + 2, 130)
    assert b"^C" in finished.stdout


async def test_sizes_that_are_none(guest: Guest, box: str) -> None:
    terminal = await added(guest, box, "exec sleep 300", terminal=True)
    plain = await added(guest, box, "exec sleep 300")
    for rows, columns in ((0, 80), (24, 0), (70000, 80), (24, 65536)):
        code, why = await refused(_resize(guest, terminal, rows, columns))
        assert (code, why) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    none = (grpc.StatusCode.FAILED_PRECONDITION, "NO_TERMINAL")
    assert await refused(_resize(guest, plain, 24, 80)) == none
    for process in (terminal, plain):
        await signal(guest, process, 9)
