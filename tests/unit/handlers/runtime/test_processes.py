"""Processes of a container: exec, signals, exits, terminals, streams."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import weakref
from dataclasses import replace

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason, wrong_state
from agent.core.life import EndCause, LogOptions, StreamOptions
from agent.core.model import ContainerState, OutputChunk, ProcessRef, Stream, WindowSize
from agent.handlers.runtime import retention
from agent.handlers.runtime.cgroup import is_over
from agent.handlers.runtime.crun import Crun
from agent.handlers.runtime.runtime import ExecCall
from tests.fakes.bed import FakeBed as Bed
from tests.fakes.bed import Life
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.containers]

C1 = ProcessRef(container_id="c1")
E1 = ProcessRef(container_id="c1", exec_id="e1")
NOBODY = ProcessRef(container_id="c1", exec_id="nobody")


@pytest.fixture
async def running(bed: Bed, life: Life) -> Life:
    """A container that runs until its input ends."""
    await life.containers.create(bed.request("echo up; read line; echo $line; exit 3"))
    await life.containers.start("c1")
    return life


async def test_an_exec_runs_and_tells_how_it_ended(bed: Bed, running: Life) -> None:
    pid = await running.processes.exec(bed.exec_request("echo out; exit 7"))
    assert pid != running.containers.get("c1").pid
    assert (await running.wait("c1", "e1")).code == 7
    assert await running.output("c1", "e1") == b"out\n"
    published = running.events.published[-1]
    assert published[:2] == ("process_exited", "c1/e1")


async def test_a_hundred_short_ones_all_speak_and_end_right(bed: Bed, running: Life) -> None:
    """Ten here; every one of them may be over before its pid is read."""
    for number in range(10):
        request = bed.exec_request(f"echo hi; exit {number}", f"e{number}")
        await running.processes.exec(request)
    for number in range(10):
        assert (await running.wait("c1", f"e{number}")).code == number
        assert await running.output("c1", f"e{number}") == b"hi\n"


async def test_the_same_exec_twice_runs_once(bed: Bed, running: Life) -> None:
    request = bed.exec_request("echo once; exit 1")
    first, second = await asyncio.gather(
        running.processes.exec(request), running.processes.exec(request)
    )
    await running.wait("c1", "e1")
    third = await running.processes.exec(replace(request, timeout=50))
    assert first == second == third
    assert bed.crun.operations().count("exec") == 1


async def test_another_exec_with_the_id_is_refused(bed: Bed, running: Life) -> None:
    await running.processes.exec(bed.exec_request("exit 1"))
    with pytest.raises(AgentError) as caught:
        await running.processes.exec(bed.exec_request("exit 2"))
    assert caught.value.reason is Reason.ID_IN_USE


async def test_a_failed_exec_leaves_nothing_and_the_id_is_free(bed: Bed, running: Life) -> None:
    before = bed.left()
    bad = bed.exec_request("", args=["/no/such"])
    with pytest.raises(AgentError, match="not found in") as caught:
        await running.processes.exec(bad)
    assert caught.value.reason is Reason.RUNTIME_REFUSED
    assert bed.left() == before
    assert await running.processes.exec(bed.exec_request("exit 0")) > 0


async def test_an_exec_that_hangs_after_its_work_is_taken_back(bed: Bed, running: Life) -> None:
    before = bed.left()
    bed.crun.plan(hang=["exec"])
    with pytest.raises(AgentError) as caught:
        await running.processes.exec(replace(bed.exec_request("exec sleep 100"), timeout=3.0))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    assert bed.left() == before
    assert sorted(os.listdir(bed.roots.bundles / "c1")) == ["config.json", "pid", "rootfs"]
    await until(lambda: bed.pid1.journal)
    assert bed.pid1.journal[0]["signal"] == signal.SIGKILL


async def test_an_exec_needs_a_running_container(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request("exit 0"))
    for state in (ContainerState.CREATED, ContainerState.STOPPED):
        assert life.containers.get("c1").state is state
        with pytest.raises(AgentError) as caught:
            await life.processes.exec(bed.exec_request("exit 0"))
        assert caught.value.code is Code.FAILED_PRECONDITION
        assert caught.value.reason is Reason.WRONG_STATE
        if state is ContainerState.CREATED:
            await life.containers.start("c1")
            await life.wait("c1")


@pytest.mark.parametrize(
    ("exec_id", "process", "reason"),
    [
        ("../e", b'{"args": ["x"]}', Reason.BAD_ID),
        ("", b'{"args": ["x"]}', Reason.BAD_ID),
        ("e", b"{}", Reason.BAD_SPEC),
    ],
)
async def test_bad_execs_are_refused(
    bed: Bed, running: Life, exec_id: str, process: bytes, reason: Reason
) -> None:
    request = replace(bed.exec_request(""), exec_id=exec_id, process=process)
    with pytest.raises(AgentError) as caught:
        await running.processes.exec(request)
    assert caught.value.reason is reason


async def test_unknown_names_are_not_found(bed: Bed, running: Life) -> None:
    unknown = ProcessRef(container_id="no")
    for ref, reason in ((unknown, Reason.UNKNOWN_CONTAINER), (NOBODY, Reason.UNKNOWN_PROCESS)):
        for call in (
            running.processes.wait(ref),
            running.processes.signal(ref, 15),
            running.processes.resize(ref, WindowSize(rows=1, columns=1)),
            running.processes.write_input(ref, 0, b""),
            running.processes.close_input(ref, 0),
            anext(running.processes.output(ref, {})),
        ):
            with pytest.raises(AgentError) as caught:
                await call
            assert caught.value.reason is reason
    with pytest.raises(AgentError):
        await running.processes.exec(replace(bed.exec_request(""), container_id="no"))


async def test_signals_go_to_one_process(bed: Bed, running: Life) -> None:
    await running.processes.exec(bed.exec_request("exec sleep 100"))
    await running.processes.signal(E1, signal.SIGUSR1)
    end = await running.wait("c1", "e1")
    assert (end.code, end.signal) == (128 + signal.SIGUSR1, signal.SIGUSR1)
    assert running.containers.get("c1").state is ContainerState.RUNNING


async def test_a_signal_to_one_that_has_ended_goes_to_nobody(bed: Bed, running: Life) -> None:
    await running.processes.exec(bed.exec_request("exit 0"))
    await running.wait("c1", "e1")
    await running.processes.signal(E1, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
async def test_a_signal_to_all(bed: Bed, running: Life, number: int) -> None:
    await running.processes.exec(bed.exec_request("exec sleep 100"))
    await running.processes.signal(C1, number, all_processes=True)
    assert (await running.wait("c1")).signal == number
    assert (await running.wait("c1", "e1")).signal == number


async def test_all_are_reached_though_the_first_has_ended(bed: Bed, running: Life) -> None:
    await running.processes.exec(bed.exec_request("exec sleep 100"))
    await running.processes.close_input(C1, 0)
    await running.wait("c1")
    await running.processes.signal(C1, signal.SIGKILL, all_processes=True)
    assert (await running.wait("c1", "e1")).signal == signal.SIGKILL


@pytest.mark.parametrize("number", [0, -9, 65, 1 << 40])
async def test_numbers_that_are_no_signal(running: Life, number: int) -> None:
    with pytest.raises(AgentError) as caught:
        await running.processes.signal(C1, number)
    assert caught.value.reason is Reason.BAD_FIELD


async def test_all_of_an_exec_is_no_set_of_processes(bed: Bed, running: Life) -> None:
    await running.processes.exec(bed.exec_request("sleep 100"))
    with pytest.raises(AgentError) as caught:
        await running.processes.signal(E1, 9, all_processes=True)
    assert caught.value.reason is Reason.BAD_FIELD


async def test_input_reaches_the_process_and_its_end(bed: Bed, running: Life) -> None:
    assert running.processes.input_offset(C1) == 0
    assert await running.processes.write_input(C1, 0, b"hello\n") == 6
    await running.processes.close_input(C1, 6)
    await running.processes.close_input(C1, 6)
    assert (await running.wait("c1")).code == 3
    assert await running.output("c1") == b"up\nhello\n"
    with pytest.raises(AgentError) as caught:
        await running.processes.write_input(C1, 6, b"more")
    assert (caught.value.code, caught.value.reason) == (
        Code.FAILED_PRECONDITION,
        Reason.INPUT_CLOSED,
    )


async def test_four_mebibytes_go_in_and_come_out(bed: Bed, running: Life) -> None:
    """The reader starts when all input is in; nothing else may stand still meanwhile."""
    size = 4 << 20
    script = (
        "dd bs=65536 iflag=fullblock of=/dev/null status=none count=64; head -c 4194304 /dev/zero"
    )
    await running.processes.exec(bed.exec_request(script, env=["PATH=/usr/bin:/bin"]))
    offset = 0
    while offset < size:
        offset = await running.processes.write_input(E1, offset, bytes(65536))
    await running.processes.close_input(E1, size)
    assert len(await running.output("c1", "e1")) == size
    assert (await running.wait("c1", "e1")).code == 0


async def test_a_child_in_the_background_holds_neither_exit_nor_end(
    bed: Bed, running: Life
) -> None:
    script = "sleep 100 & echo done"
    await running.processes.exec(bed.exec_request(script, env=["PATH=/usr/bin:/bin"]))
    assert (await running.wait("c1", "e1")).code == 0
    assert await running.output("c1", "e1") == b"done\n"


async def test_standard_error_is_a_stream_of_its_own(bed: Bed, running: Life) -> None:
    await running.processes.exec(bed.exec_request("echo bad >&2"))
    pieces = [each async for each in running.processes.output(E1, {Stream.STDERR: 0})]
    chunks = [each for each in pieces if isinstance(each, OutputChunk)]
    assert b"".join(chunk.data for chunk in chunks) == b"bad\n"
    assert {each.stream for each in pieces} == {Stream.STDERR}


@pytest.mark.parametrize("offsets", [{Stream.STDIN: 0}, {Stream.STDOUT: -1}])
async def test_offsets_that_make_no_sense(running: Life, offsets: dict[Stream, int]) -> None:
    with pytest.raises(AgentError) as caught:
        await anext(running.processes.output(C1, offsets))
    assert caught.value.reason is Reason.BAD_FIELD


async def test_an_exec_on_a_terminal(bed: Bed, running: Life) -> None:
    request = bed.exec_request("tty >/dev/null && stty size; read x; echo got $x", terminal=True)
    await running.processes.exec(request)
    assert running.processes.has_terminal(E1)
    await running.processes.write_input(E1, 0, b"abc\n")
    assert (await running.wait("c1", "e1")).code == 0
    assert b"got abc\r\n" in await running.output("c1", "e1")


async def test_the_size_of_a_terminal(bed: Bed, life: Life) -> None:
    """Set before the start, it is what the process finds; after its end it is refused."""
    script = "stty size"
    await life.containers.create(bed.request(script, terminal=True))
    await life.processes.resize(C1, WindowSize(rows=33, columns=132))
    await life.containers.start("c1")
    assert (await life.wait("c1")).code == 0
    assert await life.output("c1") == b"33 132\r\n"
    with pytest.raises(AgentError) as caught:
        await life.processes.resize(C1, WindowSize(rows=1, columns=1))
    assert caught.value.code is Code.FAILED_PRECONDITION


async def test_a_signal_that_was_asked_for_is_the_cause(bed: Bed, running: Life) -> None:
    """Only when it is the one that ended it: who handles it and exits has exited."""
    await running.processes.exec(bed.exec_request("exec sleep 100"))
    await running.processes.signal(E1, signal.SIGWINCH)
    await running.processes.signal(E1, signal.SIGTERM)
    end = await running.wait("c1", "e1")
    assert (end.cause, end.why) == (EndCause.KILLED_BY_AGENT, "SIGTERM was asked for")
    await running.processes.exec(bed.exec_request("kill -TERM $$", "e2"))
    assert (await running.wait("c1", "e2")).cause is EndCause.SIGNALLED


async def test_one_that_is_forgotten_is_still_known_for_a_while(bed: Bed, running: Life) -> None:
    await running.processes.exec(bed.exec_request("exit 0"))
    await running.wait("c1", "e1")
    await running.containers.remove("c1", 0, 10)
    await running.processes.signal(E1, signal.SIGKILL)
    with pytest.raises(AgentError) as caught:
        await running.processes.signal(NOBODY, signal.SIGKILL)
    assert caught.value.reason is Reason.UNKNOWN_CONTAINER


async def test_the_tail_of_standard_error(bed: Bed, running: Life) -> None:
    await running.processes.exec(bed.exec_request("echo first >&2; echo last >&2"))
    end = await running.wait("c1", "e1")
    assert running.processes.stderr_tail(E1, 5) == b"last\n"
    assert running.processes.stderr_tail(E1, 100) == b"first\nlast\n"
    assert (end.stdout_bytes, end.stderr_bytes) == (0, 11)
    await running.containers.remove("c1", 0, 10)
    assert running.processes.stderr_tail(E1, 5) == b""


async def test_a_terminals_tail_is_its_output(bed: Bed, running: Life) -> None:
    await running.processes.exec(bed.exec_request("echo said", terminal=True))
    await running.wait("c1", "e1")
    assert running.processes.stderr_tail(E1, 6) == b"said\r\n"


async def test_an_exec_that_hangs_holds_up_nobody(bed: Bed, running: Life) -> None:
    bed.crun.plan(hang=["exec"])
    request = replace(bed.exec_request("exec sleep 100"), timeout=5.0)
    hanging = asyncio.create_task(running.processes.exec(request))
    await until(lambda: "exec" in bed.crun.operations())
    bed.crun.plan(hang=[])
    await running.processes.exec(bed.exec_request("exit 3", "e2"))
    assert (await running.wait("c1", "e2")).code == 3
    assert (await running.containers.pause("c1")).state is ContainerState.PAUSED
    await running.containers.resume("c1")
    assert not hanging.done()
    await running.containers.remove("c1", 0, 10)
    with pytest.raises(AgentError):
        await hanging
    assert bed.left() == {}


async def test_users_of_an_exec_have_names(bed: Bed, running: Life) -> None:
    await running.processes.exec(bed.exec_request("exit 0", user={"username": "app"}))
    with pytest.raises(AgentError) as caught:
        await running.processes.exec(bed.exec_request("x", "e2", user={"username": "nobody"}))
    assert caught.value.reason is Reason.UNKNOWN_USER


async def test_a_log_goes_with_its_container_and_not_with_its_process(
    bed: Bed, running: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exec is forgotten after a minute; what it wrote can be read for as long as its
    container is there, and is not taken for that of a later one of its name."""
    monkeypatch.setattr(retention, "REMEMBERED", 0.0)
    options = StreamOptions(log=LogOptions())
    for text in ("one", "two"):
        request = replace(bed.exec_request(f"echo {text}"), streams=options)
        await running.processes.exec(request)
        await running.wait("c1", "e1")
        await until(lambda: "e1" not in running.containers.table.container("c1").processes)
        files = list((bed.roots.logs / "c1/e1").iterdir())
        whole = b"".join(each.read_bytes() for each in files)
        said = (b"one", b"two") if text == "one" else (b"two", b"one")
        assert [each in whole for each in said] == [True, False]
    await running.containers.remove("c1", 0, 10)
    assert not (bed.roots.logs / "c1").exists()


