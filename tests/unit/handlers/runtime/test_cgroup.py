"""A container's cgroup, as files."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.roots import Roots
from agent.handlers.runtime.cgroup import Cgroup, is_over, open_member, own_paths, signal_member

pytestmark = [pytest.mark.unit, pytest.mark.containers]


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots(proc=tmp_path / "proc", cgroup=tmp_path / "cgroup")


@pytest.fixture
def group(roots: Roots) -> Cgroup:
    top = roots.cgroup / "pods/s/c1"
    for path, pids in ((top, "10\n"), (top / "nested", "11\n0\n12\n"), (top / "nested/x", "")):
        path.mkdir(parents=True)
        (path / "cgroup.procs").write_text(pids)
    (top / "cgroup.kill").touch()
    (top / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    return Cgroup(roots, "/pods/s/c1")


def test_members_are_those_of_all_groups_below(group: Cgroup) -> None:
    """0 stands for a process of another pid namespace, and for ourselves to kill(2)."""
    assert sorted(group.members()) == [10, 11, 12]


def test_all_are_killed_by_one_write(group: Cgroup, roots: Roots) -> None:
    group.kill()
    assert (roots.cgroup / "pods/s/c1/cgroup.kill").read_text() == "1"


LIMITS = {
    "cpu.max": "max 100000\n",
    "cpuset.cpus": "\n",
    "io.max": "8:0 rbps=1000 wbps=max riops=max wiops=max\n",
    "memory.max": "max\n",
    "hugetlb.2MB.max": "0\n",
}


def test_limits_are_read_and_written_back(group: Cgroup, roots: Roots) -> None:
    """Figures and orders (`memory.current`, `memory.reclaim`) are no limits; nor is the
    partition, which has a keeper of its own."""
    top = roots.cgroup / "pods/s/c1"
    others = ("memory.current", "memory.reclaim", "cpuset.cpus.partition", "cpu.stat")
    for name, text in (LIMITS | dict.fromkeys(others, "x\n")).items():
        (top / name).write_text(text)
    before = group.limits()
    assert before == LIMITS
    for name in ("memory.max", "cpuset.cpus", "memory.reclaim"):
        (top / name).write_text("5\n")
    group.set_limits(before)
    assert (top / "memory.max").read_text().strip() == "max"
    assert (top / "cpuset.cpus").read_text().strip() == ""
    assert (top / "memory.reclaim").read_text() == "5\n"
    assert (top / "cpu.max").read_text() == "max 100000\n"


def test_a_device_that_had_no_limit_has_none_again(group: Cgroup, roots: Roots) -> None:
    """io.max doesn't show those without one (cgroup-v2.rst)."""
    file = roots.cgroup / "pods/s/c1/io.max"
    file.write_text("")
    before = group.limits()
    file.write_text("8:0 rbps=1 wbps=max riops=max wiops=max\n")
    group.set_limits(before)
    assert file.read_text().startswith("8:0 rbps=max wbps=max riops=max wiops=max")


def test_a_group_that_is_gone_has_no_limits(roots: Roots) -> None:
    gone = Cgroup(roots, "/pods/s/gone")
    assert gone.limits() == {}
    gone.set_limits({"memory.max": "max\n"})


async def test_a_group_that_is_gone_is_empty(roots: Roots) -> None:
    gone = Cgroup(roots, "/pods/s/gone")
    gone.kill()
    gone.remove()
    await gone.wait_empty(Deadline.after(5))
    assert gone.members() == ()


async def test_an_empty_group_is_not_waited_for(group: Cgroup) -> None:
    await group.wait_empty(Deadline.after(5))


def test_the_own_path_is_that_of_version_2() -> None:
    """cgroups(7): version 2 has the number 0 and no controllers; others may be mounted as well."""
    assert own_paths("9:name=systemd:/x\n1:cpu:/y\n0::/pods/s/c1\n") == ["/pods/s/c1"]
    assert own_paths("") == []


@pytest.fixture
def sleeper(roots: Roots) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["/bin/sleep", "100"])
    (roots.proc / str(process.pid)).mkdir(parents=True)
    return process


