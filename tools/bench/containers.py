"""Containers: what the agent adds to crun's own time, and what each running one costs it.

Both make containers of one specification, with the image's small root and without a layer
over it, in the same guest. Ours is timed from the host, a call and its answer, so the way
there and back and its emulation are in it: what they are is told by a call that does
nothing. crun's own is timed by the guest's clock (`crun_times.py`). The first round of
each is left out.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import crun_times
from bench.calls import health_checks
from bench.figures import Sample, milliseconds
from bench.probe import said_in_guest
from innkeeper.v1 import (
    containers_pb2,
    containers_pb2_grpc,
    processes_pb2,
    processes_pb2_grpc,
    sandbox_pb2,
    sandbox_pb2_grpc,
    types_pb2,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from grpc import aio

COUNTS: Final = (1, 50, 200)
"""Of running containers, for memory."""

_ROOT: Final = "/usr/lib/innkeeper/rootfs"
_AT_ONCE: Final = 4
_EMPTY_CALLS: Final = 50
_LIMIT: Final = 120.0
_ROUND_LIMIT: Final = 30.0
_CRUN_TIMES: Final = Path(crun_times.__file__).read_text(encoding="utf-8")
_MAY: Final = ("CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE")
_NAMESPACES: Final = ("pid", "ipc", "uts", "cgroup", "network", "mount")
_MOUNTS: Final = (
    ("/proc", "proc", ""),
    ("/dev", "tmpfs", "nosuid strictatime mode=755 size=65536k"),
    ("/dev/pts", "devpts", "nosuid noexec newinstance ptmxmode=0666 mode=0620 gid=5"),
    ("/dev/shm", "tmpfs", "nosuid noexec nodev mode=1777 size=65536k"),
    ("/sys", "sysfs", "nosuid noexec nodev ro"),
    ("/sys/fs/cgroup", "cgroup", "nosuid noexec nodev relatime ro"),
)

_START: Final = "Containers.Create and Containers.Start, two calls, to the second's answer"
_EXEC: Final = "Processes.Exec of `true` and Processes.Wait for its end, two calls"
_START_CRUN: Final = "crun create and crun start of the same, by the guest's clock"
_EXEC_CRUN: Final = "crun exec of `true` to its end, by the guest's clock"
_COST: Final = "the medians' difference: ours without crun's, with the way there and back"
_EMPTY: Final = "the median of a call that does nothing; two such are in each of ours"

Taken = tuple[float, float]
"""Seconds to be started, and of an exec."""


async def latency_samples(channel: aio.Channel, rounds: int) -> list[Sample]:
    """Of `rounds` containers each, one after the other."""
    ours = [await _round(channel, f"bench{number}") for number in range(rounds + 1)][1:]
    by_crun = await _times_of_crun(channel, rounds)
    empty = await health_checks(channel, _EMPTY_CALLS)
    return list(latency_figures(ours, by_crun, statistics.median(empty)))


def latency_figures(
    ours: Iterable[Taken], by_crun: Iterable[Taken], empty: float
) -> Iterator[Sample]:
    """Samples of both, the differences of their medians, and the empty call, in seconds."""
    mine, others = zip(*ours, strict=True), zip(*by_crun, strict=True)
    names = (("container_start", _START, _START_CRUN), ("exec", _EXEC, _EXEC_CRUN))
    for (name, what, what_crun), taken, taken_crun in zip(names, mine, others, strict=True):
        for seconds in taken:
            yield milliseconds(f"{name}_ms", seconds, what)
        for seconds in taken_crun:
            yield milliseconds(f"{name}_crun_ms", seconds, what_crun)
        cost = statistics.median(taken) - statistics.median(taken_crun)
        yield milliseconds(f"{name}_cost_ms", cost, _COST)
    yield milliseconds("container_empty_call_ms", empty, _EMPTY)


async def memory_samples(channel: aio.Channel, most: int) -> list[Sample]:
    """With 1, 50 and 200 that run at once, as far as `most` goes. They are left running."""
    found: dict[int, sandbox_pb2.ProcessMemory] = {}
    running = 0
    for count in counts(most):
        await _start_all(channel, range(running, count))
        running = count
        found[count] = await _agent_memory(channel)
    return list(memory_figures(found))


def counts(most: int) -> tuple[int, ...]:
    """Those of `COUNTS` below `most`, and `most`."""
    return (*(count for count in COUNTS if count < most), most)


def memory_figures(found: Mapping[int, sandbox_pb2.ProcessMemory]) -> Iterator[Sample]:
    """By the number of containers, and for each container between the fewest and the most."""
    sizes = {
        "rss": ("resident", {count: each.resident for count, each in found.items()}),
        "pss": ("proportional", {count: each.proportional for count, each in found.items()}),
    }
    fewest, most = min(found), max(found)
    for word, (long, by_count) in sizes.items():
        for count, size in by_count.items():
            what = f"{long} set size of the agent while {count} containers run"
            name = f"agent_{word}_mib_{count}_containers"
            yield Sample(name=name, value=size / (1 << 20), unit="MiB", what=what)
        if most > fewest:
            each = (by_count[most] - by_count[fewest]) / (most - fewest)
            what = f"what one more container adds to it, of those between {fewest} and {most}"
            name = f"agent_{word}_kib_per_container"
            yield Sample(name=name, value=each / (1 << 10), unit="KiB", what=what)


async def _round(channel: aio.Channel, name: str) -> Taken:
    """One container from its creation to its removal."""
    containers = containers_pb2_grpc.ContainersStub(channel)
    processes = processes_pb2_grpc.ProcessesStub(channel)
    process = types_pb2.ProcessRef(container_id=name, exec_id="true")
    true = processes_pb2.ExecRequest(
        container_id=name, exec_id="true", process=json.dumps({"args": ["true"]}).encode()
    )
    began = time.perf_counter()
    await _start(containers, name)
    started = time.perf_counter()
    await processes.Exec(true, timeout=_LIMIT)
    await processes.Wait(processes_pb2.WaitRequest(process=process), timeout=_LIMIT)
    ended = time.perf_counter()
    await containers.Remove(containers_pb2.RemoveContainerRequest(id=name), timeout=_LIMIT)
    return started - began, ended - started


async def _start(containers: containers_pb2_grpc.ContainersAsyncStub, name: str) -> None:
    create = containers_pb2.CreateContainerRequest(
        id=name, spec=json.dumps(spec()).encode(), path=_ROOT
    )
    await containers.Create(create, timeout=_LIMIT)
    await containers.Start(containers_pb2.StartContainerRequest(id=name), timeout=_LIMIT)


async def _start_all(channel: aio.Channel, numbers: Iterable[int]) -> None:
    containers = containers_pb2_grpc.ContainersStub(channel)
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            await _start(containers, f"crowd{number}")

    async with asyncio.TaskGroup() as group:
        for number in numbers:
            group.create_task(one(number))


async def _agent_memory(channel: aio.Channel) -> sandbox_pb2.ProcessMemory:
    stub = sandbox_pb2_grpc.SandboxStub(channel)
    answer = await stub.Describe(sandbox_pb2.DescribeSandboxRequest(), timeout=_LIMIT)
    return next(each for each in answer.memory if each.name == "agent")


async def _times_of_crun(channel: aio.Channel, rounds: int) -> list[Taken]:
    whole = spec()
    whole["root"]["path"] = _ROOT
    whole["linux"]["cgroupsPath"] = "/bench-crun/bench"
    limit = _LIMIT + (rounds + 1) * _ROUND_LIMIT
    words = (str(rounds + 1), json.dumps(whole))
    said = await said_in_guest(channel, _CRUN_TIMES, *words, limit=limit)
    return [(start, run) for start, run in json.loads(said)][1:]


def spec() -> dict[str, Any]:
    """Whole, as `crun spec` writes it: nothing is left for a runtime to fill in."""
    return {
        "ociVersion": "1.0.2",
        "process": _process(),
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "bench",
        "mounts": [
            {"destination": target, "type": kind, "source": kind, "options": options.split()}
            for target, kind, options in _MOUNTS
        ],
        "linux": {
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "namespaces": [{"type": kind} for kind in _NAMESPACES],
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }


def _process() -> dict[str, Any]:
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": ["sleep", "1000000"],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "cwd": "/",
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _MAY),
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
        "oomScoreAdj": 0,
        "noNewPrivileges": True,
    }