async def test_the_size_of_no_terminal(running: Life) -> None:
    with pytest.raises(AgentError) as caught:
        await running.processes.resize(C1, WindowSize(rows=1, columns=1))
    assert (caught.value.code, caught.value.reason) == (
        Code.FAILED_PRECONDITION,
        Reason.NO_TERMINAL,
    )


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (70000, 80), (24, -1)])
async def test_sizes_out_of_range(running: Life, rows: int, columns: int) -> None:
    with pytest.raises(AgentError) as caught:
        await running.processes.resize(C1, WindowSize(rows=rows, columns=columns))
    assert caught.value.code is Code.INVALID_ARGUMENT


async def test_the_limit_of_execs(bed: Bed, running: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished one makes room, a running one doesn't."""
    running.containers.retention = retention.Retention(
        running.containers.table, running.containers.turns, limit=2
    )
    await running.processes.exec(bed.exec_request("sleep 100", "stays"))
    await running.processes.exec(bed.exec_request("exit 4", "ends"))
    await running.wait("c1", "ends")
    await running.processes.exec(bed.exec_request("sleep 100", "comes"))
    assert (await running.wait("c1", "ends")).code == 4
    with pytest.raises(AgentError) as caught:
        await running.processes.exec(bed.exec_request("sleep 100", "not"))
    assert caught.value.reason is Reason.LIMIT_REACHED


async def test_a_finished_exec_is_forgotten_once_it_is_read(
    bed: Bed, running: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "REMEMBERED", 0.0)
    before = bed.left()
    await running.processes.exec(bed.exec_request("echo x"))
    await running.wait("c1", "e1")
    assert await running.output("c1", "e1") == b"x\n"
    await until(lambda: bed.left() == before)
    assert (await running.wait("c1", "e1")).code == 0
    with pytest.raises(AgentError) as caught:
        running.processes.has_terminal(E1)
    assert caught.value.reason is Reason.UNKNOWN_PROCESS


async def test_nothing_keeps_the_processes_of_a_container_that_is_gone(
    bed: Bed, running: Life
) -> None:
    """Not for the minute in which they would have been kept: there may be many each second."""
    await running.processes.exec(bed.exec_request("echo x"))
    assert await running.output("c1", "e1") == b"x\n"
    await running.wait("c1", "e1")
    kept = weakref.WeakSet(running.containers.table.container("c1").processes.values())
    assert len(kept) == 2
    await running.containers.remove("c1", 0, 10)
    await asyncio.sleep(0)
    gc.collect()
    assert not kept


async def test_an_exec_may_be_forgotten_while_its_container_is_removed(
    bed: Bed, running: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its minute is over just then: once that made the removal fail with a bug of ours."""
    for name in ("e1", "e2"):
        await running.processes.exec(bed.exec_request("exit 0", name))
        await running.wait("c1", name)
    processes = running.containers.table.container("c1").processes
    first, last = processes["e1"], processes["e2"]
    whole = first.streams.discard

    async def discard() -> None:
        await running.containers.retention._forget(last)
        await whole()

    monkeypatch.setattr(first.streams, "discard", discard)
    await running.containers.remove("c1", 0, 10)
    assert (running.containers.list(), bed.left()) == ((), {})


async def test_execs_leave_no_descriptors(bed: Bed, running: Life) -> None:
    """About a thousand execs ended in EMFILE once; the store is empty of them, too."""
    before = sorted(bed.pid1.store)
    for number in range(8):
        terminal = number % 2 == 0
        request = bed.exec_request("exit 0", f"e{number}", terminal=terminal)
        await running.processes.exec(request)
        await running.wait("c1", f"e{number}")
        await running.output("c1", f"e{number}")
    await until(lambda: sorted(bed.pid1.store) == before)


async def test_the_child_of_an_exec_that_was_cut_off_is_killed(bed: Bed, running: Life) -> None:
    """It has joined the container, and there is no pid file yet: crun waits for a FIFO in the
    place of /etc/passwd, for one. Another exec's goes on."""
    await running.processes.exec(bed.exec_request("exec sleep 100", "e10"))
    group = running.containers.table.container("c1").cgroup
    before = set(group.members())
    bed.crun.plan(stuck=["exec"])
    with pytest.raises(AgentError) as caught:
        await running.processes.exec(replace(bed.exec_request("exit 0"), timeout=3.0))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    await until(lambda: bed.pid1.journal)
    assert [entry["signal"] for entry in bed.pid1.journal] == [signal.SIGKILL]
    assert bed.pid1.journal[0]["pid"] not in before
    await until(lambda: set(group.members()) == before)


async def test_an_exec_has_the_home_of_its_own_user(bed: Bed, life: Life) -> None:
    """That of the first process is not inherited, unless its specification has named it."""
    await life.containers.create(bed.request("echo $HOME; read line"))
    await life.containers.start("c1")
    homes = {"e1": ("", "/"), "e2": ("app", "/home/app")}
    for name, (user, home) in homes.items():
        await life.processes.exec(bed.exec_request("echo $HOME", name, user={"username": user}))
        await life.wait("c1", name)
        assert await life.output("c1", name) == f"{home}\n".encode()
    await life.processes.exec(bed.exec_request("echo $HOME", "e3", env=["HOME=/own"]))
    await life.wait("c1", "e3")
    assert await life.output("c1", "e3") == b"/own\n"
    await life.processes.close_input(C1, 0)
    await life.wait("c1")
    assert await life.output("c1") == b"/\n"


@pytest.mark.parametrize("state", [ContainerState.PAUSED, ContainerState.STOPPED])
async def test_an_exec_that_lost_a_race_is_told_of_the_state(
    bed: Bed, running: Life, monkeypatch: pytest.MonkeyPatch, state: ContainerState
) -> None:
    """Paused or ended between our look and crun's: its refusal says less."""
    pid = running.containers.get("c1").pid

    async def refuse(_crun: Crun, _call: ExecCall, deadline: Deadline) -> int:
        if state is ContainerState.PAUSED:
            await running.containers.table.container("c1").cgroup.freeze(deadline)
        else:
            os.kill(pid, signal.SIGKILL)
            await until(lambda: is_over(bed.roots, pid, "/pods/s/c1"))
        raise wrong_state("crun exec: the container is not running", reason=Reason.RUNTIME_REFUSED)

    monkeypatch.setattr(Crun, "exec", refuse)
    with pytest.raises(AgentError) as caught:
        await running.processes.exec(bed.exec_request("exit 0"))
    assert (caught.value.reason, caught.value.fields["state"]) == (Reason.WRONG_STATE, state)
