"""Signals by name and number."""

from __future__ import annotations

import pytest
import typer

from innkeeper.cli import signals

pytestmark = [pytest.mark.unit, pytest.mark.containers]


@pytest.mark.parametrize(
    ("word", "parsed"),
    [
        ("TERM", "TERM"),
        ("sigterm", "TERM"),
        ("SIGHUP", "HUP"),
        ("9", "9"),
        ("64", "64"),
        ("rtmin+3", "RTMIN+3"),
        ("SIGRTMAX-1", "RTMAX-1"),
        ("RTMIN", "RTMIN"),
    ],
)
def test_names_and_numbers(word: str, parsed: str) -> None:
    assert signals.parse(word) == parsed


@pytest.mark.parametrize(
    ("word", "told"),
    [("0", "1 to 64"), ("65", "1 to 64"), ("TREM", "TERM?"), ("", "name"), ("RTMIN-1", "name")],
)
def test_others_are_refused_with_a_way_out(word: str, told: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        signals.parse(word)
    assert told in str(refused.value)


def test_names_for_people() -> None:
    assert signals.name(9) == "SIGKILL"
    assert signals.name(99) == "signal 99"


def test_shells_get_names() -> None:
    assert signals.complete("SIGUS") == ["USR1", "USR2"]
