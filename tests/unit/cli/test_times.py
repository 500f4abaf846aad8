"""Times as people write and read them."""

from __future__ import annotations

import pytest
import typer

from innkeeper.cli import times

pytestmark = [pytest.mark.unit, pytest.mark.operations]

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172_800), ("250ms", 0.25)],
)
def test_how_long_ago(text: str, seconds: float) -> None:
    assert times.parse_since("--since", text, now=NOW) == round((NOW - seconds) * 1e6)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2026-01-02T03:04:05Z", 1_767_323_045_000_000),
        ("2026-01-02T03:04:05.5+01:00", 1_767_319_445_500_000),
        ("2026-01-02T03:04:05.123456789Z", 1_767_323_045_123_456),
        ("1767323045", 1_767_323_045_000_000),
    ],
)
def test_points_in_time_by_rfc_3339(text: str, micros: int) -> None:
    """Seconds by `date -u -d 2026-01-02T03:04:05Z +%s`."""
    assert times.parse_since("--since", text) == micros


@pytest.mark.parametrize("text", ["yesterday", "10", "10x", "m", "-5m", "2026-13-01", "1h 30m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write how long ago"):
        times.parse_since("--since", text)


def test_stamps_are_rfc_3339_in_utc() -> None:
    assert times.stamp(1_767_323_045_000_007) == "2026-01-02T03:04:05.000007Z"
    assert times.stamp(2**62) == "-"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59, "59s"), (200, "3m 20s"), (18_120, "5h 2m"), (1_047_600, "12d 3h")],
)
def test_spans_have_two_units(seconds: float, text: str) -> None:
    assert times.span(seconds) == text


def test_ages_of_what_never_was_and_of_a_clock_ahead() -> None:
    assert times.age(0) == "-"
    assert times.age(round((NOW + 5) * 1e6), now=NOW) == "0s"


def test_cpu_time_is_that_of_ps() -> None:
    assert times.cpu_time(62_505_000) == "1:02.50"
