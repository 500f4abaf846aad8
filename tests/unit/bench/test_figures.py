"""Figures are computed as their names say."""

from __future__ import annotations

import pytest

from bench.boot import boot_samples, memory_samples
from bench.figures import Figure, Sample, gather, percentile
from bench.plugs import kernel_parts, split
from innkeeper.v1 import host_pb2, sandbox_pb2

pytestmark = [pytest.mark.unit, pytest.mark.operations]

# As printed by dmesg of a 6.12 kernel when two virtio disks are plugged in.
LOG = """\
[    0.412345] pci 0000:00:01.0: [1b36:000c] type 01 class 0x060400 PCIe Root Port
[    0.500000] virtio_blk virtio0: [vda] 204800 512-byte logical blocks (105 MB/100 MiB)
[   12.100000] pci 0000:01:00.0: [1af4:1042] type 00 class 0x010000 PCIe Endpoint
[   12.100900] pci 0000:01:00.0: BAR 1 [mem 0x00000000-0x00000fff]
[   12.130000] virtio-pci 0000:01:00.0: enabling device (0000 -> 0002)
[   12.142500] virtio_blk virtio3: [vdb] 131072 512-byte logical blocks (67.1 MB/64.0 MiB)
[   13.000000] pci 0000:01:00.0: [1af4:1042] type 00 class 0x010000 PCIe Endpoint
[   13.030000] virtio_blk virtio3: [vdb] 131072 512-byte logical blocks (67.1 MB/64.0 MiB)
"""


def test_the_nearest_rank_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(1, 1001)]
    assert percentile(values, 0.5) == 500
    assert percentile(values, 0.99) == 990
    assert percentile(values, 0.999) == 999
    assert percentile([7.0], 0.999) == 7


def test_a_figure_says_median_extremes_and_the_distance_of_the_quartiles() -> None:
    figure = Figure(name="x_ms", unit="ms", samples=(5, 1, 2, 4, 3), what="x")
    told = figure.to_json()
    assert (told["median"], told["min"], told["max"], told["spread"]) == (3, 1, 5, 2)
    assert told["samples"] == [5, 1, 2, 4, 3]


def test_a_row_has_no_exponents_and_no_spread_of_one_sample() -> None:
    figure = Figure(name="x_us", unit="us", samples=(19780.4,), what="x")
    assert figure.to_row() == ("x_us", "19780", "-", "19780", "19780", "1", "us")
    figure = Figure(name="x_us", unit="us", samples=(0.5, 1.23456, 2), what="x")
    assert figure.to_row()[1:3] == ("1.235", "0.75")


def test_samples_of_one_name_become_one_figure() -> None:
    samples = [Sample(name=name, value=1, unit="ms", what="") for name in ("b", "a", "b")]
    assert [(figure.name, len(figure.samples)) for figure in gather(samples)] == [
        ("b", 2),
        ("a", 1),
    ]


def test_phases_are_differences_of_the_times_that_the_guest_tells() -> None:
    phases = {"pid1": 1_500_000, "agent_spawned": 1_700_000, "agent_serving": 4_000_000}
    guest = sandbox_pb2.DescribeSandboxResponse(
        boot_phases=[sandbox_pb2.BootPhase(name=name, at_micros=at) for name, at in phases.items()]
    )
    vm = host_pb2.VmDescription(first_answer_micros=6_000_000)
    told = {sample.name: sample.value for sample in boot_samples(vm, guest)}
    assert told == {
        "cold_first_answer_ms": 6000,
        "kernel_to_pid1_ms": 1500,
        "pid1_to_agent_ready_ms": 2500,
        "outside_guest_ms": 2000,
    }


def test_memory_is_told_by_process() -> None:
    memory = [sandbox_pb2.ProcessMemory(name="agent", resident=32 << 20, proportional=30 << 20)]
    guest = sandbox_pb2.DescribeSandboxResponse(memory=memory)
    told = {sample.name: sample.value for sample in memory_samples(guest)}
    assert told == {"agent_rss_mib": 32, "agent_pss_mib": 30}


def test_the_kernels_part_is_from_the_function_to_its_disk() -> None:
    parts = kernel_parts(LOG)
    assert parts[-2:] == pytest.approx([0.0425, 0.03])


def test_ours_is_what_the_kernel_did_not_take() -> None:
    told = gather(split([0.06, 0.05], [0.1, 0.1], kernel_parts(LOG)))
    ours = next(figure for figure in told if figure.name == "plug_ours_ms")
    assert ours.samples == pytest.approx((17.5, 20))


def test_a_log_that_does_not_tell_all_rounds_gives_no_split() -> None:
    told = gather(split([0.06] * 5, [0.1] * 5, kernel_parts(LOG)))
    assert [figure.name for figure in told] == ["plug_to_usable_ms", "unplug_ms"]
