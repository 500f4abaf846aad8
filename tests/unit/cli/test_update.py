"""Limits as OCI's words."""

from __future__ import annotations

import pytest
import typer

from innkeeper.cli.update import to_resources

pytestmark = [pytest.mark.unit, pytest.mark.containers]


def test_what_is_named_changes_and_nothing_else() -> None:
    assert to_resources(memory="256M") == {"memory": {"limit": 256 << 20}}
    assert to_resources(pids="100", cpuset="0-2,5") == {
        "cpu": {"cpus": "0-2,5"},
        "pids": {"limit": 100},
    }


@pytest.mark.parametrize("word", ["-1", "max", "unlimited"])
def test_no_limit(word: str) -> None:
    assert to_resources(cpus=word, memory=word, pids=word) == {
        "cpu": {"quota": -1, "period": 100_000},
        "memory": {"limit": -1},
        "pids": {"limit": -1},
    }


@pytest.mark.parametrize(("text", "quota"), [("0.5", 50_000), ("2", 200_000), (".01", 1000)])
def test_cpus_are_a_quota_of_each_period(text: str, quota: int) -> None:
    assert to_resources(cpus=text)["cpu"]["quota"] == quota


def test_a_weight_is_the_kernels_own() -> None:
    """cgroup-v2.rst, cpu.weight."""
    assert to_resources(cpu_weight="200") == {"unified": {"cpu.weight": "200"}}


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"cpus": "0"},
        {"cpus": "x"},
        {"cpus": "1e3"},
        {"memory": "lots"},
        {"pids": "0"},
        {"cpuset": "a-b"},
        {"cpu_weight": "0"},
    ],
    ids=str,
)
def test_what_can_not_be_is_refused(words: dict[str, str]) -> None:
    with pytest.raises(typer.BadParameter):
        to_resources(**words)
