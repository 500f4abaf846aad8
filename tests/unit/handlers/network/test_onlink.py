"""Where a gateway is found."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from agent.core.network import Family
from agent.handlers.network.onlink import OnLink, Way
from tests.fakes.route_words import LINKS, there

pytestmark = [pytest.mark.unit, pytest.mark.network]


def _found(links: OnLink, gateway: str, table: int = 254) -> str:
    way = links.find(ip_address(gateway), table)
    return "" if way is None else next(name for name in LINKS if LINKS[name] == way.index)


def test_the_longest_prefix_on_link_counts() -> None:
    links = OnLink(
        [there("10.0.0.0/8 dev e0"), there("10.1.0.0/16 dev e1"), there("10.1.1.1/32 dev e2")]
    )
    found = [_found(links, text) for text in ("10.2.0.1", "10.1.0.1", "10.1.1.1", "11.0.0.1")]
    assert found == ["e0", "e1", "e2", ""]


def test_routes_by_gateways_and_without_link_scope_do_not_count() -> None:
    """fib_check_nh looks for a scope of link at least; IPv6 has no scope."""
    links = OnLink(
        [
            there("10.0.0.0/8 dev e0"),
            there("10.1.0.0/16 via 10.0.0.1 dev e1"),
            there("10.2.0.0/16 dev e1 scope global"),
            there("blackhole 10.3.0.0/16"),
        ]
    )
    assert [_found(links, f"10.{n}.0.9") for n in (1, 2, 3)] == ["e0"] * 3


def test_of_one_prefix_the_lower_metric_counts() -> None:
    links = OnLink([there("10.0.0.0/8 dev e0 metric 9"), there("10.0.0.0/8 dev e1")])
    assert _found(links, "10.0.0.1") == "e1"


def test_the_routes_own_table_comes_before_the_main_one() -> None:
    links = OnLink([there("10.0.0.0/8 dev e0"), there("10.0.0.0/8 dev e1", table=9)])
    assert [_found(links, "10.0.0.1", table) for table in (254, 9, 77)] == ["e0", "e1", "e0"]


def test_families_are_apart() -> None:
    links = OnLink([there("2001:db8::/64 dev e1", Family.V6), there("0.0.0.0/0 dev e0")])
    assert links.find(ip_address("2001:db8::1"), 254) == Way(index=3, length=64)
    assert _found(links, "2001:db9::1") == ""
