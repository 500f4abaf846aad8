"""A guest in which every class of storages can be attached, and a call of each can fail.

A case is one request and what it needs; every class must have one. All that a failed request
must leave as it was is the guest's `traces`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agent.core import commands
from agent.core.events import EventLog
from agent.core.model import FsGroup, StorageRequest
from agent.core.pci import PciPath
from agent.core.sources import (
    BindSource,
    BlockSource,
    CephSource,
    CifsSource,
    CryptSetup,
    HugetlbSource,
    LocalSource,
    NfsSource,
    NinePSource,
    OverlaySource,
    PmemSource,
    Source,
    StorageDirectory,
    TmpfsSource,
    VeritySetup,
    VirtiofsSource,
    WatchedSource,
)
from agent.handlers.storage import resolving
from agent.handlers.storage.base import Tools
from agent.handlers.storage.manager import StorageManager
from tests.fakes.devicemapper import FakeDeviceMapper
from tests.fakes.devices import DeviceBench, device_bench, request
from tests.fakes.failing_files import FailingFiles, FailingPrograms, FailingState, Seam
from tests.fakes.storages import FakeFileCalls, made_from

MIB = 1 << 20
PAGE = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request, by what it is made from; `bases` are storages that it builds on.

    `keeps` is what the user has of it in these after the detachment.
    """

    source: Source
    bases: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def request(self) -> StorageRequest:
        return made_from(self.source, "data", **self.more)


def _in(storage_id: str, path: str = "") -> StorageDirectory:
    return StorageDirectory(storage_id=storage_id, path=path)


def _block(**more: Any) -> BlockSource:
    return BlockSource(device_id="disk", fs_type="ext4", **more)


_CRYPT = CryptSetup(key=bytes(64))
_VERITY = VeritySetup(root_hash="ab" * 32, hash_offset=8 * MIB, superblock=False)
_GROUP = {"fs_group": FsGroup(gid=1000)}
_LAYERS = (_in("low", "a"), _in("low", "b"))

CASES = {
    "disk": Case(source=_block(), more=_GROUP),
    "partition": Case(source=_block(partition=1)),
    "new disk": Case(source=_block(format_if_empty=True)),
    "new disk below dm-crypt": Case(source=_block(format_if_empty=True, crypt=_CRYPT)),
    "dm-verity": Case(source=_block(verity=_VERITY), more={"read_only": True}),
    "disk by its address": Case(
        source=BlockSource(fs_type="ext4", address=PciPath.parse("03/00"), crypt=_CRYPT)
    ),
    "pmem": Case(source=PmemSource(device_id="disk", fs_type="ext4", dax=True)),
    "virtiofs": Case(source=VirtiofsSource(tag="shared"), more=_GROUP),
    "9p": Case(source=NinePSource(tag="shared")),
    "tmpfs": Case(source=TmpfsSource(size=MIB), more=_GROUP),
    "hugetlb": Case(source=HugetlbSource(size=4 * PAGE)),
    "bind": Case(source=BindSource(path="/GUEST/files")),
    "bind of a file": Case(source=BindSource(path="/GUEST/files/file")),
    "bind in a storage": Case(source=BindSource(directory=_in("low", "a")), bases=("low",)),
    "overlay": Case(source=OverlaySource(lower=_LAYERS), bases=("low",)),
    "overlay to write to": Case(
        source=OverlaySource(lower=_LAYERS, upper=_in("up", "deep/down")),
        bases=("low", "up"),
        keeps=("up/deep", "up/deep/down", "up/deep/work"),
    ),
    "nfs": Case(source=NfsSource(server="files.example", path="/export")),
    "cifs": Case(source=CifsSource(server="files.example", share="share", user="u", password="p")),
    "ceph": Case(source=CephSource(monitors=("one.example", "two.example"))),
    "local": Case(source=LocalSource(), more=_GROUP),
    "local in a storage": Case(source=LocalSource(storage_id="up"), bases=("up",)),
    "watched": Case(source=WatchedSource(path="/GUEST/files", interval=0)),
    "watched in a storage": Case(
        source=WatchedSource(directory=_in("low", "a"), interval=5), bases=("low",)
    ),
}


