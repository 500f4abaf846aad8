"""What Describe collects from proc, PID 1 and the agent itself."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.roots import Roots
from agent.handlers.guest.describe import (
    AGENT_VERSION,
    BootPhases,
    Describer,
    Limits,
    ProcessMemory,
)

pytestmark = [pytest.mark.unit, pytest.mark.operations]

LIMITS = Limits(
    message_bytes=1, stream_window_bytes=1, event_ring=1, objects=1, processes_per_container=1
)


class Pid1:
    def __init__(self, answer: dict[str, Any] | AgentError) -> None:
        self._answer = answer

    async def ping(self) -> dict[str, Any]:
        if isinstance(self._answer, AgentError):
            raise self._answer
        return self._answer


def describer(folder: Path, pid1: Pid1, phases: BootPhases | None = None) -> Describer:
    async def version() -> str:
        return "crun version 1.21"

    return Describer(
        roots=Roots(proc=folder / "proc", cgroup=folder / "cgroup"),
        pid1=pid1,
        phases=phases or BootPhases(),
        limits=LIMITS,
        runtime_version=version,
    )


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def fake_proc(folder: Path) -> None:
    proc = folder / "proc"
    write(proc / "sys/kernel/random/boot_id", "0b-1d\n")
    write(proc / "1/cmdline", "/usr/bin/python3\0-IS\0/usr/lib/innkeeper/init\0")
    write(proc / "1/status", "Name:\tinit\nVmRSS:\t    9000 kB\n")
    write(proc / "1/smaps_rollup", "0-f ---p\nRss:  9000 kB\nPss:  7000 kB\nPss_Dirty: 1 kB\n")
    write(proc / "20/cmdline", "/usr/bin/python3\0-IS\0/usr/lib/innkeeper/run\0agent.relay\0")
    write(proc / "20/status", "VmRSS:\t    8000 kB\n")
    write(folder / "cgroup/init/cgroup.procs", "1\n20\n21\n")


async def test_phases_of_pid_1_and_of_the_agent_come_in_the_order_of_time(tmp_path: Path) -> None:
    times = iter([1.25, 1.5])
    phases = BootPhases(now=lambda: next(times))
    phases.note("agent_interpreter")
    phases.note("agent_serving")
    boot = {"pid1_start": 0.5, "mounts_done": 0.75, "agent_spawned": 1.0, "modules": 0.9}
    pid1 = Pid1({"boot": boot, "restarts": {"agent": 2, "relay": 1}})
    told = await describer(tmp_path, pid1, phases).describe("s1")
    assert told.phases == (
        ("pid1", 0.5),
        ("mounts", 0.75),
        ("agent_spawned", 1.0),
        ("agent_interpreter", 1.25),
        ("agent_serving", 1.5),
    )
    assert told.agent_restarts == 2
    assert told.sandbox_id == "s1"


async def test_proc_tells_the_rest(tmp_path: Path) -> None:
    fake_proc(tmp_path)
    told = await describer(tmp_path, Pid1({})).describe("")
    assert told.init_command_line == ("/usr/bin/python3", "-IS", "/usr/lib/innkeeper/init")
    assert told.boot_id == "0b-1d"
    assert told.agent_pid == os.getpid()
    assert told.runtime == "crun version 1.21"
    assert told.memory == (
        ProcessMemory(name="init", resident=9000 << 10, proportional=7000 << 10),
        ProcessMemory(name="relay", resident=8000 << 10, proportional=0),
        ProcessMemory(name="agent", resident=0, proportional=0),
    )


async def test_what_cannot_be_had_is_empty_and_no_failure(tmp_path: Path) -> None:
    away = AgentError("away", code=Code.UNAVAILABLE, reason=Reason.KERNEL_REFUSED)
    told = await describer(tmp_path, Pid1(away)).describe("")
    assert (told.phases, told.agent_restarts, told.boot_id) == ((), 0, "")


def test_the_version_is_that_of_the_distribution(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == AGENT_VERSION
