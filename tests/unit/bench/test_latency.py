"""The agent's part of a plug, from the kernel's trace and the agent's stamps."""

from __future__ import annotations

import pytest

from bench.latency import Answer, Coming, class_samples, coming, storm_samples
from bench.uevents import Told, parse

pytestmark = [pytest.mark.unit, pytest.mark.operations]

FUNCTION = "/devices/pci0000:00/0000:00:10.0/0000:01:00.0"

# As a 6.12 kernel prints its trace: of two disks that used the port one after the other.
TRACE = f"""\
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
    kworker/u4:1-29      [000] ..... 100.000001: told: (netlink_broadcast+0x4/0x20) text="add@/devices/LNXSYSTM:00/wakeup15"
    kworker/u4:1-29      [000] ..... 100.010000: told: (netlink_broadcast+0x4/0x20) text="add@{FUNCTION}"
    kworker/u4:1-29      [000] ..... 100.020000: told: (netlink_broadcast+0x4/0x20) text="add@{FUNCTION}/virtio3"
    kworker/u4:1-29      [000] ..... 100.040000: told: (netlink_broadcast+0x4/0x20) text="add@{FUNCTION}/virtio3/block/vdb"
    kworker/u4:1-29      [000] ..... 100.041000: told: (netlink_broadcast+0x4/0x20) text="bind@{FUNCTION}/virtio3"
             sh-170      [000] ..... 100.041500: told: (netlink_broadcast+0x4/0x20) text=(fault)
    kworker/u4:1-29      [000] ..... 200.000000: told: (netlink_broadcast+0x4/0x20) text="remove@{FUNCTION}/virtio3/block/vdb"
    kworker/u4:1-29      [000] ..... 300.000000: told: (netlink_broadcast+0x4/0x20) text="add@{FUNCTION}"
    kworker/u4:1-29      [000] ..... 300.030000: told: (netlink_broadcast+0x4/0x20) text="add@{FUNCTION}/virtio3/net/eth0"
    kworker/u4:1-29      [000] ..... 300.031000: told: (netlink_broadcast+0x4/0x20) text="add@{FUNCTION}/virtio3/net/eth0/queues/rx-0"
    kworker/u4:1-29      [000] ..... 300.032000: told: (netlink_broadcast+0x4/0x20) text="bind@{FUNCTION}/virtio3"
"""  # noqa: E501 - as it is printed


def test_a_trace_gives_time_action_and_path_of_devices() -> None:
    told = tuple(parse(TRACE))
    assert len(told) == 10
    assert told[1] == Told(at=100.01, action="add", path=FUNCTION)


def test_the_last_events_before_the_answer_count() -> None:
    """The port was used twice: each answer has its own device's events."""
    trace = tuple(parse(TRACE))
    first = coming("block", Answer(at=100.05, path=FUNCTION), trace)
    assert (first.function, first.ready) == (100.01, 100.04)
    second = coming("nic", Answer(at=300.05, path=FUNCTION), trace)
    assert (second.function, second.ready) == (300.0, 300.03), "not the queue's event"
    bound = coming("rng", Answer(at=300.05, path=FUNCTION), trace)
    assert bound.ready == 300.032


def test_an_event_that_is_missing_is_not_made_up() -> None:
    """The first's disk is no disk of the second's, which has none."""
    found = coming("block", Answer(at=300.05, path=FUNCTION), tuple(parse(TRACE)))
    assert (found.function, found.ready) == (300.0, 0.0)
    assert list(class_samples("block", [found])) == []


def comings(*waits: float) -> list[Coming]:
    """Each function comes at its number, and its disk half a second later."""
    return [
        Coming(function=at, ready=at + 0.5, answer=at + 0.5 + wait)
        for at, wait in enumerate(waits, start=1)
    ]


def test_median_p99_and_what_they_are_to_the_kernels_part() -> None:
    told = {each.name: each.value for each in class_samples("block", comings(0.1, 0.25, 0.3))}
    assert told == {
        "answer_block_p50_ms": pytest.approx(250),
        "answer_block_p99_ms": pytest.approx(300),
        "kernel_block_p50_ms": pytest.approx(500),
        "answer_block_to_kernel": pytest.approx(0.5),
    }


def test_growth_is_by_device_and_against_one_alone() -> None:
    """Two at once that take four times as long as one: twice the time for each."""
    one = comings(0.5)
    two = [Coming(function=1, ready=2, answer=3), Coming(function=1.5, ready=2, answer=5)]
    told = {each.name: each.value for each in storm_samples({1: [one, one], 2: [two]})}
    assert (told["at_once_1_ms"], told["at_once_2_ms"]) == (1000, 4000)
    assert (told["at_once_1_growth"], told["at_once_2_growth"]) == (1, 2)
    assert (told["at_once_2_answer_p50_ms"], told["at_once_2_answer_p99_ms"]) == (1000, 3000)
