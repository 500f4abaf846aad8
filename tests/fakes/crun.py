"""A stand-in for crun on PATH, and for what the kernel knows of its processes.

The program itself is crun_program.py. Its processes are orphans, so the test
process must be a child subreaper and FakePid1 reap them: that is what `reaping`
is for. Cgroups are files that nobody acts on: `FakeGroup` does the killing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from agent.core.deadlines import Deadline
from agent.core.errors import timed_out
from agent.core.roots import Roots
from agent.linux import pidfd
from tests.fakes.pid1 import FakePid1, children_of

_PROGRAM = Path(__file__).with_name("crun_program.py")
_PR_SET_CHILD_SUBREAPER = 36


class FakeCrun:
    """Installs the program in `directory` and plans what it does."""

    def __init__(self, directory: Path, roots: Roots, pid1: FakePid1) -> None:
        self.directory = directory
        directory.mkdir()
        (directory / _PROGRAM.name).write_text(_PROGRAM.read_text())
        # By way of a shell: `#!` takes no interpreter whose path holds a space.
        program = directory / "crun"
        interpreter = f"'{sys.executable}' -IS '{directory / _PROGRAM.name}'"
        program.write_text(f'#!/bin/sh\nexec {interpreter} "$@"\n')
        program.chmod(0o755)
        self._plan: dict[str, Any] = {
            "fail": {},
            "hang": [],
            "skip": [],
            "stuck": [],
            "proc": str(roots.proc),
            "pid1": str(pid1.path),
        }
        self._write()

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call so far."""
        path = self.directory / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def operations(self) -> list[str]:
        """The names of the operations called, in order."""
        known = {"create", "start", "exec", "update", "state", "delete"}
        return [next(word for word in call if word in known) for call in self.calls]

    def updates(self) -> list[dict[str, Any]]:
        """The resources that containers were updated with, in order."""
        path = self.directory / "updates.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def plan(self, **changes: Any) -> None:
        """`fail={"create": "message"}`, `hang=["exec"]` (after its work), `skip=["pid-file"]`,
        `stuck=["exec"]` (its own child waits in the container)."""
        self._plan.update(changes)
        self._write()

    def _write(self) -> None:
        (self.directory / "plan.json").write_text(json.dumps(self._plan))


@contextlib.contextmanager
def reaping() -> Iterator[None]:
    """Orphans become children of this process for the time being.

    Some are nobody's: those of a crun that was killed in the middle, with all of its group.
    """
    pidfd.set_child_subreaper()
    try:
        yield
    finally:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitid(os.P_ALL, 0, os.WEXITED)


class FakeGroup:
    """A cgroup whose members are those that the fake crun wrote into the fake /proc."""

    stuck = False
    restless = False
    """Somebody in it never stops for the freezer."""
    slow = False
    """The kernel takes longer to stop them, or to let them run, than anybody waits."""
    frozen_groups: ClassVar[set[str]] = set()
    files: ClassVar[dict[str, str]] = {}
    """What the files of limits say, of all groups."""
    bounds: ClassVar[list[dict[str, str]]] = []
    """What `bound` was called with."""

    def __init__(self, roots: Roots, path: str) -> None:
        self._roots = roots
        self._line = f"0::{path}"

    def limits(self) -> dict[str, str]:
        return dict(self.files)

    def set_limits(self, wanted: Mapping[str, str]) -> None:
        self.files.update(wanted)

    def bound(self, unified: Mapping[str, str]) -> None:
        self.bounds.append(dict(unified))

    @property
    def frozen(self) -> bool:
        return self._line in self.frozen_groups

    async def freeze(self, deadline: Deadline) -> None:
        if self.restless:
            raise timed_out("not all processes stopped in time")
        self.frozen_groups.add(self._line)
        try:
            await self._takes_its_time()
        except asyncio.CancelledError:
            self.thaw_all()
            raise

    async def thaw(self, deadline: Deadline) -> None:
        self.thaw_all()
        await self._takes_its_time()

    async def _takes_its_time(self) -> None:
        if self.slow:
            await asyncio.Event().wait()

    def thaw_all(self) -> None:
        self.frozen_groups.discard(self._line)

    def members(self) -> tuple[int, ...]:
        entries = self._roots.proc.glob("[0-9]*/cgroup")
        pids = [int(e.parent.name) for e in entries if e.read_text().strip() == self._line]
        # Only what FakePid1 would reap: a number may be somebody else's by now.
        return tuple(set(pids) & children_of(os.getpid()))

    def kill(self) -> None:
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def wait_empty(self, deadline: Deadline) -> None:
        if self.stuck:
            raise timed_out("the cgroup has processes that don't end")

    def remove(self) -> None:
        for pid in self.members():
            shutil.rmtree(self._roots.proc / str(pid))
