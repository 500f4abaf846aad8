"""A served file system that hangs: what the agent does with it is bounded, and leaves nothing.

The server is FUSE's, in this process, so that it hangs exactly when and how it should.
"fuse" asks its server nothing at the unmount; "fuseblk" waits for it, as virtiofs does.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.fileops import FileWorkers
from agent.core.roots import Roots
from agent.handlers.storage.mounter import Mounter
from agent.handlers.storage.mountpoints import MountPoint
from tests.fakes.hotplug import bench
from tests.privileged import fuse, loops
from tests.privileged.fuse import FuseServer, Manners

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.storage,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts"),
    pytest.mark.skipif(not fuse.NODE.exists(), reason="this machine's kernel has no FUSE"),
]

HUNG = [Manners.DEAF, Manners.MUTE]
TYPES = ["fuse", "fuseblk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """One mount, as the storage manager holds it."""

    point: MountPoint
    server: FuseServer
    files: FileWorkers
    mounter: Mounter

    @property
    def is_mounted(self) -> bool:
        return self.mounter.mounted_at(self.point.path) is not None

    async def detach(self, patience: float = 60) -> bool:
        """True: only lazily."""
        entry = self.mounter.mounted_at(self.point.path)
        assert entry is not None
        return await self.mounter.unmount(self.point, entry.mount_id, Deadline.after(patience))

    async def ask(self, patience: float = 60) -> int:
        """Bytes of the file system."""
        return (await self.files.statfs(self.point.path, Deadline.after(patience))).size


@pytest.fixture
def block_device(tmp_path: Path) -> Iterator[str]:
    """What fuseblk wants: any block device."""
    if not loops.CONTROL.exists():
        pytest.skip("this machine's kernel has no loop devices")
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(1 << 20)
    with loops.attached(image) as device:
        yield device


@pytest.fixture(params=TYPES)
async def lab(
    request: pytest.FixtureRequest, tmp_path: Path, block_device: str
) -> AsyncIterator[Lab]:
    target = tmp_path / "mounted"
    target.mkdir()
    source = block_device if request.param == "fuseblk" else "hung"
    files = FileWorkers()
    async with bench(tmp_path / "guest") as guest:
        mounter = Mounter(files=files, board=guest.board, roots=Roots())
        with fuse.mounted(target, request.param, source) as server:
            point = MountPoint(path=str(target), own=False)
            made = Lab(point=point, server=server, files=files, mounter=mounter)
            # Until the server has answered once, a request waits for that and not for it.
            assert await made.ask() == fuse.SIZE
            yield made
    # The server is gone: nothing may be stuck any more.
    assert await files.settled(str(target), 60)
    await files.close()


@pytest.fixture
def waits(lab: Lab, request: pytest.FixtureRequest) -> bool:
    """Whether the unmount asks the server."""
    return "fuseblk" in request.node.name


async def refuses_to_answer(lab: Lab) -> None:
    with pytest.raises(AgentError) as caught:
        await lab.ask(patience=0.3)
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    assert "does not answer" in str(caught.value)


async def test_a_server_that_answers(lab: Lab) -> None:
    assert await lab.ask() == fuse.SIZE
    assert await lab.detach() is False
    assert not lab.is_mounted
    assert await lab.files.settled(lab.point.path, 0)


@pytest.mark.parametrize("manners", HUNG)
async def test_a_hung_server_is_detached(lab: Lab, manners: Manners, waits: bool) -> None:
    lab.server.manners = manners
    assert await lab.detach(patience=4 if waits else 60) is waits
    assert not lab.is_mounted


@pytest.mark.parametrize("manners", HUNG)
async def test_a_hung_server_that_somebody_waits_for_is_detached(
    lab: Lab, manners: Manners
) -> None:
    """A request that a server has read can't be given up: its process stays in state D."""
    lab.server.manners = manners
    await refuses_to_answer(lab)
    lazily = await lab.detach(patience=4)
    assert lazily or manners is Manners.DEAF
    assert not lab.is_mounted


async def test_an_attachment_that_fails_on_a_hung_server_is_taken_back(lab: Lab) -> None:
    """MNT_DETACH too may wait for the server, once the mount is off the tree."""
    lab.server.manners = Manners.MUTE
    await lab.mounter.take_off(lab.point)
    assert not lab.is_mounted


async def test_other_work_goes_on_beside_a_hung_server(lab: Lab, tmp_path: Path) -> None:
    lab.server.manners = Manners.MUTE
    await refuses_to_answer(lab)
    await refuses_to_answer(lab)
    elsewhere = await lab.files.statfs(str(tmp_path), Deadline.after(60))
    assert elsewhere.size > 0
    assert not await lab.files.settled(lab.point.path, 0)


async def test_a_server_that_wakes_up_again_answers(lab: Lab) -> None:
    lab.server.manners = Manners.DEAF
    await refuses_to_answer(lab)
    lab.server.manners = Manners.GOOD
    assert await lab.files.settled(lab.point.path, 60)
    assert await lab.ask() == fuse.SIZE