class FaultBench:
    """The managers of one agent, and the guest that outlives it."""

    def __init__(self, lab: DeviceBench, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lab = lab
        self.base = base
        self.roots = replace(lab.sysfs.roots, local=base / "local")
        self.mapper = FakeDeviceMapper(lab.sysfs)
        self.seam = Seam()
        self.state = FailingState(self.roots.state)
        self.files = FailingFiles(self.seam, FakeFileCalls(self.roots.proc / "self/mountinfo"))
        self.programs = FailingPrograms(self.seam)
        self.storages = self._manager()
        self._keeps: list[Path] = []
        monkeypatch.setattr("fcntl.ioctl", self.mapper.ioctl)
        monkeypatch.setattr(commands, "run", self.programs.run)
        monkeypatch.setattr(resolving, "connect", self._connect)
        self._furnish()

    async def plug(self) -> None:
        for number, name in ((2, "vdb"), (3, "vdc")):
            sysfs, dev = self.lab.sysfs, f"254:{16 * (number - 1)}"
            port = sysfs.port_with_slot(f"0{number}", f"0{number}")
            function = sysfs.virtio_disk(port, f"0000:0{number}:00.0", name, dev=dev, size=16 * MIB)
            (disk,) = function.glob("virtio*/block/*")
            for path, numbers in ((disk, dev), (disk / f"{name}1", "254:17")):
                sysfs.link(sysfs.sys / "dev/block" / numbers, str(path))
                sysfs.node(path.name, numbers)
                (self.roots.dev / path.name).touch()
                os.truncate(self.roots.dev / path.name, 16 * MIB)
        await self.lab.devices.attach(request("disk", "02/00"))

    async def prepare(self, case: Case) -> StorageRequest:
        """Attach what the case builds on; its request."""
        for base in case.bases:
            made = await self.storages.attach(made_from(TmpfsSource(), base))
            for name in ("a", "b"):
                (Path(made.mount_point) / name).mkdir()
        self._keeps = [self.roots.storages / path for path in case.keeps]
        return _within(case.request, self.base / "guest")

    def remove_kept(self) -> None:
        """As the user of the storages that the case builds on may do."""
        for path in reversed(self._keeps):
            path.rmdir()

    async def restart(self) -> None:
        """As a new agent after the death of the first: nothing but what was saved."""
        self.seam = Seam()
        self.state = FailingState(self.roots.state)
        self.lab.state = self.state
        self.lab.events = EventLog(self.state)
        self.lab.devices = self.lab.new_manager()
        self.files = FailingFiles(self.seam, self.files.kernel)
        self.storages = self._manager()
        await self.lab.devices.restore()
        await self.storages.restore()

    def traces(self) -> dict[str, object]:
        """Everything that a failed request must leave as it was."""
        manager = self.storages
        return {
            "mounts": [f"{call} {target}" for _, target, call in self.files.kernel._lines],
            "mappings": dict(self.mapper.mappings),
            "files": self._tree(),
            "devices": {each.request.id: each.users for each in self.lab.devices.list()},
            "storages": manager.list(),
            "points": dict(manager._points),
            "builders": dict(manager._graph._builders),
            "visitors": dict(manager._graph._visitors),
            "services": list(manager._services._running),
            "leaving": set(manager._leaving),
            "under way": manager._attaching.requests(),
            "tasks": len(asyncio.all_tasks()),
        }

    def _tree(self) -> dict[str, str]:
        """Directories, and files with their content; the count of events goes on."""
        found = {}
        for path in sorted(self.base.rglob("*")):
            if "events" not in path.parts:
                text = path.read_text() if path.is_file() and path.stat().st_size < MIB else ""
                found[str(path.relative_to(self.base))] = text
        return found

    def _manager(self) -> StorageManager:
        made = StorageManager(
            devices=self.lab.devices,
            board=self.lab.board,
            files=self.files,
            state=self.state,
            events=self.lab.events,
            default_timeout=30.0,
        )
        made._tools = Tools(
            devices=self.lab.devices, roots=self.roots, files=self.files, board=self.lab.board
        )
        return made

    async def _connect(self, address: str, port: int) -> None:
        async def connected() -> None:
            return

        await self.seam.make(f"connect to {address}:{port}", connected)

    def _furnish(self) -> None:
        sysfs = self.lab.sysfs
        sysfs.write(sysfs.sys / "fs/virtiofs/3/tag", "shared")
        sysfs.write(sysfs.sys / "bus/virtio/devices/virtio9/mount_tag", "shared\0")
        pool = sysfs.sys / "kernel/mm/hugepages/hugepages-2048kB"
        sysfs.write(pool / "nr_hugepages", "3")
        sysfs.write(pool / "surplus_hugepages", "0")
        sysfs.write(sysfs.roots.proc / "meminfo", "Hugepagesize:    2048 kB")
        sysfs.write(self.base / "guest/files/file", "text")
        (sysfs.sys / "devices/virtual/block").mkdir(parents=True)
        for own in (self.roots.storages, self.roots.local, self.roots.huge_pages):
            own.mkdir(parents=True, exist_ok=True)
        for kind in ("storages", "storage-leftovers"):
            (self.roots.state / kind).mkdir(parents=True, exist_ok=True)


def _within(request: StorageRequest, guest: Path) -> StorageRequest:
    match request.source:
        case BindSource(path=path) | WatchedSource(path=path) if path:
            source = replace(request.source, path=path.replace("/GUEST", str(guest)))
            return replace(request, source=source)
    return request


@asynccontextmanager
async def fault_bench(base: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FaultBench]:
    async with device_bench(base, relooks=()) as lab:
        made = FaultBench(lab, base, monkeypatch)
        await made.plug()
        try:
            yield made
        finally:
            await made.storages.close()
