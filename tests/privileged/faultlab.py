"""An agent's storages on the real kernel, in a room of their own, whose workers fail.

The room is a tmpfs that shares no mount with anybody; whatever an attachment makes shows in
the lab's `traces`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from agent.core.events import EventLog
from agent.core.fileops import FileWorkers
from agent.core.hotplug import HotplugBoard
from agent.core.kinds import BlockExpectation, BlockInfo
from agent.core.model import AttachedDevice, DeviceNode, DeviceRequest, NodeType
from agent.core.pci import PciPath
from agent.core.roots import Roots
from agent.core.state import StateStore
from agent.core.tree import SysfsTree
from agent.handlers.devices.manager import DeviceManager
from agent.handlers.devices.table import Entry
from agent.handlers.storage.manager import StorageManager
from agent.linux import mounting
from agent.linux.block import node_numbers
from agent.linux.mounting import MountEntry, MountFlag, UnmountFlag, parse_mountinfo
from agent.linux.uevents import KernelUevents
from tests.privileged import failing_worker
from tests.privileged.failing_worker import Script

POOLS = Path("/sys/kernel/mm/hugepages")
BLOCK = Path("/sys/class/block")


@contextmanager
def private_room(path: Path) -> Iterator[Path]:
    """Whatever is still mounted in it at the end goes too."""
    path.mkdir()
    mounting.mount("room", str(path), "tmpfs")
    mounting.mount(None, str(path), None, MountFlag.PRIVATE)
    try:
        (path / "guest/files").mkdir(parents=True)
        (path / "guest/files/file").write_text("text")
        yield path
    finally:
        for entry in reversed(mounts_below(path)):
            mounting.unmount(entry.mount_point, UnmountFlag.DETACH)


def mounts_below(path: Path) -> list[MountEntry]:
    entries = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    return [entry for entry in entries if Path(entry.mount_point).is_relative_to(path)]


class FaultLab:
    """`disk` is a block device that stands for one behind a PCI function, "" for none."""

    def __init__(self, room: Path, disk: str, script: Script, state: StateStore) -> None:
        self.room = room
        self.roots = Roots(run=room / "innkeeper", local=room / "local")
        self.files = FileWorkers(argv=failing_worker.argv(script.path))
        self.board = HotplugBoard(
            tree=SysfsTree(roots=self.roots), source=KernelUevents(), files=self.files
        )
        self.state = state
        self.events = EventLog(state)
        self.devices = DeviceManager(board=self.board, state=state, events=self.events)
        if disk:
            self.devices._table.put(Entry(device=_attached(disk), instance="1", served_by="block"))
        self.storages = StorageManager(
            devices=self.devices,
            board=self.board,
            files=self.files,
            state=state,
            events=self.events,
            default_timeout=60.0,
        )

    def traces(self) -> dict[str, object]:
        """What a failed attachment must leave as it was."""
        manager = self.storages
        return {
            "mounts": [str(entry) for entry in mounts_below(self.room)],
            "files": self._tree(),
            "mapped": sorted(path.name for path in BLOCK.glob("dm-*")),
            "pages": self._pages(),
            "saved": self.state.load_all("storages"),
            "left": self.state.load_all("storage-leftovers"),
            "devices": {each.request.id: each.users for each in self.devices.list()},
            "storages": manager.list(),
            "points": dict(manager._points),
            "builders": dict(manager._graph._builders),
        }

    def descriptors(self) -> list[int]:
        """How many files the agent has open, and its workers'."""
        worker = self.files._idle[0]
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), worker.pid)]

    def _pages(self) -> list[str]:
        """The pool is everybody's: it is looked at where pages were ever asked for."""
        if not self.roots.huge_pages.exists():
            return []
        return [path.read_text() for path in sorted(POOLS.glob("*/nr_hugepages"))]

    def _tree(self) -> list[str]:
        """State is looked at by itself."""
        found = (path for path in self.room.rglob("*") if self.roots.state not in path.parents)
        return sorted(map(str, found))


@asynccontextmanager
async def fault_lab(
    room: Path, disk: str, script: Script, state: StateStore | None = None
) -> AsyncIterator[FaultLab]:
    """At the end what is attached stays, as when an agent ends."""
    lab = FaultLab(room, disk, script, state or StateStore(room / "innkeeper/state"))
    lab.board.start()
    try:
        await lab.storages.restore()
        yield lab
    finally:
        await lab.storages.close()
        await lab.devices.close()
        lab.board.close()
        await lab.files.close()


def _attached(disk: str) -> AttachedDevice:
    numbers = node_numbers(disk)
    assert numbers is not None
    address = PciPath.parse("02/00")
    node = DeviceNode(path=disk, type=NodeType.BLOCK, major=numbers.major, minor=numbers.minor)
    facts: dict[str, Any] = {"driver": "loop", "numa_node": None, "iommu_group": None}
    return AttachedDevice(
        request=DeviceRequest(id="disk", address=address, kind=BlockExpectation()),
        pci_path=address,
        bdf="0000:01:00.0",
        sysfs_path=str((BLOCK / Path(disk).name).resolve()),
        nodes=(node,),
        info=BlockInfo(size=16 << 20, logical_block_size=512, read_only=False),
        **facts,
    )
