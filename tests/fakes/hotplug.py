"""A hotplug board on fakes, and the slow pseudo files that it reads and writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from agent.core.deadlines import Deadline
from agent.core.hotplug import HotplugBoard
from tests.fakes.sysfs import FakeSysfs
from tests.fakes.uevents import FakeUevents


class FakeSlowFiles:
    """Plain files, read and written at once; `refuse` and `hang` say otherwise."""

    def __init__(self) -> None:
        self.reads: list[Path] = []
        self.writes: list[tuple[Path, str]] = []
        self.refusal: OSError | None = None
        self.hang: set[Path] = set()
        self.effect: Callable[[Path, str], None] = lambda _path, _text: None

    async def read_text(self, path: Path, deadline: Deadline) -> str:
        self.reads.append(path)
        if path in self.hang:
            await asyncio.Event().wait()
        return path.read_text()  # noqa: ASYNC240 - a plain file of the test

    async def write_text(self, path: Path, text: str, deadline: Deadline) -> None:
        if path.name == "control":
            return  # waits for a driver's probe, and changes nothing
        self.writes.append((path, text))
        if self.refusal is not None:
            raise self.refusal
        self.effect(path, text)


class Bench:
    """A fake guest and a board that watches it."""

    def __init__(self, sysfs: FakeSysfs, relooks: tuple[float, ...]) -> None:
        self.sysfs = sysfs
        self.kernel = FakeUevents()
        self.files = FakeSlowFiles()
        self.board = HotplugBoard(
            tree=sysfs.tree, source=self.kernel, files=self.files, relooks=relooks
        )

    def announce(self, action: str, path: Path, subsystem: str = "block", **more: str) -> None:
        self.kernel.send(action, self.sysfs.devpath(path), subsystem, **more)


@asynccontextmanager
async def bench(
    base: Path, *, acpi: bool = True, relooks: tuple[float, ...] = ()
) -> AsyncIterator[Bench]:
    """Without `relooks` only events make the board look, so a test sees which do."""
    made = Bench(FakeSysfs(base, acpi=acpi), relooks)
    made.board.start()
    try:
        yield made
    finally:
        made.board.close()


async def turns(count: int = 20) -> None:
    """Let the event loop run: its readers and every task that is ready."""
    for _ in range(count):
        await asyncio.sleep(0)
