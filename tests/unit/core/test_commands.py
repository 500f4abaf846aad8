"""Running programs: exits, deadlines, output, and what must not be waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from agent.core import commands
from agent.core.errors import AgentError, Code, Reason

pytestmark = [pytest.mark.unit, pytest.mark.containers]


class Left:
    """A deadline that never moves."""

    def __init__(self, seconds: float = 60.0) -> None:
        self._seconds = seconds

    def left(self) -> float:
        return self._seconds


SOON = Left(0.2)
LATER = Left()


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


async def test_output_and_status_of_a_command_that_ends_well() -> None:
    result = await commands.run(shell("echo out; echo err >&2"), deadline=LATER)
    assert (result.code, result.stdout, result.stderr_tail) == (0, b"out\n", "err")


async def test_a_failure_names_argv_status_and_what_the_command_said() -> None:
    with pytest.raises(commands.CommandError) as caught:
        await commands.run(shell("echo no such thing >&2; exit 7"), deadline=LATER)
    assert caught.value.result.code == 7
    assert "exit status 7" in str(caught.value)
    assert "/bin/sh -c" in str(caught.value)
    assert "no such thing" in str(caught.value)


async def test_a_failure_by_a_signal_is_told_by_its_name() -> None:
    result = await commands.run(shell("kill -KILL $$"), deadline=LATER, check=False)
    assert result.code == -signal.SIGKILL
    assert result.how_it_ended() == "ended by SIGKILL"


def test_signals_without_a_name_keep_their_number() -> None:
    assert commands.signal_name(40) == "signal 40"


async def test_only_the_end_of_a_long_complaint_is_kept() -> None:
    script = "head -c 1000000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 1"
    result = await commands.run(shell(script), deadline=LATER, check=False)
    assert len(result.stderr_tail) <= commands.STDERR_TAIL
    assert result.stderr_tail.endswith("the end")


async def test_big_output_comes_whole() -> None:
    result = await commands.run(shell("head -c 3000000 /dev/zero"), deadline=LATER)
    assert result.stdout == bytes(3_000_000)


async def test_too_much_output_is_refused() -> None:
    with pytest.raises(AgentError) as caught:
        await commands.run(shell("head -c 5000000 /dev/zero"), deadline=LATER)
    assert caught.value.reason is Reason.LIMIT_REACHED


async def test_input_reaches_the_command_and_ends() -> None:
    data = os.urandom(1 << 20)
    result = await commands.run(["/bin/cat"], deadline=LATER, input=data)
    assert result.stdout == data


async def test_a_background_child_that_keeps_the_output_open_is_not_waited_for() -> None:
    result = await commands.run(shell("sleep 300 & echo $!"), deadline=Left(30))
    os.kill(int(result.stdout), signal.SIGKILL)
    assert result.code == 0


async def test_the_deadline_error_says_what_the_command_said() -> None:
    with pytest.raises(AgentError) as caught:
        await commands.run(shell("echo busy >&2; exec sleep 300"), deadline=SOON)
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    assert "busy" in str(caught.value)


async def test_after_the_deadline_no_member_of_the_group_holds_the_pipe() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as out:
        setting = commands.Setting(stdout=write_end)
        with pytest.raises(AgentError):
            await commands.run(shell("sleep 300 & wait"), deadline=SOON, setting=setting)
        os.close(write_end)
        assert await asyncio.to_thread(out.read) == b""


async def test_a_cancelled_caller_leaves_no_process() -> None:
    read_end, write_end = os.pipe()
    setting = commands.Setting(stdout=write_end)
    task = asyncio.create_task(
        commands.run(shell("echo up; exec sleep 300"), deadline=LATER, setting=setting)
    )
    assert await asyncio.to_thread(os.read, read_end, 10) == b"up\n"
    os.close(write_end)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(os.read, read_end, 10) == b""
    os.close(read_end)


async def test_a_missing_program_is_told_with_a_hint() -> None:
    with pytest.raises(AgentError) as caught:
        await commands.run(["/no/such/program"], deadline=LATER)
    assert caught.value.reason is Reason.KERNEL_REFUSED
    assert "/no/such/program" in str(caught.value)
    assert caught.value.hint is not None


async def test_a_command_is_not_in_our_process_group() -> None:
    """A process that signals group 0 must not reach the agent (`kill -15 0` did once)."""
    result = await commands.run(shell("kill -TERM 0"), deadline=LATER, check=False)
    assert result.code == -signal.SIGTERM


async def test_the_environment_is_small_and_explicit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    setting = commands.Setting(environment={"WANTED": "1"})
    result = await commands.run(["/usr/bin/env"], deadline=LATER, setting=setting)
    names = {line.split(b"=")[0] for line in result.stdout.splitlines()}
    assert names == {b"PATH", b"LC_ALL", b"WANTED"}


async def test_a_hundred_commands_leave_no_descriptors() -> None:
    await commands.run(["/bin/true"], deadline=LATER)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        await commands.run(["/bin/true"], deadline=LATER, input=b"x")
    assert len(os.listdir("/proc/self/fd")) == before


async def test_spawned_children_run_until_ended() -> None:
    child = await commands.spawn([sys.executable, "-c", "import signal; signal.pause()"])
    running = child.code
    assert await child.end()
    assert (running, child.code) == (None, -signal.SIGKILL)
    assert await child.end()
