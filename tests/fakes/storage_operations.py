"""Operations on mounted storages as the services see them, and the kernel's side of them."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, not_found, wrong_state
from agent.core.events import EventLog
from agent.core.fileops import FileSystemSize, Growth
from agent.core.kernel_log import KernelLog
from agent.core.log_evidence import LogEvidence
from agent.core.model import MountedStorage, StorageRequest
from agent.core.sources import BlockSource, Source
from agent.core.state import StateStore
from agent.handlers.storage.freezes import Freezes
from agent.handlers.storage.growing import ResizedStorage
from agent.handlers.storage.health import Health, StorageStats
from agent.handlers.storage.mountpoints import MountPoint
from agent.handlers.storage.operations import StorageOperations
from agent.handlers.storage.records import Phase, StorageRecord
from agent.handlers.storage.superblocks import MountTable
from agent.linux.fsctl import Grown
from tests.fakes.clock import FakeClock
from tests.fakes.hotplug import Bench, bench
from tests.fakes.kmsg import FakeKmsg

SIZE = 64 << 20
"""Bytes of the disk, and of the file system on it."""


class FakeStorageOperations:
    """A StorageOperations whose answers are set; it notes what it was asked for."""

    def __init__(self) -> None:
        self.answer = StorageStats(health=Health.GOOD)
        self.resized = ResizedStorage(before=0, size=0, device_size=0)
        self.trimmed = 0
        self.error: AgentError | None = None
        self.asked: list[tuple[str, str]] = []
        self.left: list[float] = []
        self.frozen_for: dict[str, float | None] = {}

    async def stats(self, storage_id: str, deadline: Deadline) -> StorageStats:
        self._note("stats", storage_id, deadline)
        return self.answer

    async def resize(self, storage_id: str, deadline: Deadline) -> ResizedStorage:
        self._note("resize", storage_id, deadline)
        return self.resized

    async def trim(self, storage_id: str, deadline: Deadline) -> int:
        self._note("trim", storage_id, deadline)
        return self.trimmed

    async def freeze(self, storage_id: str, seconds: float | None, deadline: Deadline) -> None:
        self._note("freeze", storage_id, deadline)
        self.frozen_for[storage_id] = seconds

    async def thaw(self, storage_id: str, deadline: Deadline) -> None:
        self._note("thaw", storage_id, deadline)
        self.frozen_for.pop(storage_id, None)

    def frozen(self, storage_id: str) -> bool:
        return storage_id in self.frozen_for

    def _note(self, what: str, storage_id: str, deadline: Deadline) -> None:
        self.asked.append((what, storage_id))
        self.left.append(deadline.left())
        if self.error is not None:
            raise self.error


class FakeFileSystems:
    """File systems by mount point: freezing, growing, trimming as a kernel answers.

    `frozen` are superblocks, by their `major:minor`; `errors` come first, by call.
    """

    def __init__(self, mountinfo: Path) -> None:
        self.calls: list[tuple[str, str]] = []
        self.frozen: set[str] = set()
        self.errors: dict[str, list[OSError | AgentError]] = {}
        self.sizes: dict[str, int] = {}
        self.stuck: set[str] = set()
        self.hang: dict[str, asyncio.Event] = {}
        self.free = 0
        self._mountinfo = mountinfo
        self._lines: list[str] = ["20 1 8:1 / / rw - ext4 /dev/root rw"]
        self.mount("20:1", "/nowhere", "proc proc rw")

    def mount(
        self, device: str, point: str, rest: str, *, root: str = "/", options: str = "rw"
    ) -> int:
        """A line of mountinfo; its mount id."""
        number = 20 + len(self._lines)
        self._lines.append(f"{number} 20 {device} {root} {point} {options} - {rest}")
        self._write()
        return number

    def unmount(self, point: str) -> None:
        self._lines = [line for line in self._lines if line.split()[4] != point]
        self._write()

    def change(self, point: str, old: str, new: str) -> None:
        self._lines = [
            line.replace(old, new) if line.split()[4] == point else line for line in self._lines
        ]
        self._write()

    def count(self, call: str) -> int:
        return [name for name, _ in self.calls].count(call)

    async def freeze(self, path: str, mount_id: int, deadline: Deadline) -> None:
        await self._begin("freeze", path)
        device = self._device(path, mount_id)
        if device in self.frozen:
            raise refusal(errno.EBUSY, path)
        self.frozen.add(device)

    async def thaw(self, path: str, mount_id: int, deadline: Deadline) -> None:
        await self._begin("thaw", path)
        device = self._device(path, mount_id)
        if device not in self.frozen:
            raise refusal(errno.EINVAL, path)
        self.frozen.remove(device)

    async def statfs(self, path: str, deadline: Deadline) -> FileSystemSize:
        await self._begin("statfs", path)
        size = self.sizes.get(path, 0)
        return FileSystemSize(
            size=size, free=self.free, available=self.free // 2, files=100, files_free=70
        )

    async def trim(self, path: str, mount_id: int, deadline: Deadline) -> int:
        await self._begin("trim", path)
        return self.free

    async def grow(self, wish: Growth, deadline: Deadline) -> Grown:
        await self._begin("grow", wish.path)
        before = self.sizes.get(wish.path, 0)
        self.sizes[wish.path] = max(before, wish.device_size)
        return {"before": before, "size": self.sizes[wish.path]}

    async def settled(self, obj: str, patience: float | None = None) -> bool:
        return obj not in self.stuck

    async def _begin(self, call: str, path: str) -> None:
        self.calls.append((call, path))
        if (hang := self.hang.get(call)) is not None:
            await hang.wait()
        if self.errors.get(call):
            raise self.errors[call].pop(0)

    def _device(self, path: str, mount_id: int) -> str:
        for line in reversed(self._lines):
            number, _, device, _, point, *_ = line.split()
            if point == path:
                if int(number) != mount_id:
                    raise refusal(errno.ESTALE, path)
                return device
        raise refusal(errno.ENOENT, path)

    def _write(self) -> None:
        self._mountinfo.parent.mkdir(parents=True, exist_ok=True)
        self._mountinfo.write_text("\n".join(self._lines) + "\n")


class FakeRecords:
    """The manager's records, and who works in a storage now."""

    def __init__(self) -> None:
        self.table: dict[str, StorageRecord] = {}
        self.leaving: set[str] = set()
        self.visits: list[tuple[str, str]] = []

    def add(
        self, storage_id: str, mount_id: int, *, source: Source | None = None, **more: object
    ) -> str:
        """A mounted storage; its mount point."""
        point = f"/mnt/{storage_id}"
        wanted = source or BlockSource(device_id="d1", fs_type="ext4")
        request = StorageRequest(id=storage_id, source=wanted, **more)  # type: ignore[arg-type]
        self.table[storage_id] = StorageRecord(
            storage=MountedStorage(request=request, mount_point=point),
            point=MountPoint(path=point, own=True),
            phase=Phase.MOUNTED,
            order=1,
            mount_id=mount_id,
        )
        return point

    def record(self, storage_id: str) -> StorageRecord:
        if storage_id not in self.table:
            raise not_found(f"no storage {storage_id}", reason=Reason.UNKNOWN_STORAGE)
        return self.table[storage_id]

    def using(self, storage_id: str, who: str) -> AbstractContextManager[None]:
        self.record(storage_id)
        if storage_id in self.leaving:
            raise wrong_state(f"storage {storage_id} is being detached")
        self.visits.append((storage_id, who))
        return nullcontext()


