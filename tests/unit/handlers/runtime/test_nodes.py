"""Nodes that come and go in a container's root, whatever lies there.

The node is c 0:0, a whiteout: everybody may make that one (mknod(2), since Linux 5.8).
"""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.model import DeviceNode, NodeType
from agent.core.roots import Roots
from agent.handlers.runtime.grants import PlacedNode
from agent.handlers.runtime.nodes import ContainerNodes, Place

pytestmark = [pytest.mark.unit, pytest.mark.containers]

WHITEOUT = DeviceNode(path="/dev/guest", type=NodeType.CHAR, major=0, minor=0)
NULL = DeviceNode(path="/dev/null", type=NodeType.CHAR, major=1, minor=3)
CGROUP = "/pods/s/c1"


def at(path: str, node: DeviceNode = WHITEOUT, mode: int = 0o666) -> PlacedNode:
    return PlacedNode(node=node, path=path, mode=mode, uid=os.getuid(), gid=os.getgid())


class Box:
    """A container: a process, what /proc says of it, and its root beside a secret."""

    def __init__(self, top: Path, pid: int) -> None:
        self.root = top / "root"
        (self.root / "dev").mkdir(parents=True)
        self.outside = top / "outside"
        self.outside.mkdir()
        self._proc = top / "proc" / str(pid)
        self._proc.mkdir(parents=True)
        (self._proc / "root").symlink_to(self.root)
        self.say(f"0::{CGROUP}\n")
        # The guest's /dev is a file system of its own, as this one is.
        self.roots = Roots(proc=top / "proc", dev=Path("/proc/self"))
        self.nodes = ContainerNodes(self.roots)
        self.place = Place(container_id="c1", pid=pid, cgroup=CGROUP)

    def say(self, cgroup: str) -> None:
        (self._proc / "cgroup").write_text(cgroup)

    async def change(self, *, remove: tuple[str, ...] = (), make: tuple[str, ...] = ()) -> None:
        await self.nodes.change(
            self.place,
            remove=[at(path) for path in remove],
            make=[at(path) for path in make],
            deadline=Deadline.after(30),
        )

    def is_node(self, path: str) -> bool:
        try:
            found = (self.root / path.lstrip("/")).lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0

    def tree(self) -> set[str]:
        return {str(path.relative_to(self.root.parent)) for path in self.root.parent.rglob("*")}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with subprocess.Popen([sys.executable, "-IS", "-c", "input()"], stdin=subprocess.PIPE) as held:
        yield Box(tmp_path, held.pid)
        held.communicate(b"\n")


async def test_nodes_come_and_go(box: Box) -> None:
    """With the mode that was asked for, whatever the umask is; twice is fine."""
    for _ in range(2):
        await box.change(make=("/dev/a", "/dev/dri/b"))
    assert box.is_node("/dev/a")
    assert box.is_node("/dev/dri/b")
    assert stat.S_IMODE((box.root / "dev/a").stat().st_mode) == 0o666
    for _ in range(2):
        await box.change(remove=("/dev/a", "/dev/dri/b", "/dev/none/c"))
    assert list((box.root / "dev").iterdir()) == [box.root / "dev/dri"]


async def test_a_node_takes_another_ones_place(box: Box) -> None:
    await box.change(make=("/dev/a",))
    await box.change(remove=("/dev/a",), make=("/dev/a",))
    assert box.is_node("/dev/a")


@pytest.mark.parametrize(
    "target", ["../../outside", "/../../outside", "{outside}", "/proc/self/root{outside}"]
)
async def test_links_do_not_lead_out(box: Box, target: str) -> None:
    """A link that leads up or to an absolute path leads to a place in the container, or nowhere."""
    (box.root / "dev/link").symlink_to(target.format(outside=box.outside))
    (box.root / "outside").mkdir()
    with suppress(AgentError):
        await box.change(make=("/dev/link/x",))
    assert list(box.outside.iterdir()) == []


