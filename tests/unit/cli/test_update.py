"""Limits as OCI's words."""

from __future__ import annotations

import pytest
import typer

from innkeeper.cli.update import Change

pytestmark = [pytest.mark.unit, pytest.mark.containers]


def test_what_is_named_changes_and_nothing_else() -> None:
    assert Change(memory="256M").to_oci() == {"memory": {"limit": 256 << 20}}
    assert Change(pids="100", cpuset="0-2,5").to_oci() == {
        "cpu": {"cpus": "0-2,5"},
        "pids": {"limit": 100},
    }


def test_swap_is_with_memory_and_a_reservation_can_go() -> None:
    """OCI's `swap` is the sum of both, as docker's --memory-swap."""
    mib = 1 << 20
    assert Change(memory="64M", swap="96M").to_oci() == {
        "memory": {"limit": 64 * mib, "swap": 96 * mib}
    }
    assert Change(memory="64M", swap="-1").to_oci() == {"memory": {"limit": 64 * mib, "swap": -1}}
    assert Change(reservation="32M").to_oci() == {"memory": {"reservation": 32 * mib}}
    assert Change(reservation="0").to_oci() == {"memory": {"reservation": 0}}


@pytest.mark.parametrize("word", ["-1", "max", "unlimited"])
def test_no_limit(word: str) -> None:
    assert Change(cpus=word, memory=word, pids=word).to_oci() == {
        "cpu": {"quota": -1, "period": 100_000},
        "memory": {"limit": -1},
        "pids": {"limit": -1},
    }


@pytest.mark.parametrize(("text", "quota"), [("0.5", 50_000), ("2", 200_000), (".01", 1000)])
def test_cpus_are_a_quota_of_each_period(text: str, quota: int) -> None:
    assert Change(cpus=text).to_oci()["cpu"]["quota"] == quota


def test_a_weight_is_the_kernels_own() -> None:
    """cgroup-v2.rst, cpu.weight."""
    assert Change(cpu_weight="200").to_oci() == {"unified": {"cpu.weight": "200"}}


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"cpus": "0"},
        {"cpus": "x"},
        {"cpus": "1e3"},
        {"memory": "lots"},
        {"pids": "0"},
        {"swap": "64M"},
        {"memory": "max", "swap": "64M"},
        {"memory": "64M", "swap": "32M"},
        {"memory": "0"},
        {"cpuset": "a-b"},
        {"cpu_weight": "0"},
    ],
    ids=str,
)
def test_what_can_not_be_is_refused(words: dict[str, str]) -> None:
    with pytest.raises(typer.BadParameter):
        Change(**words).to_oci()