def refusal(number: int, obj: str) -> OSError:
    return OSError(number, os.strerror(number), obj)


class OperationsBench:
    """The operations on a fake guest whose disk `vdb` (254:16) is behind a virtio function."""

    def __init__(self, guest: Bench) -> None:
        self.guest = guest
        self.sysfs = guest.sysfs
        port = self.sysfs.port_with_slot("02", "01")
        function = self.sysfs.virtio_disk(port, "0000:01:00.0", size=SIZE)
        self.disk = function / "virtio_vdb/block/vdb"
        self.sysfs.link(self.sysfs.sys / "dev/block/254:16", str(self.disk))
        self.kernel = FakeFileSystems(self.sysfs.roots.proc / "self/mountinfo")
        self.records = FakeRecords()
        self.kmsg = FakeKmsg()
        self.log = KernelLog(self.kmsg)
        guest.board.tree = replace(guest.board.tree, log=LogEvidence(self.log))
        self.clock = FakeClock()
        self.state = StateStore(self.sysfs.roots.state)
        self.events = EventLog(self.state)
        self.operations = self.new_operations()

    def new_operations(self, patience: float = 0.0) -> StorageOperations:
        """As after a restart of the agent: nothing but what was saved."""
        roots = self.sysfs.roots
        freezes = Freezes(
            files=self.kernel,
            mounts=MountTable(roots),
            state=self.state,
            events=self.events,
            now=self.clock,
        )
        return StorageOperations(
            storages=self.records,
            files=self.kernel,
            board=self.guest.board,
            freezes=freezes,
            log=self.log,
            patience=patience,
        )

    def attach(
        self,
        storage_id: str = "data",
        *,
        device: str = "254:16",
        rest: str = "ext4 /dev/vdb rw",
        root: str = "/",
        **more: Any,
    ) -> str:
        """A mounted storage; its mount point."""
        number = self.kernel.mount(device, f"/mnt/{storage_id}", rest, root=root)
        point = self.records.add(storage_id, number, **more)
        self.kernel.sizes[point] = SIZE
        return point

    def resize_disk(self, size: int) -> None:
        """What virtio-blk does when its device tells a new capacity (set_capacity_and_notify)."""
        self.sysfs.write(self.disk / "size", str(size // 512))
        self.guest.announce("change", self.disk, RESIZE="1")

    def told(self) -> list[tuple[str, str]]:
        return [(event.kind, event.subject) for event in self.events._ring]


@asynccontextmanager
async def operations_bench(base: Path) -> AsyncIterator[OperationsBench]:
    async with bench(base) as guest:
        made = OperationsBench(guest)
        try:
            yield made
        finally:
            await made.operations.close()
            made.kmsg.close()
