"""Block storage with the real kernel: device nodes, mounts, ext4 on a loop device."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.events import EventLog
from agent.core.fileops import FileWorkers
from agent.core.hotplug import HotplugBoard
from agent.core.kinds import BlockExpectation, BlockInfo
from agent.core.model import (
    AttachedDevice,
    DeviceNode,
    DeviceRequest,
    NodeType,
    StorageRequest,
)
from agent.core.pci import PciPath
from agent.core.roots import Roots
from agent.core.sources import BlockSource
from agent.core.state import StateStore
from agent.core.tree import SysfsTree
from agent.handlers.devices.manager import DeviceManager
from agent.handlers.devices.table import Entry
from agent.handlers.storage.manager import StorageManager
from agent.linux.block import NodeNumbers, node_numbers
from agent.linux.mounting import parse_mountinfo
from agent.linux.uevents import KernelUevents
from tests.fakes.hotplug import turns
from tests.privileged import loops
from tests.privileged.counts import often

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.storage,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and device nodes"),
]

MIB = 1 << 20


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    """A loop device with an empty ext4."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not on this machine")
    if not loops.CONTROL.exists():
        pytest.skip("this machine's kernel has no loop devices")
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(16 * MIB)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    with loops.attached(image) as device:
        yield device


class Lab:
    """The managers on the real kernel; the loop device stands for a PCI disk."""

    def __init__(self, run_directory: Path, loop: str) -> None:
        self.roots = Roots(run=run_directory / "innkeeper")
        self.files = FileWorkers()
        self.board = HotplugBoard(
            tree=SysfsTree(roots=self.roots), source=KernelUevents(), files=self.files
        )
        self.board.start()
        self.state = StateStore(self.roots.state)
        self.events = EventLog(self.state)
        self.devices = DeviceManager(board=self.board, state=self.state, events=self.events)
        self.devices._table.put(Entry(device=_disk(loop), instance="1", served_by="block"))
        self.storages = self.new_manager()

    def new_manager(self) -> StorageManager:
        return StorageManager(
            devices=self.devices,
            board=self.board,
            files=self.files,
            state=self.state,
            events=self.events,
        )

    async def close(self) -> None:
        await self.storages.detach_all()
        await self.storages.close()
        await self.devices.close()
        self.board.close()
        await self.files.close()


def _disk(loop: str) -> AttachedDevice:
    numbers = node_numbers(loop)
    assert numbers is not None
    request = DeviceRequest(id="disk", address=PciPath.parse("02/00"), kind=BlockExpectation())
    return AttachedDevice(
        request=request,
        pci_path=PciPath.parse("02/00"),
        bdf="0000:01:00.0",
        sysfs_path=str(Path("/sys/class/block").joinpath(Path(loop).name).resolve()),
        driver="loop",
        numa_node=None,
        iommu_group=None,
        nodes=(
            DeviceNode(path=loop, type=NodeType.BLOCK, major=numbers.major, minor=numbers.minor),
        ),
        info=BlockInfo(size=16 * MIB, logical_block_size=512, read_only=False),
    )


@pytest.fixture
async def lab(tmp_path: Path, loop: str) -> AsyncIterator[Lab]:
    made = Lab(tmp_path, loop)
    yield made
    await made.close()


def request(fs_type: str = "ext4", **more: object) -> StorageRequest:
    source = BlockSource(device_id="disk", fs_type=fs_type)
    return StorageRequest(id="data", source=source, **more)  # type: ignore[arg-type]


def mounts_at(path: str) -> list[tuple[str, str]]:
    entries = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    return [(entry.fs_type, entry.options) for entry in entries if entry.mount_point == path]


async def refused(awaitable: Awaitable[object], reason: Reason) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await awaitable
    assert caught.value.reason is reason, caught.value
    return caught.value


async def test_a_disk_is_mounted_written_and_unmounted(lab: Lab) -> None:
    mounted = await lab.storages.attach(request(options=("noexec", "nosuid,noatime")))
    ((fs_type, options),) = mounts_at(mounted.mount_point)
    assert fs_type == "ext4"
    assert {"noexec", "nosuid", "noatime"} <= set(options.split(","))
    (Path(mounted.mount_point) / "file").write_text("kept")
    await lab.storages.detach("data")
    assert mounts_at(mounted.mount_point) == []
    assert os.listdir(lab.roots.storages) == []
    again = await lab.storages.attach(request(read_only=True))
    file = Path(again.mount_point) / "file"
    assert file.read_text() == "kept"
    with pytest.raises(OSError, match="Read-only") as caught:
        file.write_text("changed")
    assert caught.value.errno == errno.EROFS


