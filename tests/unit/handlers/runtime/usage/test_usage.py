"""What a container uses, from files of a cgroup as the kernel writes them."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.errors import AgentError, Reason
from agent.core.roots import Roots
from agent.core.usage import NO_LIMIT, InterfaceStats, Pressure, Stall
from agent.handlers.runtime.table import ContainerTable
from agent.handlers.runtime.usage import cgroupfiles
from agent.handlers.runtime.usage import files as usagefiles
from agent.handlers.runtime.usage.usage import Usage
from agent.linux import pseudo

pytestmark = [pytest.mark.unit, pytest.mark.containers]

GROUP = "/pods/s/c1"

PSI = """some avg10=1.25 avg60=0.50 avg300=0.07 total=123456
full avg10=0.00 avg60=0.00 avg300=0.00 total=99
"""

FILES = {
    "cpu.stat": "usage_usec 500\nuser_usec 300\nsystem_usec 200\nnr_periods 9\nnr_throttled 4\n"
    "throttled_usec 77\nnr_bursts 0\nburst_usec 0\n",
    "cpu.max": "50000 100000\n",
    "cpu.weight": "100\n",
    "cpu.pressure": PSI,
    "memory.current": "4096\n",
    "memory.peak": "8192\n",
    "memory.max": "1048576\n",
    "memory.low": "0\n",
    "memory.high": "max\n",
    "memory.swap.current": "12288\n",
    "memory.swap.max": "max\n",
    "memory.stat": "anon 1024\nfile 2048\nkernel 512\nkernel_stack 16384\nshmem 128\n"
    "inactive_file 64\nslab 256\npgfault 11\npgmajfault 2\n",
    "memory.events": "low 0\nhigh 0\nmax 5\noom 3\noom_kill 1\noom_group_kill 0\n",
    "memory.pressure": PSI,
    "io.stat": "254:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=3 dios=4 cost.usage=7\n"
    "8:16 rbytes=1 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n",
    "io.pressure": PSI,
    "pids.current": "3\n",
    "pids.max": "max\n",
    "pids.peak": "5\n",
    "pids.events": "max 6\n",
    "hugetlb.2MB.current": "2097152\n",
    "hugetlb.2MB.max": "max\n",
    "hugetlb.2MB.events": "max 8\n",
    "hugetlb.1GB.current": "0\n",
    "hugetlb.1GB.max": "1073741824\n",
    "hugetlb.1GB.events": "max 0\n",
    "hugetlb.1GB.rsvd.current": "5\n",
}


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    roots = Roots(cgroup=tmp_path / "cgroup", sys=tmp_path / "sys", proc=tmp_path / "proc")
    (roots.cgroup / GROUP[1:]).mkdir(parents=True)
    (roots.sys / "dev/block").mkdir(parents=True)
    (roots.sys / "dev/block/254:0").symlink_to("../../devices/pci/virtio1/block/vda")
    return roots


@pytest.fixture
def group(roots: Roots) -> Path:
    directory = roots.cgroup / GROUP[1:]
    for name, text in FILES.items():
        (directory / name).write_text(text)
    return directory


def container(name: str = "c1", first: Any = None) -> Any:
    return SimpleNamespace(id=name, record=SimpleNamespace(cgroup=GROUP), first=first)


def table(*containers: Any) -> ContainerTable:
    made = ContainerTable()
    for each in containers:
        made._containers[each.id] = each
    return made


async def stats(roots: Roots) -> Any:
    return await Usage(table(container()), roots).stats("c1")


async def test_every_figure_is_the_kernels(roots: Roots, group: Path) -> None:
    found = await stats(roots)
    cpu, memory = found.cpu, found.memory
    assert (cpu.usage_micros, cpu.user_micros, cpu.system_micros) == (500, 300, 200)
    assert (cpu.periods, cpu.throttled_periods, cpu.throttled_micros) == (9, 4, 77)
    assert (cpu.quota_micros, cpu.period_micros, cpu.weight) == (50_000, 100_000, 100)
    assert (memory.current, memory.peak, memory.limit) == (4096, 8192, 1 << 20)
    assert (memory.low, memory.high) == (0, NO_LIMIT)
    assert (memory.swap_current, memory.swap_limit) == (12288, NO_LIMIT)
    assert (memory.anon, memory.file, memory.slab, memory.kernel) == (1024, 2048, 256, 512)
    assert (memory.shmem, memory.inactive_file) == (128, 64)
    assert (memory.page_faults, memory.major_faults) == (11, 2)
    assert (memory.limit_reached, memory.out_of_memory, memory.kills) == (5, 3, 1)
    assert (found.pids.current, found.pids.limit) == (3, NO_LIMIT)
    assert (found.pids.peak, found.pids.refused) == (5, 6)
    some = Stall(average_10s=1.25, average_60s=0.5, average_300s=0.07, total_micros=123456)
    whole = Pressure(some=some, full=Stall(total_micros=99))
    assert cpu.pressure == memory.pressure == found.io_pressure == whole


async def test_input_and_output_by_device_with_its_name(roots: Roots, group: Path) -> None:
    first, second = (await stats(roots)).io
    assert (first.major, first.minor, first.name) == (254, 0, "vda")
    assert (first.read_bytes, first.write_bytes, first.reads, first.writes) == (10, 20, 1, 2)
    assert (first.discarded_bytes, first.discards) == (3, 4)
    # Its device is gone.
    assert (second.major, second.minor, second.name, second.read_bytes) == (8, 16, "", 1)


async def test_huge_pages_by_size(roots: Roots, group: Path) -> None:
    small, large = (await stats(roots)).hugetlb
    assert (small.page_bytes, small.current, small.limit) == (2 << 20, 2 << 20, NO_LIMIT)
    assert (large.page_bytes, large.current, large.limit) == (1 << 30, 0, 1 << 30)
    assert (small.refused, large.refused) == (8, 0)


async def test_of_a_group_that_is_gone_all_is_zero(roots: Roots, group: Path) -> None:
    """Files vanish when the container ends."""
    shutil.rmtree(group)
    found = await stats(roots)
    assert found.id == "c1"
    assert (found.cpu.usage_micros, found.memory.limit, found.pids.limit) == (0, 0, 0)
    assert (found.io, found.hugetlb, found.network) == ((), (), ())


@pytest.mark.parametrize("missing", ["memory.", "cpu.", "io.", "pids.", "hugetlb.", "memory.swap"])
async def test_of_a_controller_that_is_missing_all_is_zero(
    roots: Roots, group: Path, missing: str
) -> None:
    """And all else is as it was: no swap accounting, no io controller."""
    for name in FILES:
        if name.startswith(missing):
            os.unlink(group / name)
    found = await stats(roots)
    assert (found.memory.limit == 0) == (missing == "memory.")
    assert (found.memory.swap_limit == 0) == (missing in ("memory.", "memory.swap"))
    assert (found.cpu.usage_micros == 0) == (missing == "cpu.")
    assert (found.io == ()) == (missing == "io.")
    assert (found.pids.current == 0) == (missing == "pids.")
    assert (found.hugetlb == ()) == (missing == "hugetlb.")


async def test_empty_files_are_zero(roots: Roots, group: Path) -> None:
    for name in FILES:
        (group / name).write_text("")
    found = await stats(roots)
    assert (found.memory.anon, found.memory.limit, found.cpu.quota_micros) == (0, 0, 0)
    assert found.io == ()
    assert found.io_pressure == Pressure()


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EOPNOTSUPP, errno.EIO, errno.EACCES])
async def test_a_file_that_goes_between_open_and_read(
    roots: Roots, group: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """ENODEV when the group is removed meanwhile, EOPNOTSUPP for pressure that is switched off."""

    def gone(path: object) -> str:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(pseudo, "read_text", gone)
    found = await stats(roots)
    assert (found.memory.current, found.cpu.usage_micros) == (0, 0)


async def test_no_cpu_limit_is_the_largest_number(roots: Roots, group: Path) -> None:
    (group / "cpu.max").write_text("max 100000\n")
    cpu = (await stats(roots)).cpu
    assert (cpu.quota_micros, cpu.period_micros) == (NO_LIMIT, 100_000)


async def test_only_an_unknown_container_is_an_error(roots: Roots) -> None:
    with pytest.raises(AgentError) as caught:
        await Usage(table(), roots).stats("c1")
    assert caught.value.reason is Reason.UNKNOWN_CONTAINER


def test_an_older_kernels_device_without_figures() -> None:
    """Before 6.6 a device without figures leaves its number in front of the next one's."""
    (stats,) = usagefiles.parse_io("8:0 254:0 rbytes=7 wios=2\n", lambda device: device)
    assert (stats.major, stats.minor, stats.name) == (254, 0, "254:0")
    assert (stats.read_bytes, stats.writes, stats.write_bytes) == (7, 2, 0)


