"""Which routes that are there satisfy the wanted ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.network import Family, Route, RouteSet
from agent.handlers.network.routetargets import targets
from agent.handlers.network.routewants import wants
from tests.fakes.route_words import names, there, v4, v6

pytestmark = [pytest.mark.unit, pytest.mark.network]

MINE = "10.244.0.0/24 dev e1 proto kernel src 10.244.0.7"


def _targets(now: Sequence[Route], *sets: RouteSet) -> tuple[Route, ...]:
    found = names()
    wanted = {(each.family, each.table): wants(each, found, "sets[0]") for each in sets}
    return targets(now, wanted, found)


def _refused(now: Sequence[Route], *sets: RouteSet) -> AgentError:
    with pytest.raises(AgentError) as caught:
        _targets(now, *sets)
    return caught.value


def test_a_route_that_the_kernel_made_satisfies() -> None:
    """cases.md 72: the route of the address, asked for as well."""
    kernels = there(MINE)
    assert _targets([kernels], v4("10.244.0.0/24 dev e1 scope link")) == (kernels,)
    assert _targets([kernels], v4("10.244.0.0/24 dev e1")) == (kernels,)


def test_the_kernels_route_does_not_satisfy_what_it_is_not() -> None:
    kernels = there(MINE)
    for text in ("dev e0", "dev e1 metric 5", "dev e1 src 10.244.0.9", "via 192.0.2.1 dev e1"):
        new, stays = _targets([kernels], v4(f"10.244.0.0/24 {text}"))
        assert stays == kernels
        assert new != kernels


def test_link_local_prefixes_are_satisfied_by_the_kernels_whatever_their_metric() -> None:
    """cases.md 72: IPv6 makes fe80::/64 for each interface, with metric 256."""
    made = [
        there(f"fe80::/64 dev {name} proto kernel metric 256", Family.V6) for name in ("e0", "e1")
    ]
    assert _targets(made, v6("fe80::/64 dev e0", "fe80::/64 dev e1")) == tuple(made)


def test_what_others_made_satisfies_whoever_they_are() -> None:
    theirs = there("default via 192.0.2.1 dev e0 proto dhcp")
    assert _targets([theirs], v4("default via 192.0.2.1 dev e0")) == (theirs,)


def test_what_is_not_wanted_goes_but_the_kernels_own() -> None:
    kernels, router = there(MINE), there("default via fe80::1 dev e0 proto ra", Family.V6)
    local = there("local 10.244.0.7/32 dev e1 proto kernel")
    now = [kernels, local, router, there("10.1.0.0/16 via 10.244.0.1 dev e1")]
    assert _targets(now, v4(), v6()) == (kernels, local, router)


def test_the_metric_of_ipv6_is_1024_where_none_is_said() -> None:
    (made,) = _targets([], v6("2001:db8:1::/48 dev e0"))
    assert made.metric == 1024


def test_the_family_is_that_of_the_set() -> None:
    """cases.md 71: a default of IPv6 without a gateway next to one of IPv4."""
    six, four = _targets([], v6("default dev e0"), v4("default via 192.0.2.1 dev e0"))
    assert (six.family, str(six.destination)) == (Family.V6, "::/0")
    assert (four.family, str(four.destination)) == (Family.V4, "0.0.0.0/0")


def test_a_gateway_without_a_device_is_found_by_the_routes_on_link() -> None:
    kernels = there(MINE)
    (default, _) = _targets([kernels], v4("default via 10.244.0.1"))
    assert [hop.index for hop in default.hops] == [3]
    moved = there("default via 10.244.0.1 dev e0")
    assert moved not in _targets([kernels, moved], v4("default via 10.244.0.1"))


def test_in_another_table_the_gateway_is_found_by_the_main_one() -> None:
    (default,) = _targets([there(MINE)], v4("default via 10.244.0.1", table=100))
    assert [hop.index for hop in default.hops] == [3]


def test_a_gateway_that_nothing_leads_to_is_left_to_the_kernel() -> None:
    (default,) = _targets([], v4("default via 203.0.113.1"))
    assert [hop.index for hop in default.hops] == [0]


def test_the_order_of_ways_does_not_matter() -> None:
    one = there("default nexthop via 192.0.2.1 dev e0 nexthop via 192.0.2.2 dev e1 weight 3")
    other = v4("default nexthop via 192.0.2.2 dev e1 weight 3 nexthop via 192.0.2.1 dev e0")
    assert _targets([one], other) == (one,)
    heavier = v4("default nexthop via 192.0.2.2 dev e1 weight 4 nexthop via 192.0.2.1 dev e0")
    assert _targets([one], heavier) != (one,)


def test_two_of_one_key_are_refused_by_both_names() -> None:
    error = _refused([], v4("default via 192.0.2.1 dev e0", "default via 192.0.2.2 dev e0"))
    assert error.reason is Reason.BAD_FIELD
    assert "default via 192.0.2.1 dev e0" in error.message
    assert "default via 192.0.2.2 dev e0" in error.message
    assert error.fields["field"] == "sets[0].routes[1]"


def test_the_same_twice_is_refused() -> None:
    kernels = there(MINE)
    assert "destination and metric" in str(_refused([], v6("::/0 dev e0", "default dev e0")))
    assert _refused([kernels], v4("10.244.0.0/24 dev e1", "10.244.0.0/24 dev e1"))


def test_ipv6_keeps_routes_on_link_of_several_interfaces() -> None:
    assert len(_targets([], v6("2001:db8::/64 dev e0", "2001:db8::/64 dev e1"))) == 2
    assert _refused([], v6("2001:db8::/64 dev e0", "2001:db8::/64 via fe80::1 dev e1"))
    assert _refused([], v6("2001:db8::/64 via fe80::1 dev e1", "2001:db8::/64 dev e0"))


def test_what_a_list_tells_can_be_applied_again() -> None:
    """Others make routes of one key."""
    one, other = there("default via 192.0.2.1 dev e0"), there("default via 192.0.2.2 dev e0")
    listed = v4("default via 192.0.2.1 dev e0", "default via 192.0.2.2 dev e0")
    assert _targets([one, other], listed) == (one, other)
    local = there("local 10.244.0.7/32 dev e1 proto kernel scope host", table=10)
    assert _targets([local], v4("local 10.244.0.7/32 dev e1 scope host", table=10)) == (local,)


def test_a_local_route_can_not_be_made() -> None:
    assert "the kernel makes local routes" in str(_refused([], v4("local 10.244.0.9/32 dev e1")))


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    error = _refused([], v4("default dev e9"))
    assert error.reason is Reason.UNKNOWN_INTERFACE
    assert "e9" in error.message
    assert "e0, e1, e2, lo" in error.message
