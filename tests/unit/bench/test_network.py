"""Figures of the network's changes, and what `ip` is given to do the same."""

from __future__ import annotations

import pytest

from bench.network import COUNTS, STEPS, batch, destinations, parse_times, route_samples

pytestmark = [pytest.mark.unit, pytest.mark.network]


def test_destinations_are_all_different_networks() -> None:
    found = list(destinations(max(COUNTS)))
    assert len(set(found)) == max(COUNTS)
    assert (found[0], found[-1]) == ("10.0.0.0/24", "10.19.135.0/24")


def test_what_ip_is_given() -> None:
    """ip-route(8): `add` fails where there is one, `replace` changes or adds."""
    line = "10.0.0.0/24 via {} dev bench0 table 100\n"
    assert batch("added", 1) == f"route add {line}".format("192.0.2.1")
    assert batch("same", 1) == f"route replace {line}".format("192.0.2.1")
    assert batch("replaced", 1) == f"route replace {line}".format("192.0.2.2")
    assert batch("emptied", 5000) == "route flush table 100\n"
    assert batch("added", 5000).count("\n") == 5000


def test_seconds_of_each_step_by_the_guests_clock() -> None:
    said = "added 1 100.50 100.75\nsame 1 101.00 101.00\n"
    assert parse_times(said) == [("added", 1, 0.25), ("same", 1, 0.01)]


@pytest.mark.parametrize("said", ["", "added 1\n"], ids=["nothing", "no clock"])
def test_an_ip_that_did_nothing_is_an_error(said: str) -> None:
    with pytest.raises(ValueError, match=r"did none|unpack"):
        parse_times(said)


def test_the_ratio_is_of_medians() -> None:
    ours = [("added", 100, 0.2), ("added", 100, 0.3), ("added", 100, 9.0)]
    samples = list(route_samples(ours, [("added", 100, 0.1)]))
    named: dict[str, list[float]] = {}
    for each in samples:
        named.setdefault(each.name, []).append(each.value)
    assert named == {
        "apply_routes_100_added_ms": pytest.approx([200, 300, 9000]),
        "ip_routes_100_added_ms": pytest.approx([100]),
        "apply_routes_100_added_to_ip": pytest.approx([3]),
    }
    assert set(STEPS) >= {"added"}
