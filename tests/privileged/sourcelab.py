"""The storage manager on the real kernel, for storages that need no device.

Its worker calls can be made to fail, the n-th of them, before or after they were made. What a
failed attachment must leave as it was is `traces`: mounts, directories, huge pages, the tables
and the state of the agent.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from agent.core.deadlines import Deadline
from agent.core.events import EventLog
from agent.core.fileops import FileWorkers
from agent.core.hotplug import HotplugBoard
from agent.core.model import MountedStorage, StorageRequest
from agent.core.roots import Roots
from agent.core.sources import Source
from agent.core.state import StateStore
from agent.core.tree import SysfsTree
from agent.handlers.devices.manager import DeviceManager
from agent.handlers.storage.manager import StorageManager
from agent.linux import mounting
from agent.linux.mounting import MountEntry, UnmountFlag, parse_mountinfo
from agent.linux.uevents import KernelUevents

POOLS = Path("/sys/kernel/mm/hugepages")


class FaultyFiles(FileWorkers):
    """Call number `fail_at` ends with `errno`; with `late` it is made all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.fail_at = 0
        self.errno = 0
        self.late = False

    async def _run(self, call: str, obj: str, deadline: Deadline, **arguments: Any) -> Any:
        self.calls.append(call)
        if len(self.calls) != self.fail_at:
            return await super()._run(call, obj, deadline, **arguments)
        if self.late:
            with suppress(OSError):
                await super()._run(call, obj, deadline, **arguments)
        raise OSError(self.errno, f"{call}: {os.strerror(self.errno)}", obj)


class SourceLab:
    """Everything lies below `base`."""

    def __init__(self, base: Path) -> None:
        self.base = base.resolve()
        self.roots = Roots(run=self.base / "innkeeper", local=self.base / "local")
        self.files = FaultyFiles()
        self.board = HotplugBoard(
            tree=SysfsTree(roots=self.roots), source=KernelUevents(), files=self.files
        )
        self.board.start()
        self.state = StateStore(self.roots.state)
        self.events = EventLog(self.state)
        self.devices = DeviceManager(board=self.board, state=self.state, events=self.events)
        self.storages = self.new_manager()

    def new_manager(self) -> StorageManager:
        return StorageManager(
            devices=self.devices,
            board=self.board,
            files=self.files,
            state=self.state,
            events=self.events,
            default_timeout=60.0,
        )

    async def attach(self, storage_id: str, source: Source, **more: Any) -> Path:
        """Its mount point."""
        mounted = await self.mounted(storage_id, source, **more)
        return Path(mounted.mount_point)

    async def mounted(self, storage_id: str, source: Source, **more: Any) -> MountedStorage:
        return await self.storages.attach(StorageRequest(id=storage_id, source=source, **more))

    async def close(self) -> None:
        left = await self.storages.detach_all()
        await self.storages.close()
        await self.devices.close()
        self.board.close()
        await self.files.close()
        there = self.mounts()
        for entry in reversed(there):
            # Whatever went wrong, the next test shall not find it.
            mounting.unmount(entry.mount_point, UnmountFlag.DETACH)
        assert not left
        assert there == []

    def mounts(self) -> list[MountEntry]:
        """Those below `base`."""
        text = Path("/proc/self/mountinfo").read_text()
        return [
            entry
            for entry in parse_mountinfo(text)
            if Path(entry.mount_point).is_relative_to(self.base)
        ]

    def traces(self) -> tuple[object, ...]:
        run = self.roots.run
        folders = (run / "storages", run / "hugepages", self.roots.local)
        return (
            self.mounts(),
            [sorted(map(str, folder.rglob("*"))) for folder in folders],
            {str(path): path.read_text() for path in POOLS.glob("*/nr_hugepages")},
            self.state.load_all("storages"),
            self.storages.list(),
            dict(self.storages._points),
        )

    async def every_call_fails(
        self, storage_id: str, source: Source, *, errno: int, late: bool
    ) -> int:
        """Attach with the first call failing, then the second, until nothing fails."""
        before, files = self.traces(), self.files
        for number in range(1, 100):
            files.calls.clear()
            files.fail_at, files.errno, files.late = number, errno, late
            try:
                await self.attach(storage_id, source)
            except Exception:  # noqa: BLE001 - whatever it ends with
                after = self.traces()
            else:
                files.fail_at = 0
                return number - 1
            assert after == before, (number, files.calls)
        raise AssertionError("it never succeeds")


@asynccontextmanager
async def source_lab(base: Path) -> AsyncIterator[SourceLab]:
    lab = SourceLab(base)
    try:
        yield lab
    finally:
        lab.files.fail_at = 0
        await lab.close()