@pytest.mark.parametrize("target", ["b", "{outside}/node"])
async def test_a_link_at_the_nodes_own_path_is_not_followed(box: Box, target: str) -> None:
    """Also where it leads to such a node, outside."""
    os.mknod(box.outside / "node", stat.S_IFCHR | 0o600, 0)
    (box.root / "dev/a").symlink_to(target.format(outside=box.outside))
    with pytest.raises(AgentError) as caught:
        await box.change(make=("/dev/a",))
    assert caught.value.fields["errno"] == "EEXIST"
    assert not box.is_node("/dev/b")
    await box.change(remove=("/dev/a",))
    assert (box.root / "dev/a").is_symlink()
    assert (box.outside / "node").exists()


async def test_what_is_there_already_is_left_alone(box: Box) -> None:
    """Neither replaced when a node is to come, nor removed when one is to go."""
    (box.root / "dev/a").write_text("mine")
    before = box.tree()
    with pytest.raises(AgentError) as caught:
        await box.change(make=("/dev/new/x", "/dev/a"))
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert (caught.value.reason, caught.value.fields["errno"]) == (Reason.KERNEL_REFUSED, "EEXIST")
    assert "/dev/a in container c1" in caught.value.message
    assert box.tree() == before
    await box.change(remove=("/dev/a",))
    assert (box.root / "dev/a").read_text() == "mine"


async def test_a_change_that_fails_puts_back_what_it_removed(box: Box) -> None:
    await box.change(make=("/dev/old",))
    (box.root / "dev/file").write_text("")
    with pytest.raises(AgentError):
        await box.change(remove=("/dev/old",), make=("/dev/file/x",))
    assert box.is_node("/dev/old")


async def test_another_node_at_the_path_is_not_removed(box: Box) -> None:
    """The container may have put one of its own there since."""
    await box.change(make=("/dev/a",))
    await box.nodes.change(
        box.place, remove=[at("/dev/a", NULL)], make=[], deadline=Deadline.after(30)
    )
    assert box.is_node("/dev/a")


async def test_the_guests_own_dev_is_never_touched(box: Box, tmp_path: Path) -> None:
    """A container may have been given the guest's /dev to see: its nodes are not ours."""
    os.mknod(box.root / "dev/disk", stat.S_IFCHR | 0o600, 0)
    nodes = ContainerNodes(Roots(proc=tmp_path / "proc", dev=box.root / "dev"))
    deadline = Deadline.after(30)
    await nodes.change(box.place, remove=[at("/dev/disk")], make=[], deadline=deadline)
    assert box.is_node("/dev/disk")
    with pytest.raises(AgentError) as caught:
        await nodes.change(box.place, remove=[], make=[at("/dev/new")], deadline=deadline)
    assert caught.value.fields["errno"] == "EXDEV"


@pytest.mark.parametrize("said", ["0::/\n", "0::/pods/s\n", "0::/pods/s/c10\n", ""])
async def test_a_process_in_another_cgroup_is_refused(box: Box, said: str) -> None:
    """Its number was looked up a moment ago; now it is somebody else's, or has moved to
    the root: once a rule was written into the root's group then."""
    await box.change(make=("/dev/a",))
    box.say(said)
    with pytest.raises(AgentError) as caught:
        box.nodes.check(box.place)
    assert caught.value.reason is Reason.WRONG_STATE
    with pytest.raises(AgentError):
        await box.change(remove=("/dev/a",))
    assert box.is_node("/dev/a")


async def test_a_process_that_has_ended_is_refused(tmp_path: Path) -> None:
    ended = await asyncio.create_subprocess_exec("/bin/true")
    await ended.wait()
    box = Box(tmp_path, ended.pid)
    with pytest.raises(AgentError) as caught:
        await box.change(make=("/dev/a",))
    assert caught.value.reason is Reason.WRONG_STATE
    assert not box.is_node("/dev/a")


async def test_it_can_be_given_up(box: Box) -> None:
    with pytest.raises(AgentError) as caught:
        await box.nodes.change(
            box.place, remove=[], make=[at("/dev/a")], deadline=Deadline.after(0)
        )
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
