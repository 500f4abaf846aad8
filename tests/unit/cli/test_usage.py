"""Percent and rates out of the kernel's counters."""

from __future__ import annotations

import pytest

from innkeeper.cli.usage import RATES, TOTALS, Reading, Readings
from innkeeper.v1 import containers_pb2 as pb

pytestmark = [pytest.mark.unit, pytest.mark.containers]

MIB = 1 << 20
NO_LIMIT = 2**64 - 1


def stats(at: float, cpu: float = 0, **more: object) -> pb.ContainerStats:
    """`at` and `cpu` in seconds."""
    cpu_stats = pb.CpuStats(usage_micros=round(cpu * 1e6))
    return pb.ContainerStats(id="main", at_unix_micros=round(at * 1e6), cpu=cpu_stats, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "used", "percent"), [(1, 0.5, 50), (2, 4, 200), (0.1, 0, 0), (10, 0.001, 0.01)]
)
def test_cpu_is_the_share_of_one_cpu_between_two_readings(
    seconds: float, used: float, percent: float
) -> None:
    reading = Reading(before=stats(100, 7), now=stats(100 + seconds, 7 + used))
    assert reading.cpu_percent == pytest.approx(percent)


def test_one_reading_alone_says_nothing_of_cpu() -> None:
    assert Reading(now=stats(1, 1)).cpu_percent is None


def test_a_clock_that_was_set_back_gives_no_figure() -> None:
    reading = Reading(before=stats(100, 1), now=stats(50, 2))
    assert reading.cpu_percent is None
    assert reading.rates.read == 0


def test_memory_is_without_what_the_kernel_takes_back_first() -> None:
    """docker stats, cgroup v2: memory.current less inactive_file."""
    memory = pb.MemoryStats(current=100 * MIB, inactive_file=40 * MIB, limit=120 * MIB)
    reading = Reading(now=stats(1, memory=memory))
    assert (reading.memory, reading.memory_percent) == (60 * MIB, 50)
    assert "120 MiB" in reading.row(rates=False)


def test_a_limit_that_there_is_not_is_a_dash_and_null() -> None:
    memory = pb.MemoryStats(current=MIB, limit=NO_LIMIT)
    reading = Reading(now=stats(1, memory=memory, pids=pb.PidsStats(current=2, limit=NO_LIMIT)))
    row = reading.row(rates=True)
    assert (row[3], row[4], row[5]) == ("-", "-", "2")
    record = reading.record()
    assert record["memory_percent"] is None
    assert record["memory"]["limit"] is None  # type: ignore[index]


def test_rates_are_bytes_a_second_of_all_devices_together() -> None:
    before = stats(1, io=[pb.IoStats(name="vda", read_bytes=1000)])
    now = stats(
        3, io=[pb.IoStats(name="vda", read_bytes=3000), pb.IoStats(name="vdb", read_bytes=2000)]
    )
    assert Reading(before=before, now=now).rates.read == 2000


def test_counters_that_went_back_stand_still() -> None:
    """An interface that went took its counters along."""
    before = stats(1, network=[pb.InterfaceStats(name="eth0", sent_bytes=500)])
    assert Reading(before=before, now=stats(2)).rates.sent == 0


def test_rows_have_a_cell_for_each_column() -> None:
    reading = Reading(now=stats(1))
    assert len(reading.row(rates=True)) == len(RATES)
    assert len(reading.row(rates=False)) == len(TOTALS)


def test_readings_keep_the_last_two_of_each() -> None:
    readings = Readings()
    readings.take(stats(1, 1))
    readings.take(stats(2, 1))
    readings.take(stats(3, 2))
    (reading,) = readings.of(["main", "other"])
    assert reading.cpu_percent == pytest.approx(100)