NET_DEV = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop"
    " fifo colls carrier compressed\n"
    "    lo:     100       2    0    0    0     0          0         0      100       2    0    0"
    "    0     0       0          0\n"
    " eth0.7:123456789     3    4    5    6     7          8         9     1000      11   12   13"
    "   14    15      16         17\n"
)


def test_interfaces_from_net_dev() -> None:
    """Figures follow the name's colon at once when they are long."""
    lo, vlan = usagefiles.parse_interfaces(NET_DEV)
    assert (lo.name, lo.received_bytes, lo.sent_packets) == ("lo", 100, 2)
    assert vlan == InterfaceStats(
        name="eth0.7",
        received_bytes=123456789,
        received_packets=3,
        receive_errors=4,
        receive_drops=5,
        sent_bytes=1000,
        sent_packets=11,
        send_errors=12,
        send_drops=13,
    )


def own_process(roots: Roots, *, ended: bool = False) -> Any:
    """This process as a container's first one."""
    directory = roots.proc / str(os.getpid())
    (directory / "net").mkdir(parents=True)
    (directory / "cgroup").write_text(f"0::{GROUP}\n")
    (directory / "net/dev").write_text(NET_DEV)
    exit_status = object() if ended else None
    return SimpleNamespace(pid=os.getpid(), exit=exit_status, record=SimpleNamespace(cgroup=GROUP))


