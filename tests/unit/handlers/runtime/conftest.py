"""A bed for containers: real code of ours, a fake crun and a fake PID 1 at the wire."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.core.exits import ExitWatcher
from agent.core.model import (
    ContainerRequest,
    ExecRequest,
    ProcessExit,
    ProcessRef,
    RootPath,
    Stream,
)
from agent.core.pid1 import Pid1Client
from agent.core.roots import Roots
from agent.core.state import StateStore
from agent.handlers.runtime.containers import Containers
from agent.handlers.runtime.context import RuntimeContext
from agent.handlers.runtime.crun import Crun
from agent.handlers.runtime.processes import Processes
from agent.handlers.runtime.streams import StreamHome
from tests.fakes.crun import FakeCrun, FakeGroup, reaping
from tests.fakes.managers import FakeDevices, FakeEvents, FakeFiles, FakeStorages
from tests.fakes.pid1 import FakePid1


class Life:
    """One life of the agent."""

    def __init__(self, bed: Bed) -> None:
        self._client = Pid1Client(bed.pid1.path)
        self.exits = ExitWatcher(self._client, retry=0.01)
        self.events = FakeEvents()
        self.context = RuntimeContext(
            roots=bed.roots,
            runtime=Crun(bed.roots),
            exits=self.exits,
            state=StateStore(bed.roots.state),
            events=self.events,
            files=bed.files,
            devices=bed.devices,
            storages=bed.storages,
            streams=StreamHome(keeper=self._client, spools=bed.roots.spools),
            parent=lambda: "/pods/s",
            cgroup=FakeGroup,
        )
        self.containers = Containers(self.context)
        self.processes = Processes(self.context, self.containers)

    async def begin(self) -> None:
        await self.exits.start()
        await self.containers.restore()

    async def end(self) -> None:
        """As `kill -9` leaves it: nothing is changed, everything is closed."""
        await self.containers.close()
        await self.exits.stop()
        self._client.close()

    async def output(self, container_id: str, exec_id: str = "") -> bytes:
        """All of standard output, once the process has ended."""
        ref = ProcessRef(container_id=container_id, exec_id=exec_id)
        chunks = self.processes.output(ref, {Stream.STDOUT: 0})
        return b"".join([chunk.data async for chunk in chunks])

    async def wait(self, container_id: str, exec_id: str = "") -> ProcessExit:
        return await self.processes.wait(ProcessRef(container_id=container_id, exec_id=exec_id))


class Bed:
    """What outlives the agent."""

    def __init__(self, top: Path, pid1: FakePid1) -> None:
        self.top = top
        self.roots = Roots(run=top, proc=top / "proc", cgroup=top / "cgroup")
        self.pid1 = pid1
        self.crun = FakeCrun(top / "bin", self.roots, pid1)
        self.files = FakeFiles()
        self.devices = FakeDevices()
        self.root = top / "root"
        self.root.mkdir()
        self.storages = FakeStorages({"data": self.root})
        self._lives: list[Life] = []

    async def start(self) -> Life:
        life = Life(self)
        self._lives.append(life)
        await life.begin()
        return life

    async def restart(self, life: Life) -> Life:
        await life.end()
        self._lives.remove(life)
        return await self.start()

    async def close(self) -> None:
        for life in self._lives:
            await life.end()

    def request(self, script: str = "exit 0", **changes: Any) -> ContainerRequest:
        """A container `c1` that runs a shell script."""
        terminal = changes.pop("terminal", False)
        process = {"args": ["/bin/sh", "-c", script], "terminal": terminal}
        request = ContainerRequest(
            id="c1",
            spec=json.dumps({"process": process}).encode(),
            rootfs=RootPath(path=str(self.root)),
            timeout=10,
        )
        return replace(request, **changes)

    def exec_request(self, script: str, exec_id: str = "e1", **process: Any) -> ExecRequest:
        whole = {"args": ["/bin/sh", "-c", script], **process}
        return ExecRequest(
            container_id="c1", exec_id=exec_id, process=json.dumps(whole).encode(), timeout=10
        )

    def left(self) -> dict[str, object]:
        """Everything that a container may leave behind, where there is any."""
        folders = ("bundles", "spools", "state/containers", "state/processes", "crun", "consoles")
        found: dict[str, object] = {
            name: names
            for name in folders
            if (names := sorted(os.listdir(self.top / name) if (self.top / name).is_dir() else ()))
        }
        kept = {
            "store": sorted(self.pid1.store),
            "mounts": self.files.mounts,
            "devices": self.devices.users,
            "storages": self.storages.users,
        }
        return found | {name: value for name, value in kept.items() if value}


@pytest.fixture
async def bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    """In a directory with a short name, because of the length of a socket's path."""
    async with AsyncExitStack() as stack:
        stack.enter_context(reaping())
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bed")))
        pid1 = await stack.enter_async_context(FakePid1(top / "init.sock"))
        bed = Bed(top, pid1)
        monkeypatch.setenv("PATH", f"{bed.crun.directory}:{os.environ['PATH']}")
        yield bed
        await bed.close()


@pytest.fixture
async def life(bed: Bed) -> Life:
    return await bed.start()