async def test_a_wrong_file_system_is_refused_and_the_right_one_mounts_after(lab: Lab) -> None:
    error = await refused(lab.storages.attach(request("squashfs")), Reason.MOUNT_REFUSED)
    assert error.fields["errno"] == "EINVAL"
    assert lab.devices.get("disk").users == frozenset()
    assert list(lab.roots.storages.iterdir()) == []
    mounted = await lab.storages.attach(request())
    assert len(mounts_at(mounted.mount_point)) == 1


async def test_an_option_that_the_file_system_does_not_know(lab: Lab) -> None:
    error = await refused(
        lab.storages.attach(request(options=("no_such_option",))), Reason.MOUNT_REFUSED
    )
    assert (error.fields["errno"], error.fields["options"]) == ("EINVAL", "no_such_option")


async def test_a_busy_mount_is_told_with_its_holder_and_can_be_detached_after(lab: Lab) -> None:
    mounted = await lab.storages.attach(request())
    held = Path(mounted.mount_point) / "held"
    with held.open("w"):
        error = await refused(lab.storages.detach("data"), Reason.UNMOUNT_REFUSED)
        assert f"process {os.getpid()}" in error.message
        assert str(held) in error.message
    await lab.storages.detach("data")
    assert mounts_at(mounted.mount_point) == []


async def test_a_new_agent_finds_the_mount_of_the_old_one(lab: Lab) -> None:
    mounted = await lab.storages.attach(request())
    lab.storages.acquire("data", "c1")
    lab.storages = lab.new_manager()
    await lab.storages.restore()
    assert lab.storages.get("data").mount_point == mounted.mount_point
    assert lab.storages.get("data").users == {"c1"}
    lab.storages.release("data", "c1")
    await lab.storages.detach("data")
    assert mounts_at(mounted.mount_point) == []


async def test_a_node_that_comes_late_is_mounted_once_it_is_there(lab: Lab, tmp_path: Path) -> None:
    """ENOENT from mount(2): tried again at the next event of the disk."""
    entry = lab.devices._table.entry("disk")
    node = entry.device.nodes[0]
    late = tmp_path / "late"
    device = replace(entry.device, nodes=(replace(node, path=str(late)),))
    lab.devices._table.put(replace(entry, device=device))
    attach = asyncio.ensure_future(lab.storages.attach(request()))
    while not (lab.roots.storages / "data").exists():
        await turns(1)
    os.mknod(late, 0o600 | 0o060000, os.makedev(node.major, node.minor))
    uevent = Path(device.sysfs_path) / "uevent"
    uevent.write_text("change")
    mounted = await attach
    assert len(mounts_at(mounted.mount_point)) == 1


async def test_many_rounds_leave_nothing(lab: Lab) -> None:
    """Mounts, directories and descriptors are as before."""
    await lab.files.start()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(often(100)):
        await lab.storages.attach(request())
        await lab.storages.detach("data")
    assert len(os.listdir("/proc/self/fd")) == before
    assert mounts_at(str(lab.roots.storages / "data")) == []
    assert list(lab.roots.storages.iterdir()) == []


async def test_mounting_in_a_worker_is_seen_by_all(lab: Lab) -> None:
    """The worker shares the agent's mount namespace, or its mounts would die with it."""
    mounted = await lab.storages.attach(request())
    await lab.files.close()
    assert len(mounts_at(mounted.mount_point)) == 1
    assert (await lab.files.statfs(mounted.mount_point, Deadline.after(20.0))).size > 8 * MIB


def test_numbers_of_real_nodes(tmp_path: Path) -> None:
    """A minor may need more than eight bits."""
    block = tmp_path / "block"
    os.mknod(block, 0o600 | 0o060000, os.makedev(259, 300_000))
    assert node_numbers(block) == NodeNumbers("b", 259, 300_000)
    char = tmp_path / "char"
    os.mknod(char, 0o600 | 0o020000, os.makedev(10, 237))
    assert node_numbers(char) == NodeNumbers("c", 10, 237)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(block)
    assert node_numbers(tmp_path / "file") is None
    assert node_numbers(tmp_path / "link") is None
    assert node_numbers(tmp_path / "nowhere") is None
    assert node_numbers(tmp_path / "file/x") is None
