"""A storage manager whose mounts are lines of a table and whose other calls are made for real.

So directories and sysfs files below the test's own folder are as after the real calls; a
storage's mount point is the plain directory that it would be mounted on.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agent.core.deadlines import Deadline
from agent.core.fileops import MountCall
from agent.core.sources import Source
from agent.handlers.storage.base import Tools
from agent.handlers.storage.manager import StorageManager
from agent.linux import pseudo
from agent.linux.mountcalls import from_message
from agent.linux.mounting import UnmountFlag
from tests.fakes.devices import DeviceBench, device_bench
from tests.fakes.inline_workers import InlineWorkers
from tests.fakes.storages import FakeFileCalls, made_from

PAGE = 2 << 20
"""Bytes of the guest's default huge page."""


class SourceFiles(InlineWorkers):
    """`errno` is that of the call number `fail_at`; with `late` the call is made all the same."""

    def __init__(self, mountinfo: Path) -> None:
        super().__init__()
        self.kernel = FakeFileCalls(mountinfo)
        self.late = False
        self.copies: list[dict[str, Any]] = []
        self.changed = True

    @property
    def mounts(self) -> list[MountCall]:
        return self.kernel.mounts

    async def _run(self, call: str, obj: str, deadline: Deadline, **arguments: Any) -> Any:
        failing = len(self.calls) + 1 == self.fail_at
        refusal = OSError(self.errno, f"{call}: {os.strerror(self.errno)}", obj)
        if failing and not self.late:
            self.calls.append(call)
            raise refusal
        turn, self.fail_at = self.fail_at, 0
        try:
            return await self._done(call, obj, deadline, arguments)
        finally:
            self.fail_at = turn
            if failing:
                raise refusal

    async def _done(
        self, call: str, obj: str, deadline: Deadline, arguments: dict[str, Any]
    ) -> Any:
        target = arguments.get("target", "")
        if call in ("mount", "unmount", "refresh_copy"):
            self.calls.append(call)
        match call:
            case "mount":
                await self.kernel.mount(from_message(arguments["plan"]), target, deadline)
            case "unmount":
                await self.kernel.unmount(target, UnmountFlag(arguments["flags"]), deadline)
            case "refresh_copy":
                self.copies.append(arguments)
                return [self.changed, 1, []]
            case _:
                return await super()._run(call, obj, deadline, **arguments)
        return None


class SourceBench:
    """The manager and what a failed request must leave as it was."""

    def __init__(self, lab: DeviceBench, base: Path) -> None:
        self.lab = lab
        self.base = base
        self.roots = replace(lab.sysfs.roots, local=base / "local")
        self.files = SourceFiles(self.roots.proc / "self/mountinfo")
        self.pools = self.roots.sys / "kernel/mm/hugepages"
        self.add_pool(PAGE)
        (self.roots.proc / "meminfo").write_text("MemTotal: 4194304 kB\nHugepagesize:    2048 kB\n")
        self.storages = self.new_manager()

    def new_manager(self) -> StorageManager:
        made = StorageManager(
            devices=self.lab.devices,
            board=self.lab.board,
            files=self.files,
            state=self.lab.state,
            events=self.lab.events,
            default_timeout=30.0,
        )
        made._tools = self.tools
        return made

    @property
    def tools(self) -> Tools:
        return Tools(
            devices=self.lab.devices, roots=self.roots, files=self.files, board=self.lab.board
        )

    def add_pool(self, size: int, pages: int = 0) -> Path:
        pool = self.pools / f"hugepages-{size >> 10}kB"
        pool.mkdir(parents=True, exist_ok=True)
        (pool / "nr_hugepages").write_text(f"{pages}\n")
        (pool / "surplus_hugepages").write_text("0\n")
        return pool

    def pages(self, size: int = PAGE) -> int:
        return int((self.pools / f"hugepages-{size >> 10}kB/nr_hugepages").read_text())

    async def attach(self, storage_id: str, source: Source, **more: object) -> MountCall:
        """The one mount of it."""
        await self.storages.attach(made_from(source, storage_id, **more))
        return self.files.mounts[-1]

    def point(self, storage_id: str) -> Path:
        return self.roots.storages / storage_id

    def traces(self) -> tuple[object, ...]:
        """Everything that a failed request must leave as it was."""
        folders = (self.roots.storages, self.roots.local, self.roots.huge_pages)
        return (
            list(self.files.kernel.mounted),
            [sorted(map(str, folder.rglob("*"))) for folder in folders],
            {path: (path / "nr_hugepages").read_text().strip() for path in self.pools.iterdir()},
            self.lab.state.load_all("storages"),
            self.storages.list(),
            dict(self.storages._points),
        )


@asynccontextmanager
async def source_bench(base: Path) -> AsyncIterator[SourceBench]:
    whole = patch.object(pseudo, "write", lambda path, text: path.write_text(text))
    async with device_bench(base, relooks=()) as lab:
        made = SourceBench(lab, base)
        try:
            # A plain file is not replaced by a shorter number, as one in sysfs is.
            with whole:
                yield made
        finally:
            await made.storages.close()


async def every_call_fails(
    bench: SourceBench, storage_id: str, source: Source, *, errno: int, late: bool = False
) -> int:
    """Attach with the first call failing, then the second, until nothing fails; how many did.

    After each the traces must be those of before; at the end the storage is attached.
    """
    before, files = bench.traces(), bench.files
    for number in range(1, 100):
        files.calls.clear()
        files.fail_at, files.errno, files.late = number, errno, late
        try:
            await bench.storages.attach(made_from(source, storage_id))
        except Exception:  # noqa: BLE001 - whatever it ends with
            after = bench.traces()
        else:
            files.fail_at = 0
            return number - 1
        assert after == before, (number, files.calls)
    raise AssertionError("it never succeeds")
