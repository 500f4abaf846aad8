"""Figures of containers: what is ours is what crun did not take, and memory by their number."""

from __future__ import annotations

import pytest

from bench.containers import counts, latency_figures, memory_figures, spec
from bench.figures import gather
from innkeeper.v1 import sandbox_pb2

pytestmark = [pytest.mark.unit, pytest.mark.containers]

MIB = 1 << 20


def test_our_cost_is_the_difference_of_the_medians() -> None:
    ours = [(0.30, 0.20), (0.50, 0.21), (0.40, 0.90)]
    by_crun = [(0.10, 0.05), (0.20, 0.06)]
    told = {each.name: each for each in gather(latency_figures(ours, by_crun, 0.003))}
    assert told["container_start_ms"].samples == pytest.approx((300, 500, 400))
    assert told["container_start_crun_ms"].samples == pytest.approx((100, 200))
    assert told["container_start_cost_ms"].samples == pytest.approx((250,))
    assert told["exec_ms"].samples == pytest.approx((200, 210, 900))
    assert told["exec_crun_ms"].samples == pytest.approx((50, 60))
    assert told["exec_cost_ms"].samples == pytest.approx((155,))
    assert told["container_empty_call_ms"].samples == pytest.approx((3,))


@pytest.mark.parametrize(
    ("most", "expected"), [(1, (1,)), (20, (1, 20)), (200, (1, 50, 200)), (300, (1, 50, 200, 300))]
)
def test_memory_is_looked_at_on_the_way_to_the_most(most: int, expected: tuple[int, ...]) -> None:
    assert counts(most) == expected


def test_memory_by_the_number_of_containers_and_for_each() -> None:
    found = {
        1: sandbox_pb2.ProcessMemory(name="agent", resident=60 * MIB, proportional=50 * MIB),
        200: sandbox_pb2.ProcessMemory(name="agent", resident=259 * MIB, proportional=50 * MIB),
    }
    told = {sample.name: sample.value for sample in memory_figures(found)}
    assert told == {
        "agent_rss_mib_1_containers": 60,
        "agent_rss_mib_200_containers": 259,
        "agent_rss_kib_per_container": 1024,
        "agent_pss_mib_1_containers": 50,
        "agent_pss_mib_200_containers": 50,
        "agent_pss_kib_per_container": 0,
    }


def test_one_number_of_containers_tells_nothing_of_each() -> None:
    found = {1: sandbox_pb2.ProcessMemory(name="agent", resident=60 * MIB, proportional=50 * MIB)}
    told = {sample.name for sample in memory_figures(found)}
    assert told == {"agent_rss_mib_1_containers", "agent_pss_mib_1_containers"}


def test_each_container_has_a_specification_of_its_own() -> None:
    """Who gives one a place for crun does not change the next."""
    spec()["root"]["path"] = "/elsewhere"
    assert spec()["root"] == {"path": "rootfs", "readonly": True}
