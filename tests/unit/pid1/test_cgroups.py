"""Enabling controllers on a cgroupfs that is a plain directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent.pid1 import cgroups

pytestmark = [pytest.mark.unit, pytest.mark.boot]


@pytest.fixture
def group(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    return tmp_path


class Control:
    """subtree_control as the kernel's: answers with the errnos it was given, then takes all."""

    def __init__(self, **answers: list[int]) -> None:
        self.answers = answers
        self.taken: list[str] = []
        self.attempts = 0

    def write(self, path: str, text: str) -> None:
        self.attempts += 1
        for word in text.split():
            left = self.answers.get(word.removeprefix("+"), [])
            if left:
                number = left.pop(0)
                raise OSError(number, os.strerror(number), path)
        self.taken += text.split()


def test_only_what_exists_and_is_not_enabled_yet(group: Path) -> None:
    """A controller that is absent (no cpuset here) would give EINVAL."""
    control = Control()
    assert cgroups.enable_all(str(group), write=control.write) == []
    assert control.taken == ["+io", "+memory", "+pids"]


def test_ebusy_twice_then_taken(group: Path) -> None:
    control = Control(memory=[errno.EBUSY, errno.EBUSY])
    assert cgroups.enable_all(str(group), write=control.write) == []
    assert control.taken == ["+io", "+memory", "+pids"]


def test_ebusy_for_ever_ends_and_the_others_are_enabled(group: Path) -> None:
    control = Control(io=[errno.EBUSY] * 1000)
    (warning,) = cgroups.enable_all(str(group), write=control.write)
    assert "controller io" in warning
    assert control.taken == ["+memory", "+pids"]
    assert control.attempts <= 30


def test_another_error_is_not_tried_again(group: Path) -> None:
    control = Control(io=[errno.EINVAL] * 1000)
    (warning,) = cgroups.enable_all(str(group), write=control.write)
    assert "controller io" in warning
    assert "Invalid argument" in warning
    assert control.taken == ["+memory", "+pids"]
    # Once for all, then once for each.
    assert control.attempts == 4


def test_populated_and_oom_kills_are_read_from_the_events(group: Path) -> None:
    assert not cgroups.populated(str(group))
    assert cgroups.oom_kills(str(group)) == 0
    (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (group / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
    assert cgroups.populated(str(group))
    assert cgroups.oom_kills(str(group)) == 2


def test_the_tree_is_made_and_pid_1_moves_to_its_leaf(tmp_path: Path) -> None:
    """PID 1 must leave the root before controllers are enabled below it."""
    for name in (".", "pods", "init", "agent"):
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        (directory / "cgroup.controllers").write_text("memory\n")
        (directory / "cgroup.subtree_control").write_text("")
        (directory / "cgroup.procs").write_text("")
    (tmp_path / "agent/memory.min").write_text("0")
    assert cgroups.prepare(str(tmp_path)) == []
    assert (tmp_path / "init/cgroup.procs").read_text() == "0"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    assert (tmp_path / "pods/cgroup.subtree_control").read_text() == "+memory"
    assert int((tmp_path / "agent/memory.min").read_text()) >= 32 << 20
