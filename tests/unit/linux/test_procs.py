"""Processes in a proc of the test's own, and this one in the real proc."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from agent.linux import procs
from tests.fakes.procs import FakeProc

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def test_processes_come_by_number(proc: FakeProc) -> None:
    for pid in (10, 9, 100):
        proc.process(pid)
    assert [process.pid for process in procs.processes(str(proc.path))] == [9, 10, 100]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("qemu-system-x86", "qemu-system-x86"),
        ("a b (c)", "a b (c)"),
        ("evil\n\x1b[2J", "evil??[2J"),
        ("\udcff\udcfe", "??"),
        ("", ""),
    ],
)
def test_a_command_name_is_the_workloads_own_text(proc: FakeProc, name: str, shown: str) -> None:
    """prctl(PR_SET_NAME) takes any 15 bytes."""
    proc.process(7, name)
    (process,) = procs.processes(str(proc.path))
    assert procs.command(process) == shown


def test_long_text_is_cut() -> None:
    assert procs.clean("x" * 300, 10) == "xxxxxxx..."
    assert procs.clean("x" * 10, 10) == "x" * 10


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    gone = procs.Process(5, str(tmp_path / "5"))
    assert procs.command(gone) == ""
    assert procs.namespace(gone, "mnt") is None
    assert list(procs.open_files(gone, 10)) == []


def test_a_process_whose_first_thread_has_ended(proc: FakeProc) -> None:
    """Of such a leader proc shows no descriptors; pthread_exit in main() is enough for it."""
    thread = proc.dead_leader(30, 31, "worker")
    proc.open(thread, 3, "/dev/null")
    (process,) = procs.processes(str(proc.path))
    assert process.pid == 30
    assert procs.command(process) == "worker"
    assert len(list(procs.open_files(process, 10))) == 1


def test_a_zombie(proc: FakeProc) -> None:
    (proc.path / "40/task/40/fd").mkdir(parents=True)
    (process,) = procs.processes(str(proc.path))
    assert list(procs.open_files(process, 10)) == []


def test_no_more_files_than_asked_for(proc: FakeProc) -> None:
    directory = proc.process(7)
    for number in range(5):
        proc.open(directory, number, "/dev/null")
    (process,) = procs.processes(str(proc.path))
    assert len(list(procs.open_files(process, 3))) == 3


def test_this_process_in_the_real_proc(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * mmap.PAGESIZE)
    me = procs.Process(os.getpid(), f"/proc/{os.getpid()}")
    with path.open("rb") as file:
        links = [open_file.link for open_file in procs.open_files(me, 10_000)]
        assert f"{me.directory}/fd/{file.fileno()}" in links
    assert procs.namespace(me, "mnt") == os.readlink("/proc/self/ns/mnt")
    assert not procs.is_kernel_thread(me)