async def test_interfaces_are_those_of_the_first_process(roots: Roots) -> None:
    usage = Usage(table(container(first=own_process(roots))), roots)
    assert [each.name for each in (await usage.stats("c1")).network] == ["lo", "eth0.7"]


async def test_a_process_that_has_ended_has_none(roots: Roots) -> None:
    usage = Usage(table(container(first=own_process(roots, ended=True))), roots)
    assert (await usage.stats("c1")).network == ()


async def test_whoever_has_its_number_now_is_not_asked(roots: Roots) -> None:
    first = own_process(roots)
    (roots.proc / str(os.getpid()) / "cgroup").write_text("0::/pods/s/other\n")
    usage = Usage(table(container(first=first)), roots)
    assert (await usage.stats("c1")).network == ()


# Watching.


class Time:
    """A clock that sleeping moves; `late` is how long the reader takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        real = asyncio.sleep

        async def sleep(seconds: float) -> None:
            self.slept.append(round(seconds, 6))
            self.now += seconds
            await real(0)

        monkeypatch.setattr(asyncio, "sleep", sleep)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


async def test_turns_do_not_drift(roots: Roots, clock: Time) -> None:
    """What a turn costs comes off the next wait; turns that were missed are left out."""
    usage = Usage(table(container()), roots, clock=clock)
    async with aclosing(usage.watch(["c1"], 1.0)) as found:
        for late in (0.25, 0.0, 2.5, 0.0):
            assert (await anext(found)).id == "c1"
            clock.now += late
        await anext(found)
    assert clock.slept == [0.75, 1.0, 0.5, 1.0]
    assert clock.now == 106.0


async def test_it_ends_when_all_that_were_named_are_removed(roots: Roots, clock: Time) -> None:
    known = table(container("a"), container("b"), container("c"))
    usage = Usage(known, roots, clock=clock)
    seen = []
    async with aclosing(usage.watch(["a", "b"], 1.0)) as found:
        async for stats in found:
            seen.append(stats.id)
            if len(seen) == 2:
                known._containers.pop("a")
            if len(seen) == 3:
                # Another one of that name is none of those that were named.
                known._containers["b"] = container("b")
    assert seen == ["a", "b", "b"]


async def test_without_names_it_is_of_those_that_there_are(roots: Roots, clock: Time) -> None:
    known = table()
    usage = Usage(known, roots, clock=clock)
    async with aclosing(usage.watch([], 1.0)) as found:
        waiting = asyncio.ensure_future(anext(found))
        while len(clock.slept) < 3:
            await asyncio.wait([waiting], timeout=0)
        known._containers["late"] = container("late")
        assert (await waiting).id == "late"


async def test_watching_an_unknown_one_is_an_error(roots: Roots) -> None:
    with pytest.raises(AgentError) as caught:
        await anext(Usage(table(), roots).watch(["c1"], 1.0))
    assert caught.value.reason is Reason.UNKNOWN_CONTAINER


# Whatever a file says, there are numbers.


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_parsers_take_anything(text: str) -> None:
    pressure = cgroupfiles.parse_pressure(text)
    assert 0 <= pressure.some.total_micros <= NO_LIMIT
    assert all(0 <= each <= NO_LIMIT for each in cgroupfiles.parse_table(text).values())
    assert 0 <= cgroupfiles.number(text) <= NO_LIMIT
    for interface in usagefiles.parse_interfaces(text):
        assert 0 <= interface.received_bytes <= NO_LIMIT
    for device in usagefiles.parse_io(text, lambda device: device):
        assert device.major >= 0


@given(st.dictionaries(st.from_regex("[a-z_]{1,20}", fullmatch=True), st.integers(0, NO_LIMIT)))
def test_tables_come_back(figures: dict[str, int]) -> None:
    text = "".join(f"{name} {value}\n" for name, value in figures.items())
    assert cgroupfiles.parse_table(text) == figures


def test_numbers_that_are_none() -> None:
    for word in ("", "-1", "1e3", "٣", "0x10", "1 2", "9" * 5000):
        assert cgroupfiles.number(word) == 0, word
    assert cgroupfiles.number("9" * 20) == NO_LIMIT
    assert cast("Any", cgroupfiles.number)(" max\n") == NO_LIMIT
