"""Runtime calls that an agent left behind when it died."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.roots import Roots
from agent.handlers.runtime.crun import Crun
from agent.handlers.runtime.leftovers import wait_for_leftovers

pytestmark = [pytest.mark.unit, pytest.mark.containers]


class Cgroup:
    """The agent's cgroup and the processes in it, as files."""

    def __init__(self, top: Path) -> None:
        self.roots = Roots(proc=top / "proc", cgroup=top / "cgroup", run=top / "run")
        (self.roots.proc / "self").mkdir(parents=True)
        (self.roots.proc / "self/cgroup").write_text("0::/agent\n")
        (self.roots.cgroup / "agent").mkdir(parents=True)
        self._procs = self.roots.cgroup / "agent/cgroup.procs"
        self._procs.write_text(f"{os.getpid()}\n")

    def add(self, pid: int, *, parent: int, arguments: list[str]) -> None:
        self._procs.write_text(f"{self._procs.read_text()}{pid}\n")
        entry = self.roots.proc / str(pid)
        entry.mkdir()
        (entry / "status").write_text(f"Name:\tcrun\nPPid:\t{parent}\n")
        (entry / "cmdline").write_text("\0".join(arguments) + "\0")

    @property
    def call(self) -> list[str]:
        return ["crun", "--root", str(self.roots.run / "crun"), "--cgroup-manager=cgroupfs"]


@pytest.fixture
def left() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with its input."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


async def test_a_call_that_ends_is_waited_for(
    tmp_path: Path, left: subprocess.Popen[bytes]
) -> None:
    group = Cgroup(tmp_path)
    group.add(left.pid, parent=1, arguments=group.call)
    assert left.stdin is not None
    left.stdin.close()
    await wait_for_leftovers(group.roots, Crun(group.roots), Deadline.after(30))
    assert left.wait() == 0


async def test_a_call_that_does_not_end_is_killed(
    tmp_path: Path, left: subprocess.Popen[bytes]
) -> None:
    group = Cgroup(tmp_path)
    group.add(left.pid, parent=1, arguments=group.call)
    await wait_for_leftovers(group.roots, Crun(group.roots), Deadline.after(0))
    assert left.wait() == -9


@pytest.mark.parametrize(
    ("parent", "name"), [(os.getpid(), "crun"), (1, "other")], ids=["ours", "other"]
)
async def test_our_own_children_and_other_programs_are_left_alone(
    tmp_path: Path, left: subprocess.Popen[bytes], parent: int, name: str
) -> None:
    group = Cgroup(tmp_path)
    arguments = group.call if name == "crun" else [name]
    group.add(left.pid, parent=parent, arguments=arguments)
    await wait_for_leftovers(group.roots, Crun(group.roots), Deadline.after(0))
    assert left.poll() is None


async def test_without_a_group_of_our_own_nobody_is_touched(tmp_path: Path) -> None:
    group = Cgroup(tmp_path)
    (group.roots.proc / "self/cgroup").write_text("0::/\n")
    await wait_for_leftovers(group.roots, Crun(group.roots), Deadline.after(0))
