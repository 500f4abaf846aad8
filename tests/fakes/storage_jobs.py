"""A storage's job on fakes, for what is made before the mount."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from agent.core.deadlines import Deadline
from agent.core.model import DeviceNode, NodeType, StorageRequest
from agent.core.sources import TmpfsSource
from agent.core.undo import UndoStack
from agent.handlers.storage import mappings
from agent.handlers.storage.base import Tools
from agent.handlers.storage.job import Job, Ledger
from agent.handlers.storage.pieces import Piece
from tests.fakes.devicemapper import FakeDeviceMapper
from tests.fakes.hotplug import Bench, bench
from tests.fakes.inline_workers import InlineWorkers

ID = "data"


@dataclass
class JobBench:
    """A guest with device-mapper; `noted` are the pieces that were written down."""

    bench: Bench
    files: InlineWorkers
    mapper: FakeDeviceMapper
    noted: list[Piece] = field(default_factory=list)

    @property
    def tools(self) -> Tools:
        return Tools(
            devices=cast(Any, None),  # nobody here asks for devices
            roots=self.bench.sysfs.roots,
            files=self.files,
            board=self.bench.board,
        )

    def job(self, undo: UndoStack, deadline: Deadline | None = None) -> Job[Any]:
        tools, within = self.tools, Deadline.after(60.0)
        return Job(
            request=StorageRequest(id=ID, source=TmpfsSource()),
            source=None,
            deadline=deadline or within,
            tools=tools,
            undo=undo,
            ledger=Ledger(
                note=self.noted.append,
                take_back=lambda piece: mappings.take_back(tools, piece, within),
            ),
            locations={},
        )

    def disk(self, name: str, dev: str, data: bytes) -> DeviceNode:
        """A disk without partitions; its node is a file with `data`."""
        sysfs = self.bench.sysfs
        path = sysfs.disk(sysfs.sys / "devices/virtual/block", name, dev=dev, size=len(data))
        sysfs.remove(path / f"{name}1")
        sysfs.link(sysfs.sys / "dev/block" / dev, str(path))
        node = sysfs.roots.dev / name
        node.write_bytes(data)
        major, minor = map(int, dev.split(":"))
        return DeviceNode(path=str(node), type=NodeType.BLOCK, major=major, minor=minor)

    def directory(self, node: DeviceNode) -> Path:
        return self.bench.sysfs.sys / f"devices/virtual/block/{Path(node.path).name}"


@asynccontextmanager
async def job_bench(base: Path) -> AsyncIterator[JobBench]:
    """The caller puts `mapper.ioctl` in the place of fcntl's."""
    async with bench(base) as made:
        yield JobBench(made, InlineWorkers(), FakeDeviceMapper(made.sysfs))
