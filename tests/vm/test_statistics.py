"""What containers use and what runs in them: the agent's word against the kernel's own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import pytest_asyncio

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import sandbox_pb2 as sandbox
from innkeeper.v1 import types_pb2 as types
from tests.vm.attachment import STDOUT
from tests.vm.guest import Guest, create_request, refused
from tests.vm.observer import Observer, observing
from tests.vm.test_containers import added, attached, ref

pytestmark = [pytest.mark.vm, pytest.mark.containers]

MIB = 1 << 20
MAX = 2**64 - 1
WAIT = "echo ready; read line"
BURN = "while :; do :; done"


@pytest_asyncio.fixture(loop_scope="session")
async def observer(guest: Guest) -> AsyncIterator[Observer]:
    async with observing(guest) as running:
        yield running


@asynccontextmanager
async def there(guest: Guest, script: str, **parts: Any) -> AsyncIterator[str]:
    """A running container, for a block."""
    name = await guest.start(script, **parts)
    try:
        yield name
    finally:
        await guest.remove(name)


async def ready(guest: Guest, name: str, word: bytes = b"ready\n") -> None:
    """Until its first process has said the word, and then does nothing any more."""
    attachment = await attached(guest, ref(name))
    await attachment.until(lambda: word in attachment.data[STDOUT])


async def stats(guest: Guest, name: str) -> containers.ContainerStats:
    return await guest.containers.Stats(containers.ContainerStatsRequest(id=name))


async def group_of(guest: Guest, name: str) -> str:
    """The container's directory of cgroupfs, as the observer sees it."""
    listed = await guest.containers.List(containers.ListContainersRequest())
    (status,) = [each for each in listed.containers if each.id == name]
    assert status.cgroup.endswith(f"/{name}")
    return f"/sys/fs/cgroup{status.cgroup}"


async def table(observer: Observer, path: str) -> dict[str, int]:
    lines = (await observer.ask(f"cat {path}")).splitlines()
    return {key: int(value) for key, value in (line.split() for line in lines)}


async def test_memory_is_what_the_kernel_counts(guest: Guest, observer: Observer) -> None:
    """The whole of what a process allocates is anonymous, a file in memory is not."""
    script = (
        "head -c 8388608 /dev/zero > /dev/shm/x;"
        "s=$(head -c 16777216 /dev/zero | tr '\\0' x); echo ready; read line"
    )
    resources = {"memory": {"limit": 256 * MIB, "reservation": 32 * MIB}}
    async with there(guest, script, linux={"resources": resources}) as name:
        await ready(guest, name)
        group = await group_of(guest, name)
        kernel = await table(observer, f"{group}/memory.stat")
        found = (await stats(guest, name)).memory
        assert (found.anon, found.shmem) == (kernel["anon"], kernel["shmem"])
        assert found.anon >= 16 * MIB
        assert found.shmem >= 8 * MIB
        assert found.file >= found.shmem
        assert (found.limit, found.low, found.high) == (256 * MIB, 32 * MIB, MAX)
        assert found.peak >= found.current >= found.anon + found.shmem
        assert found.page_faults >= 16 * MIB // 4096
        assert (found.kills, found.out_of_memory) == (0, 0)
        assert found.swap_current == 0
        assert found.kernel >= found.slab > 0


async def test_cpu_time_of_one_that_is_throttled(guest: Guest, observer: Observer) -> None:
    resources = {"cpu": {"quota": 10_000, "period": 100_000, "shares": 512}}
    async with there(guest, BURN, linux={"resources": resources}) as name:
        found = await until_throttled(guest, name)
        assert (found.quota_micros, found.period_micros) == (10_000, 100_000)
        assert found.throttled_micros > 0
        assert found.periods >= found.throttled_periods >= 5
        # A tenth of a CPU, and what the kernel lets a slice go over it.
        assert found.usage_micros < found.periods * 100_000
        assert found.user_micros + found.system_micros <= found.usage_micros + 1000
        weight = await observer.ask(f"cat {await group_of(guest, name)}/cpu.weight")
        assert found.weight == int(weight)
        later = (await stats(guest, name)).cpu
        assert later.usage_micros >= found.usage_micros


async def until_throttled(guest: Guest, name: str) -> containers.CpuStats:
    request = containers.WatchStatsRequest(ids=[name], interval_seconds=0.2)
    async for found in guest.containers.WatchStats(request, timeout=60):
        if found.cpu.throttled_periods >= 5:
            return found.cpu
    raise AssertionError("it was never throttled")


async def test_without_limits_there_are_none(guest: Guest) -> None:
    async with there(guest, WAIT) as name:
        await ready(guest, name)
        found = await stats(guest, name)
        assert (found.cpu.quota_micros, found.memory.limit) == (MAX, MAX)
        # Swap is accounted, though there is none: else there were no such limit.
        assert found.memory.swap_limit == MAX
        assert found.id == name
        assert abs(found.at_unix_micros / 1e6 - time.time()) < 3600
        assert found.pids.current >= 1
        assert {each.page_bytes for each in found.hugetlb} >= {2 * MIB}
        # The kernel has pressure stall information on.
        assert found.cpu.pressure.some.total_micros >= 0


