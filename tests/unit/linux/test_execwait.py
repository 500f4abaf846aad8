"""When a process runs its program."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import pytest

from agent.linux.execwait import Turn, turn_of, wait_for_exec

pytestmark = [pytest.mark.unit, pytest.mark.containers]

NETLINK = struct.pack("=IHHII", 76, 3, 0, 0, 0)
CONNECTOR = struct.pack("=IIIIHH", 1, 1, 7, 0, 40, 0)


def event(what: int, thread: int, process: int) -> bytes:
    """linux/cn_proc.h, struct proc_event"""
    return NETLINK + CONNECTOR + struct.pack("=IIQII", what, 0, 1, thread, process) + bytes(16)


@pytest.mark.parametrize(
    ("message", "turn"),
    [
        (event(0x2, 42, 42), Turn.EXEC),
        (event(0x2, 43, 43), None),
        (event(0x80000000, 42, 42), Turn.EXIT),
        (event(0x80000000, 99, 42), None),
        (event(0x1, 42, 42), None),
        (b"", None),
        (NETLINK, None),
    ],
)
def test_what_the_kernel_says_of_a_process(message: bytes, turn: Turn | None) -> None:
    """A thread's end is none of its process's, and forks are of no interest."""
    assert turn_of(message, 42) is turn


def test_a_process_that_runs_another_program_is_not_waited_for() -> None:
    with subprocess.Popen(["/bin/sleep", "300"]) as process:
        try:
            assert wait_for_exec(process.pid, 0.0, runtime=os.getpid())
        finally:
            process.kill()


def test_a_process_that_is_gone_ran_its_program() -> None:
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    assert wait_for_exec(int(gone.stdout), 0.0, runtime=os.getpid())


def test_one_that_runs_the_runtimes_program_is_waited_for_in_vain() -> None:
    assert not wait_for_exec(os.getpid(), 0.0, runtime=os.getpid())


def test_it_is_seen_when_it_comes() -> None:
    """With the kernel's events where this may have them, by looking again where not."""
    script = "import os, sys; sys.stdin.read(1); os.execv('/bin/sleep', ['sleep', '300'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(b"x")
            process.stdin.close()
            assert wait_for_exec(process.pid, 60.0, runtime=os.getpid())
        finally:
            process.kill()
