"""What is refused without asking the kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.network import Family, RouteSet
from agent.handlers.network.routechecks import ROUTE_LIMIT, check_sets
from tests.fakes.route_words import v4, v6, wish, wished

pytestmark = [pytest.mark.unit, pytest.mark.network]


def _refused(*sets: RouteSet) -> AgentError:
    with pytest.raises(AgentError) as caught:
        check_sets(wish(*sets))
    assert caught.value.reason is Reason.BAD_FIELD
    return caught.value


@pytest.mark.parametrize(
    ("routes", "field"),
    [
        (v4("2001:db8::/32 dev e0"), "destination"),
        (v6("192.0.2.0/24 dev e0"), "destination"),
        (v4("default dev e0 src 2001:db8::1"), "source"),
        (v4("default dev e0 src 0.0.0.0"), "source"),
        (v6("default via 192.0.2.1 dev e0"), "gateway"),
        (v4("default via 0.0.0.0 dev e0"), "gateway"),
        (v4("default via 224.0.0.1 dev e0"), "gateway"),
        (v4("default via 192.0.2.1 onlink"), "device"),
        (v6("default via fe80::1"), "device"),
        (v4("default via fe80::1"), "device"),
        (v4("default dev e0 onlink"), "onlink"),
        (v4("default dev e0 mtu 65521"), "mtu"),
        (v4("default dev e0 metric 4294967296"), "metric"),
        (v4("default dev e0 scope nowhere"), "scope"),
        (v4("default"), "routes[0]"),
        (v4("blackhole default dev e0"), "routes[0]"),
        (v4("default nexthop dev e0 weight 0 nexthop dev e1"), "weight"),
        (v4("default nexthop dev e0 weight 257 nexthop dev e1"), "weight"),
        (v6("default nexthop dev e0 nexthop dev e1"), "next_hops[0]"),
        (v6("default nexthop via fe80::1 dev e0 nexthop via fe80::1 dev e0"), "next_hops[1]"),
        (v4(table=255), "table"),
        (v4(table=0), "table"),
        (v4(table=2**32), "table"),
    ],
)
def test_it_is_refused_at_its_field(routes: RouteSet, field: str) -> None:
    assert _refused(routes).fields["field"].endswith(field)


def test_a_set_is_there_once() -> None:
    assert "sets[0] and sets[2]" in str(_refused(v4(), v6(), v4()))
    check_sets(wish(v4(), v6(), v4(table=100)))


def test_there_is_a_limit() -> None:
    many = replace(v4(), routes=(wished("default dev e0"),) * (ROUTE_LIMIT + 1))
    assert "100,001 routes are more than 100,000" in str(_refused(many))


@pytest.mark.parametrize(
    "routes",
    [
        v4("default via 192.0.2.1 dev e0 onlink mtu 65520 metric 4294967295", table=2**32 - 1),
        v4("default via fe80::1 dev e0", "198.51.100.1 dev e0", "prohibit 10.0.0.0/8"),
        v4("default nexthop dev e0 weight 256 nexthop via 192.0.2.1"),
        v6("default dev e0", "2001:db8::9 via fe80::1 dev e0", "throw ::/1", "fe80::/64 dev e0"),
    ],
)
def test_it_is_taken(routes: RouteSet) -> None:
    check_sets(wish(routes))


def test_one_address_is_a_host_and_default_is_everything() -> None:
    """cases.md 76, as ipaddress reads it."""
    texts = ["fc00::2", "::/0", "default"]
    lengths = [wished(text, Family.V6).destination.prefixlen for text in texts]
    assert lengths == [128, 0, 0]
    assert [wished(text).destination.prefixlen for text in ("192.0.2.9", "0.0.0.0/0")] == [32, 0]