async def test_pids_are_counted_and_refused(guest: Guest) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done 2>&1; echo ready; read line"
    resources = {"pids": {"limit": 5}}
    async with there(guest, f"({script})", linux={"resources": resources}) as name:
        await until_refused(guest, name)
        found = (await stats(guest, name)).pids
        assert found.limit == 5
        assert found.current <= found.peak <= 5
        assert found.refused >= 1


async def until_refused(guest: Guest, name: str) -> None:
    request = containers.WatchStatsRequest(ids=[name], interval_seconds=0.1)
    async for found in guest.containers.WatchStats(request, timeout=60):
        if found.pids.refused:
            return


async def test_network_is_that_of_the_containers_own_namespace(guest: Guest) -> None:
    """As it sees it itself, while nothing moves."""
    namespaces = [{"type": kind} for kind in ("mount", "pid", "network")]
    script = "ping -q -c 3 127.0.0.1 >/dev/null; cat /proc/net/dev; echo ready; read line"
    sets = ("bounding", "effective", "permitted", "inheritable")
    process = {"capabilities": {each: ["CAP_NET_RAW"] for each in sets}}
    async with there(guest, script, linux={"namespaces": namespaces}, process=process) as name:
        attachment = await attached(guest, ref(name))
        await attachment.until(lambda: b"ready\n" in attachment.data[STDOUT])
        lines = attachment.data[STDOUT].decode().splitlines()
        words = next(line for line in lines if "lo:" in line).partition(":")[2].split()
        (loopback,) = (await stats(guest, name)).network
        assert loopback.name == "lo"
        assert (loopback.received_bytes, loopback.received_packets) == tuple(map(int, words[:2]))
        assert (loopback.sent_bytes, loopback.sent_packets) == tuple(map(int, words[8:10]))
        # Three questions and three answers.
        assert loopback.sent_packets >= 6


async def test_input_and_output_of_a_disk_by_name(guest: Guest, observer: Observer) -> None:
    """The default root is on the guest's own disk; it is read past the cache."""
    await observer.ask("sync; echo 3 > /proc/sys/vm/drop_caches")
    async with there(guest, f"cat /bin/busybox >/dev/null; {WAIT}") as name:
        await ready(guest, name)
        kernel = await observer.ask(f"cat {await group_of(guest, name)}/io.stat")
        lines = {line.split()[0]: line for line in kernel.splitlines() if "=" in line}
        found = {f"{each.major}:{each.minor}": each for each in (await stats(guest, name)).io}
        assert set(found) == set(lines)
        for device, each in found.items():
            assert f"rbytes={each.read_bytes} " in lines[device]
            uevent = await observer.ask(f"cat /sys/dev/block/{device}/uevent")
            assert f"DEVNAME={each.name}" in uevent.splitlines()


async def test_of_one_that_has_stopped(guest: Guest) -> None:
    async with there(guest, "exit 3") as name:
        assert (await guest.wait(name)).code == 3
        found = await stats(guest, name)
        assert found.cpu.usage_micros > 0
        assert list(found.network) == []
    call = guest.containers.Stats(containers.ContainerStatsRequest(id=name))
    assert await refused(call) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONTAINER")


async def watched(guest: Guest, *names: str) -> AsyncGenerator[containers.ContainerStats, None]:
    request = containers.WatchStatsRequest(ids=names, interval_seconds=0.1)
    async for each in guest.containers.WatchStats(request, timeout=60):
        yield each


async def test_a_watch_ends_with_the_last_of_its_containers(guest: Guest) -> None:
    first, second = await guest.start(WAIT), await guest.start(WAIT)
    seen: list[str] = []
    async for each in watched(guest, first, second):
        seen.append(each.id)
        if len(seen) == 4:
            await guest.remove(first)
            await guest.remove(second)
    assert seen[:4] == [first, second, first, second]
    assert {each.id for each in await listed(guest)} & {first, second} == set()


async def listed(guest: Guest) -> list[containers.ContainerStatus]:
    return list((await guest.containers.List(containers.ListContainersRequest())).containers)


# Processes.


async def processes_of(guest: Guest, name: str) -> list[processes.ProcessInfo]:
    request = processes.ListProcessesRequest(container_id=name)
    return list((await guest.processes.List(request)).processes)


