"""A bed for containers: real code of ours, a fake PID 1 at the wire, and crun, fake or real.

`Life` is one life of the agent, `Bed` what outlives it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.core.exits import ExitWatcher
from agent.core.model import (
    ContainerRequest,
    ExecRequest,
    OutputChunk,
    ProcessExit,
    ProcessRef,
    RootPath,
    Stream,
)
from agent.core.pid1 import Pid1Client
from agent.core.roots import Roots
from agent.core.state import StateStore
from agent.handlers.runtime.bundle import Files
from agent.handlers.runtime.containers import Containers
from agent.handlers.runtime.context import Group, Nodes, RuntimeContext
from agent.handlers.runtime.crun import Crun
from agent.handlers.runtime.hooks import GuestHooks
from agent.handlers.runtime.nodes import ContainerNodes
from agent.handlers.runtime.processes import Processes
from agent.handlers.runtime.streams.streams import StreamHome
from agent.linux.mounting import parse_mountinfo
from tests.fakes.container_network import FakeNetwork
from tests.fakes.crun import FakeCrun, FakeGroup
from tests.fakes.managers import (
    FakeDevices,
    FakeEvents,
    FakeExclusiveCpus,
    FakeFiles,
    FakeNamespaces,
    FakeNodes,
    FakeOomKills,
    FakePressure,
    FakeStorages,
)
from tests.fakes.pid1 import FakePid1
from tests.fakes.support import support


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
            exclusive=bed.exclusive,
            network=bed.network,
            nodes=bed.nodes,
            pressure=bed.pressure,
            oom=bed.oom,
            namespaces=bed.namespaces,
            support=support,
            guest_hooks=lambda: bed.guest_hooks,
            streams=StreamHome(keeper=self._client, spools=bed.roots.spools),
            parent=lambda: "/pods/s",
            cgroup=bed.cgroup,
        )
        self.take(self.context)

    def take(self, context: RuntimeContext) -> None:
        """Have the managers work with this context."""
        self.context = context
        self.containers = Containers(context)
        self.processes = Processes(context, self.containers)

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
        pieces = self.processes.output(ref, {Stream.STDOUT: 0})
        return b"".join([each.data async for each in pieces if isinstance(each, OutputChunk)])

    async def wait(self, container_id: str, exec_id: str = "") -> ProcessExit:
        return await self.processes.wait(ProcessRef(container_id=container_id, exec_id=exec_id))


class Bed:
    """What outlives the agent; the run directory is `top`."""

    def __init__(
        self,
        roots: Roots,
        root: Path,
        pid1: FakePid1,
        *,
        files: Files,
        cgroup: Callable[[Roots, str], Group],
    ) -> None:
        self.top = roots.run
        self.roots = roots
        self.pid1 = pid1
        self.files = files
        self.cgroup = cgroup
        self.devices = FakeDevices()
        self.nodes: Nodes = ContainerNodes(roots)
        self.pressure = FakePressure()
        self.oom = FakeOomKills()
        self.namespaces = FakeNamespaces()
        self.guest_hooks: GuestHooks | None = None
        self.exclusive = FakeExclusiveCpus()
        self.network = FakeNetwork()
        self.root = root
        self.storages = FakeStorages({"data": self.root})
        self.lives: list[Life] = []

    async def start(self) -> Life:
        life = Life(self)
        self.lives.append(life)
        await life.begin()
        return life

    async def restart(self, life: Life) -> Life:
        await life.end()
        self.lives.remove(life)
        return await self.start()

    async def close(self) -> None:
        for life in self.lives:
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

    def mounts(self) -> list[str]:
        """What is mounted below the run directory."""
        return [
            entry.mount_point
            for entry in parse_mountinfo(Path("/proc/self/mountinfo").read_text())
            if entry.mount_point.startswith(f"{self.top}/")
        ]

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
            "mounts": self.mounts(),
            "devices": self.devices.users,
            "storages": self.storages.users,
            "exclusive CPUs": self.exclusive.counts,
            "interfaces": sorted(self.network.lent),
            "pressure": self.pressure.watched,
            "OOM kills": sorted(self.oom.tracked),
        }
        return found | {name: value for name, value in kept.items() if value}


def make_namespace(process: Path) -> None:
    """A network namespace for a process in a fake /proc."""
    (process / "ns").mkdir(parents=True)
    (process / "ns" / "net").touch()


class FakeBed(Bed):
    """With the fake crun, in a fake /proc, an empty /sys and a fake tree of cgroups."""

    def __init__(self, top: Path, pid1: FakePid1) -> None:
        root = top / "root"
        root.mkdir()
        self.noted = FakeFiles()
        parts = {name: top / name for name in ("sys", "proc", "cgroup")}
        roots = Roots(run=top, **parts)
        make_namespace(roots.proc / "self")
        super().__init__(roots, root, pid1, files=self.noted, cgroup=FakeGroup)
        self.nodes = self.made = FakeNodes()
        self.crun = FakeCrun(top / "bin", self.roots, pid1)

    def mounts(self) -> list[str]:
        return [target for target, _ in self.noted.mounts]