@pytest.mark.parametrize(
    ("line", "ours"), [("0::/pods/s/c1/deep\n", True), ("0::/pods/s/c10\n", False), ("", False)]
)
def test_a_pid_is_only_signalled_in_its_cgroup(
    roots: Roots, sleeper: subprocess.Popen[bytes], line: str, ours: bool
) -> None:
    """The number may be somebody else's by now."""
    (roots.proc / str(sleeper.pid) / "cgroup").write_text(line)
    signal_member(roots, sleeper.pid, "/pods/s/c1", 10)
    if not ours:
        sleeper.kill()
    assert sleeper.wait() == (-10 if ours else -9)


def test_a_process_that_is_gone_has_no_pidfd(roots: Roots) -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    assert open_member(roots, process.pid, "/") == -1
    signal_member(roots, process.pid, "/", 9)
    assert os.getpid() != process.pid


DEEP = 40
NAME = "g" * 200


@pytest.fixture
def deep(roots: Roots) -> Iterator[list[int]]:
    """Descriptors of groups in one another, whose paths are soon longer than a path can be."""
    top = roots.cgroup / "pods/s/c1"
    top.mkdir(parents=True)
    with ExitStack() as stack:
        fds: list[int] = []
        for _ in range(DEEP):
            where: int | None = fds[-1] if fds else None
            name = NAME if fds else str(top / NAME)
            os.mkdir(name, dir_fd=where)
            fds.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=where))
            stack.callback(os.close, fds[-1])
        yield fds


def put(group: int, name: str, text: str) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=group)
    with open(fd, "w") as file:
        file.write(text)


def test_nobody_hides_in_a_group_whose_path_is_too_long(roots: Roots, deep: list[int]) -> None:
    """ENAMETOOLONG once hid all below 4096 bytes from lists, signals, thawing and removal."""
    put(deep[-1], "cgroup.procs", "4711\n")
    put(deep[-1], "cgroup.freeze", "1\n")
    group = Cgroup(roots, "/pods/s/c1")
    before = set(os.listdir("/proc/self/fd"))
    assert group.members() == (4711,)
    group.thaw_all()
    thawed = os.open("cgroup.freeze", os.O_RDONLY, dir_fd=deep[-1])
    with open(thawed) as file:
        assert file.read() == "0\n"
    assert set(os.listdir("/proc/self/fd")) == before
    for name in ("cgroup.procs", "cgroup.freeze"):
        os.unlink(name, dir_fd=deep[-1])
    (roots.cgroup / "pods/s/c1/side/by").mkdir(parents=True)
    group.remove()
    assert list((roots.cgroup / "pods/s").iterdir()) == []
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_group_that_is_in_use_is_not_removed(group: Cgroup) -> None:
    with pytest.raises(AgentError) as caught:
        group.remove()
    assert caught.value.reason is Reason.STILL_IN_USE


def test_a_threaded_group_tells_of_nobody(group: Cgroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """EOPNOTSUPP (cgroup-v2.rst, "Threads"): its domain has them in its own list."""
    read, asked = os.read, []

    def refuse_one(fd: int, size: int) -> bytes:
        asked.append(fd)
        if "/nested/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return read(fd, size)

    monkeypatch.setattr(os, "read", refuse_one)
    assert group.members() == (10,)


def test_how_many_groups_may_be_below_is_bounded(group: Cgroup, roots: Roots) -> None:
    top = roots.cgroup / "pods/s/c1"
    for name in ("cgroup.max.descendants", "cgroup.max.depth"):
        (top / name).write_text("")
    group.bound({"cgroup.max.depth": "3"})
    assert (top / "cgroup.max.depth").read_text() == ""
    assert int((top / "cgroup.max.descendants").read_text()) == 1000
    group.bound({})
    assert int((top / "cgroup.max.depth").read_text()) == 32
    Cgroup(roots, "/pods/s/gone").bound({})


def test_who_has_ended_is_over_though_nobody_has_waited(
    roots: Roots, sleeper: subprocess.Popen[bytes]
) -> None:
    (roots.proc / str(sleeper.pid) / "cgroup").write_text("0::/pods/s/c1\n")
    assert not is_over(roots, sleeper.pid, "/pods/s/c1")
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert is_over(roots, sleeper.pid, "/pods/s/c1")
    sleeper.wait()
    assert is_over(roots, sleeper.pid, "/pods/s/c1")
