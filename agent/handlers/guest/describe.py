"""Sandbox.Describe: what this guest is and can do, and how long it took to boot."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from agent.core.errors import AgentError
from agent.linux import pseudo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from agent.core.roots import Roots

AGENT_VERSION: Final = "0.1.0"
PROTOCOL: Final = "innkeeper.v1"

FEATURES: Final = (
    "containers",
    "containers.cpus",
    "containers.interfaces",
    "containers.namespaces",
    "containers.pause",
    "containers.pressure",
    "containers.stats",
    "containers.update",
    "devices.block",
    "devices.common",
    "devices.fpga",
    "devices.gpu",
    "devices.nic",
    "devices.pmem",
    "devices.reconfigure",
    "devices.rng",
    "devices.vfio",
    "files",
    "health",
    "network.dns",
    "network.events",
    "network.firewall",
    "network.interfaces",
    "network.neighbors",
    "network.routes",
    "network.sysctls",
    "processes",
    "processes.attach",
    "processes.causes",
    "processes.list",
    "processes.logs",
    "processes.streams",
    "reflection",
    "sandbox.clock",
    "sandbox.entropy",
    "sandbox.events",
    "sandbox.resources",
    "sandbox.setup",
    "sockets",
    "storages.bind",
    "storages.block",
    "storages.ceph",
    "storages.cifs",
    "storages.crypt",
    "storages.format",
    "storages.hugetlb",
    "storages.local",
    "storages.nfs",
    "storages.ninep",
    "storages.operations",
    "storages.overlay",
    "storages.pmem",
    "storages.tmpfs",
    "storages.verity",
    "storages.virtiofs",
    "storages.watched",
)
"""What is built; protocol/innkeeper/v1/README.md says what each name promises."""

# PID 1's words for its own phases (its ping), in the order of time.
_PID1_PHASES: Final = {
    "pid1_start": "pid1",
    "mounts_done": "mounts",
    "agent_spawned": "agent_spawned",
}
_KIB: Final = 1024


class Pid1(Protocol):
    """What is needed of `core.pid1.Pid1Client`."""

    async def ping(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a host has to keep; see the protocol's message of this name."""

    message_bytes: int
    stream_window_bytes: int
    event_ring: int
    objects: int
    processes_per_container: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Of one of our own processes, in bytes; `proportional` is 0 where it can't be read."""

    name: str
    resident: int
    proportional: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Sandbox.Describe's answer; phases are in seconds since the kernel's start."""

    kernel: str
    runtime: str
    limits: Limits
    phases: tuple[tuple[str, float], ...]
    sandbox_id: str
    agent_restarts: int
    init_command_line: tuple[str, ...]
    boot_id: str
    agent_pid: int
    memory: tuple[ProcessMemory, ...]


class BootPhases:
    """The agent's own phases, noted as they are reached."""

    def __init__(self, now: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)):
        self._now = now
        self.reached: dict[str, float] = {}

    def note(self, name: str) -> None:
        """The phase is reached now."""
        self.reached[name] = self._now()


class Describer:
    """Collects the description anew for each call."""

    def __init__(
        self,
        *,
        roots: Roots,
        pid1: Pid1,
        phases: BootPhases,
        limits: Limits,
        runtime_version: Callable[[], Awaitable[str]],
    ) -> None:
        self._roots = roots
        self._pid1 = pid1
        self._phases = phases
        self._limits = limits
        self._runtime_version = runtime_version

    async def describe(self, sandbox_id: str) -> Description:
        """Never fails for a part that can't be had: that part is empty."""
        told = await self._told_by_pid1()
        proc = self._roots.proc
        return Description(
            kernel=os.uname().release,
            runtime=await self._runtime(),
            limits=self._limits,
            phases=_phases(told.get("boot") or {}, self._phases.reached),
            sandbox_id=sandbox_id,
            agent_restarts=int((told.get("restarts") or {}).get("agent", 0)),
            init_command_line=command_line(proc, 1),
            boot_id=(pseudo.read_optional(proc / "sys/kernel/random/boot_id") or "").strip(),
            agent_pid=os.getpid(),
            memory=tuple(self._memory()),
        )

    async def _told_by_pid1(self) -> dict[str, Any]:
        try:
            return await self._pid1.ping()
        except AgentError:
            # Health says that PID 1 is away; a description is still useful.
            return {}

    async def _runtime(self) -> str:
        try:
            return await self._runtime_version()
        except AgentError as error:
            return f"unusable: {error}"

    def _memory(self) -> Iterator[ProcessMemory]:
        proc = self._roots.proc
        yield process_memory(proc, 1, "init")
        for pid in _members(self._roots.cgroup / "init"):
            if pid != 1 and any("agent.relay" in word for word in command_line(proc, pid)):
                yield process_memory(proc, pid, "relay")
        yield process_memory(proc, os.getpid(), "agent")


def _phases(of_pid1: dict[str, Any], own: dict[str, float]) -> tuple[tuple[str, float], ...]:
    known = {name: float(of_pid1[word]) for word, name in _PID1_PHASES.items() if of_pid1.get(word)}
    return tuple(sorted((known | own).items(), key=lambda phase: phase[1]))


def command_line(proc: Path, pid: int) -> tuple[str, ...]:
    """The words of a process's command line; none when it is gone."""
    text = pseudo.read_optional(proc / str(pid) / "cmdline") or ""
    return tuple(text.removesuffix("\0").split("\0")) if text else ()


def process_memory(proc: Path, pid: int, name: str) -> ProcessMemory:
    """VmRSS of status and Pss of smaps_rollup (proc(5)), both in KiB there."""
    return ProcessMemory(
        name=name,
        resident=_kib_line(proc / str(pid) / "status", "VmRSS:"),
        proportional=_kib_line(proc / str(pid) / "smaps_rollup", "Pss:"),
    )


def _kib_line(path: Path, label: str) -> int:
    try:
        text = pseudo.read_optional(path) or ""
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith(label):
            return int(line.split()[1]) * _KIB
    return 0


def _members(cgroup: Path) -> tuple[int, ...]:
    text = pseudo.read_optional(cgroup / "cgroup.procs") or ""
    return tuple(int(word) for word in text.split())
