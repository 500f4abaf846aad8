"""A storage manager on a fake guest: mounts are lines of a mountinfo file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.core.deadlines import Deadline
from agent.core.fileops import BindMount, FsMount, MountCall, OverlayMount
from agent.core.model import StorageRequest
from agent.core.sources import BlockSource, Source
from agent.handlers.storage.manager import StorageManager
from agent.linux.mounting import MountFlag, UnmountFlag
from tests.fakes.devices import DeviceBench, device_bench, request


class FakeFileCalls:
    """mount and umount as a kernel would answer; `errors` come first, in order."""

    def __init__(self, mountinfo: Path) -> None:
        self.calls: list[tuple[str, str]] = []
        self.mounts: list[MountCall] = []
        self.groups: list[tuple[str, int]] = []
        self.errors: list[int] = []
        self.unmount_error: int | None = None
        self.hang: asyncio.Event | None = None
        self.stuck: dict[str, asyncio.Event] = {}
        self._mountinfo = mountinfo
        self._lines: list[tuple[int, str, MountCall]] = []
        self._next_id = 100
        self._write()

    async def mount(self, call: MountCall, target: str, deadline: Deadline) -> None:
        self.calls.append(("mount", target))
        if self.hang is not None:
            self.stuck[target] = asyncio.Event()
            await self.hang.wait()
        if self.errors:
            self._fail(self.errors.pop(0), "mount", target)
        self.mounts.append(call)
        self.add(call, target)

    async def apply_fs_group(
        self, path: str, gid: int, deadline: Deadline, *, read_only: bool, on_mismatch_only: bool
    ) -> None:
        self.calls.append(("fs_group", path))
        if self.errors:
            self._fail(self.errors.pop(0), "fchownat", path)
        self.groups.append((path, gid))

    async def unmount(self, target: str, flags: UnmountFlag, deadline: Deadline) -> None:
        self.calls.append(("detach" if UnmountFlag.DETACH in flags else "unmount", target))
        if self.unmount_error is not None:
            self._fail(self.unmount_error, "umount2", target)
        self.drop(target)

    async def check_empty_directory(self, path: str, deadline: Deadline) -> None:
        self.calls.append(("check", path))
        if os.listdir(path):
            self._fail(39, "readdir", path)

    async def check_regular_file(self, path: str, deadline: Deadline) -> None:
        self.calls.append(("check", path))

    async def settled(self, obj: str, patience: float | None = None) -> bool:
        stuck = self.stuck.get(obj)
        if stuck is not None and patience is None:
            await stuck.wait()
        return stuck is None or stuck.is_set()

    def add(self, call: MountCall, target: str) -> None:
        self._next_id += 1
        self._lines.append((self._next_id, target, call))
        self._write()

    def drop(self, target: str) -> None:
        for number, (_, where, _) in reversed(list(enumerate(self._lines))):
            if where == target:
                del self._lines[number]
                break
        self._write()

    @property
    def mounted(self) -> list[str]:
        return [target for _, target, _ in self._lines]

    def _fail(self, number: int, call: str, obj: str) -> None:
        raise OSError(number, f"{call}: {os.strerror(number)}", obj)

    def _write(self) -> None:
        text = "20 1 8:1 / / rw - ext4 /dev/root rw\n"
        for number, target, call in self._lines:
            mode = "ro" if MountFlag.RDONLY in call.flags else "rw"
            text += f"{number} 20 254:16 / {target} {mode} - {_type_and_source(call)} rw\n"
        self._mountinfo.write_text(text)


def _type_and_source(call: MountCall) -> str:
    match call:
        case FsMount():
            return f"{call.fs_type} {call.source}"
        case OverlayMount():
            return "overlay overlay"
        case BindMount():
            return "ext4 /dev/root"


class StorageBench:
    """Devices and storages, and what was asked of the kernel."""

    def __init__(self, lab: DeviceBench) -> None:
        self.lab = lab
        self.roots = lab.sysfs.roots
        self.files = FakeFileCalls(self.roots.proc / "self/mountinfo")
        self.storages = self.new_manager()

    def new_manager(self) -> StorageManager:
        return StorageManager(
            devices=self.lab.devices,
            board=self.lab.board,
            files=self.files,  # type: ignore[arg-type]
            state=self.lab.state,
            events=self.lab.events,
            default_timeout=30.0,
        )

    async def plug(self, device_id: str = "disk", slot: str = "02", name: str = "vdb") -> Path:
        """Plug and attach a disk; returns its function's directory."""
        bus = slot
        port = self.lab.sysfs.port_with_slot(slot, bus)
        function = self.lab.sysfs.virtio_disk(port, f"0000:{bus}:00.0", name)
        await self.lab.devices.attach(request(device_id, f"{slot}/00"))
        return function

    def traces(self) -> tuple[object, ...]:
        """Everything that a failed request must leave as it was."""
        folder = self.roots.storages
        return (
            self.files.mounted,
            sorted(path.name for path in folder.iterdir()) if folder.exists() else [],
            sorted(self.lab.state.load_all("storages")),
            [device.users for device in self.lab.devices.list()],
            self.storages.list(),
            dict(self.storages._points),
        )


@asynccontextmanager
async def storage_bench(base: Path) -> AsyncIterator[StorageBench]:
    async with device_bench(base, relooks=()) as lab:
        made = StorageBench(lab)
        try:
            yield made
        finally:
            await made.storages.close()


def storage(
    storage_id: str = "data",
    device_id: str = "disk",
    *,
    fs_type: str = "ext4",
    **more: object,
) -> StorageRequest:
    return made_from(BlockSource(device_id=device_id, fs_type=fs_type), storage_id, **more)


def made_from(source: Source, storage_id: str = "data", **more: object) -> StorageRequest:
    return StorageRequest(id=storage_id, source=source, **more)  # type: ignore[arg-type]