async def test_processes_as_proc_shows_them(guest: Guest, observer: Observer) -> None:
    script = "sleep 1000 & echo ready; read line"
    async with there(guest, script) as name:
        await ready(guest, name)
        await added(guest, name, "exec sleep 1001")
        first, child, other = await until_processes(guest, name, 3)
        assert (first.container_pid, first.process.container_id) == (1, name)
        assert list(first.arguments) == ["sh", "-c", script]
        assert first.process.exec_id == ""
        assert (child.parent_pid, child.HasField("process")) == (first.pid, False)
        assert (list(child.arguments), child.name) == (["sleep", "1000"], "sleep")
        assert other.process.exec_id.startswith("e")
        assert {each.state for each in (first, child)} == {"S"}
        fields = (await observer.ask(f"cat /proc/{first.pid}/stat")).rpartition(")")[2].split()
        assert first.threads == int(fields[17]) == 1
        assert first.parent_pid == int(fields[1])
        uptime = float((await observer.ask("cat /proc/uptime")).split()[0])
        now = float(await observer.ask("date +%s"))
        started = now - uptime + int(fields[19]) / 100
        assert first.started_unix_micros / 1e6 == pytest.approx(started, abs=2)
        rss = await observer.ask(f"grep VmRSS /proc/{first.pid}/status")
        assert first.resident_bytes == int(rss.split()[1]) * 1024
        assert first.terminal == 0


async def until_processes(guest: Guest, name: str, count: int) -> list[processes.ProcessInfo]:
    """Until there are so many and all have begun their program."""
    for _ in range(200):
        found = await processes_of(guest, name)
        if len(found) == count and all("crun" not in each.name for each in found):
            return found
    raise AssertionError(f"not {count}: {found}")


async def test_a_hostile_name_is_shown_harmless(guest: Guest) -> None:
    """A process may call itself anything; a terminal must not do what it says."""
    script = r"printf ') R 1 (\033[2J\n' > /proc/self/comm; echo ready; read line"
    async with there(guest, script) as name:
        await ready(guest, name)
        (info,) = await processes_of(guest, name)
        assert info.name == ") R 1 (?[2J?"
        assert info.state == "S"


async def test_a_terminals_number_and_a_users(guest: Guest) -> None:
    parts = {"terminal": True, "user": {"uid": 1234, "gid": 1234}}
    async with there(guest, WAIT, process=parts) as name:
        await ready(guest, name, b"ready\r\n")
        (info,) = await processes_of(guest, name)
        assert info.user_id == 1234
        # Unix98 pseudoterminals have major 136 (devices.txt).
        assert info.terminal >> 8 == 136


async def test_of_one_that_has_stopped_there_are_none(guest: Guest) -> None:
    async with there(guest, "exit 0") as name:
        await guest.wait(name)
        assert await processes_of(guest, name) == []


# Pressure.


async def event(guest: Guest, kind: int, subject: str, **details: str) -> sandbox.Event:
    """The first event of that kind about the container that has these details."""
    async for each in guest.sandbox.Watch(sandbox.WatchRequest(after_sequence=0), timeout=60):
        if (each.kind, each.subject) == (kind, subject) and details.items() <= each.details.items():
            return each
    raise AssertionError("the stream of events ended")


async def test_a_container_short_of_cpu_time_tells(guest: Guest) -> None:
    threshold = types.PressureThreshold(
        resource=types.PRESSURE_RESOURCE_CPU, stall_micros=100_000, window_micros=1_000_000
    )
    resources = {"cpu": {"quota": 5000, "period": 100_000}}
    request = create_request("starved", f"({BURN}) & {BURN}", linux={"resources": resources})
    request.pressure.append(threshold)
    await guest.containers.Create(request)
    try:
        await guest.containers.Start(containers.StartContainerRequest(id="starved"))
        told = await event(guest, sandbox.EVENT_KIND_PRESSURE, "starved", resource="cpu")
        assert told.details["kind"] == "some"
        assert told.details["stall_micros"] == "100000"
        assert told.details["window_micros"] == "1000000"
        assert int(told.details["total_micros"]) >= 100_000
        pressure = (await stats(guest, "starved")).cpu.pressure
        assert pressure.some.total_micros >= int(told.details["total_micros"])
    finally:
        await guest.remove("starved")


async def test_an_update_takes_thresholds_away_and_adds_others(guest: Guest) -> None:
    """Memory this time: what is at the limit waits for its own pages to be given back."""
    # Pages of files that are needed again and again; more of them than fit.
    script = "while :; do cat /bin/busybox /lib/x >/dev/null; done"
    async with there(guest, f"mkdir -p /lib; {script}") as name:
        update = containers.UpdateContainerRequest(
            id=name,
            pressure=containers.PressureThresholds(
                thresholds=[
                    types.PressureThreshold(
                        resource=types.PRESSURE_RESOURCE_MEMORY,
                        stall_micros=50_000,
                        window_micros=500_000,
                    )
                ]
            ),
            # Below what it has: the kernel takes back what it can, again and again.
            resources=json.dumps({"unified": {"memory.high": "1"}}).encode(),
        )
        await guest.containers.Update(update)
        told = await event(guest, sandbox.EVENT_KIND_PRESSURE, name, resource="memory")
        assert told.details["stall_micros"] == "50000"
        assert (await stats(guest, name)).memory.high < 4096 * 2


async def test_reading_costs_nobody_anything(guest: Guest) -> None:
    """Many at once, of all containers: nothing of it waits for anything."""
    async with there(guest, BURN) as name:
        found = await asyncio.gather(*(stats(guest, name) for _ in range(50)))
        assert {each.id for each in found} == {name}
