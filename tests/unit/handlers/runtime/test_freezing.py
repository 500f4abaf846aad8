"""The freezer of a cgroup, as files; that it is waited for is shown by tests/privileged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.roots import Roots
from agent.handlers.runtime import freezing
from agent.handlers.runtime.cgroup import Cgroup
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.containers]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A group with another one below, which its owner has frozen."""
    top = tmp_path / "pods/s/c1"
    for path, word in ((top, "0"), (top / "in", "0"), (top / "in/deep", "1")):
        path.mkdir(parents=True)
        (path / "cgroup.freeze").write_text(f"{word}\n")
        (path / "cgroup.events").write_text(f"populated 1\nfrozen {word}\n")
    return top


@pytest.fixture
def group(tmp_path: Path, top: Path) -> Cgroup:
    return Cgroup(Roots(cgroup=tmp_path), "/pods/s/c1")


def tell(path: Path, frozen: int) -> None:
    (path / "cgroup.events").write_text(f"populated 1\nfrozen {frozen}\n")


def stands_still(group: Cgroup) -> bool:
    """As it is now: another call may change it between two looks."""
    return group.frozen


async def test_one_write_freezes_and_one_thaws(group: Cgroup, top: Path) -> None:
    assert not stands_still(group)
    tell(top, 1)
    await group.freeze(Deadline.after(5))
    assert (top / "cgroup.freeze").read_text() == "1\n"
    assert stands_still(group)
    tell(top, 0)
    await group.thaw(Deadline.after(5))
    assert (top / "cgroup.freeze").read_text() == "0\n"
    assert not stands_still(group)
    assert (top / "in/deep/cgroup.freeze").read_text() == "1\n"


async def test_all_below_are_thawed_as_well(group: Cgroup, top: Path) -> None:
    """A container may have frozen groups of its own; those would never end."""
    group.thaw_all()
    files = [top, top / "in", top / "in/deep"]
    assert {(each / "cgroup.freeze").read_text() for each in files} == {"0\n"}


async def test_one_that_does_not_freeze_in_time_runs_again(
    group: Cgroup, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_group: Path, _line: str) -> bool:
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(freezing, "until_told", never)
    with pytest.raises(AgentError) as caught:
        await group.freeze(Deadline.after(0.01))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    assert (top / "cgroup.freeze").read_text() == "0\n"
    leaving = asyncio.create_task(group.freeze(Deadline.after(60)))
    await until(lambda: group.frozen)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert not stands_still(group)


async def test_a_group_that_is_gone_is_not_frozen(tmp_path: Path) -> None:
    gone = Cgroup(Roots(cgroup=tmp_path), "/pods/s/gone")
    await gone.freeze(Deadline.after(5))
    await gone.thaw(Deadline.after(5))
    gone.thaw_all()
    assert not gone.frozen


async def test_a_kernel_that_refuses_is_quoted(group: Cgroup, top: Path) -> None:
    (top / "cgroup.freeze").unlink()
    (top / "cgroup.freeze").mkdir()
    with pytest.raises(AgentError) as caught:
        await group.freeze(Deadline.after(5))
    assert (caught.value.reason, caught.value.fields["errno"]) == (Reason.KERNEL_REFUSED, "EISDIR")
