"""Lists of CPUs in the kernel's notation (cpuset(7), "List format")."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.cpus import MOST, parse_cpus, spell_cpus

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-4,9", {0, 1, 2, 3, 4, 9}),
        ("0-2,7,12-14", {0, 1, 2, 7, 12, 13, 14}),
        ("3\n", {3}),
        ("\n", set()),
        ("", set()),
    ],
)
def test_the_examples_of_the_manual_page(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize(
    "text", ["a", "1-", "-1", "3-1", "1,,2", "1 2", "0x3", "\u0663", "0-99999"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a list of CPUs"):
        parse_cpus(text)


@given(st.frozensets(st.integers(0, MOST - 1), max_size=40))
def test_there_and_back(cpus: frozenset[int]) -> None:
    assert parse_cpus(spell_cpus(cpus)) == cpus


def test_the_shortest_spelling() -> None:
    assert spell_cpus([7, 0, 1, 2, 4]) == "0-2,4,7"
