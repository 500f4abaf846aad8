"""A real cgroup: ending all that is in it, and knowing when it is empty."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.roots import Roots
from agent.handlers.runtime.cgroup import Cgroup, open_member
from tests.fakes.waiting import until

pytestmark = [pytest.mark.privileged, pytest.mark.containers]


@pytest.fixture
def roots() -> Roots:
    """Where version 2 is mounted, alone or beside version 1."""
    for path in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (path / "cgroup.procs").exists() and os.access(path, os.W_OK):
            return Roots(cgroup=path)
    pytest.skip("needs cgroup v2, writable")


@pytest.fixture
async def group(roots: Roots) -> AsyncIterator[Cgroup]:
    path = f"/innkeeper-test-{os.getpid()}"
    (roots.cgroup / path.lstrip("/") / "nested").mkdir(parents=True)
    group = Cgroup(roots, path)
    yield group
    group.kill()
    # The kernel refuses to remove a group while one that was killed has not quite ended.
    await group.wait_empty(Deadline.after(30))
    for process in children:
        process.wait()
    children.clear()
    group.remove()


children: list[subprocess.Popen[bytes]] = []


def put_in(roots: Roots, group: Cgroup, nested: str = "") -> int:
    """A process in the group, which starts more of its kind there."""
    procs = roots.cgroup / group.path.lstrip("/") / nested / "cgroup.procs"
    script = 'echo $$ >"$0"; echo; sleep 100 & sleep 100 & wait'
    process = subprocess.Popen(["/bin/sh", "-c", script, str(procs)], stdout=subprocess.PIPE)
    children.append(process)
    assert process.stdout is not None
    with process.stdout as said:
        assert said.readline() == b"\n"
    return process.pid


async def test_all_are_killed_and_the_emptiness_is_seen(roots: Roots, group: Cgroup) -> None:
    pids = {put_in(roots, group), put_in(roots, group, "nested")}
    assert pids <= set(group.members())
    waiting = asyncio.create_task(group.wait_empty(Deadline.after(30)))
    await asyncio.sleep(0)
    assert not waiting.done()
    group.kill()
    await waiting
    assert group.members() == ()


async def test_who_is_left_is_told_at_the_deadline(roots: Roots, group: Cgroup) -> None:
    pid = put_in(roots, group)
    with pytest.raises(AgentError) as caught:
        await group.wait_empty(Deadline.after(0.1))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    assert str(pid) in str(caught.value)


async def test_a_group_with_somebody_in_it_is_not_removed(roots: Roots, group: Cgroup) -> None:
    put_in(roots, group)
    with pytest.raises(AgentError) as caught:
        group.remove()
    assert caught.value.reason is Reason.STILL_IN_USE


async def test_a_member_is_known_by_its_group(roots: Roots, group: Cgroup) -> None:
    pid = put_in(roots, group, "nested")
    with ExitStack() as stack:
        inside = open_member(roots, pid, group.path)
        stack.callback(os.close, inside)
        assert inside >= 0
        assert open_member(roots, pid, group.path + "x") == -1
        assert open_member(roots, os.getpid(), group.path) == -1


def stands_still(group: Cgroup) -> bool:
    """As it is now: another call may change it between two looks."""
    return group.frozen


async def test_all_are_frozen_and_go_on(roots: Roots, group: Cgroup) -> None:
    """Groups below with it; one that a container froze itself stays so until all is thawed."""
    top = roots.cgroup / group.path.lstrip("/")
    if not (top / "cgroup.freeze").exists():
        pytest.skip("this kernel has no freezer of version 2")
    put_in(roots, group)
    put_in(roots, group, "nested")
    assert not stands_still(group)
    await group.freeze(Deadline.after(30))
    assert stands_still(group)
    # One that the kernel has just made wakes once more before it stands still.
    await until(lambda: "frozen 1" in (top / "nested/cgroup.events").read_text())
    await group.thaw(Deadline.after(30))
    assert "frozen 0" in (top / "cgroup.events").read_text()
    (top / "nested/cgroup.freeze").write_text("1")
    await group.freeze(Deadline.after(30))
    group.thaw_all()
    await group.thaw(Deadline.after(30))
    assert (top / "nested/cgroup.freeze").read_text() == "0\n"


async def test_who_is_frozen_can_be_killed(roots: Roots, group: Cgroup) -> None:
    if not (roots.cgroup / group.path.lstrip("/") / "cgroup.freeze").exists():
        pytest.skip("this kernel has no freezer of version 2")
    put_in(roots, group, "nested")
    await group.freeze(Deadline.after(30))
    group.kill()
    await group.wait_empty(Deadline.after(30))
