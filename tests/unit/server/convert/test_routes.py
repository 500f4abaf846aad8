"""What Network.ListRoutes shows is what Network.ApplyRoutes takes."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.errors import AgentError
from agent.core.network import (
    Family,
    Hop,
    HopWish,
    IpNetwork,
    Protocol,
    Route,
    RoutesState,
    RouteType,
    RouteWish,
    Rule,
    RuleAction,
    Scope,
)
from agent.server.convert.route_lists import routes_state
from agent.server.convert.routes import routes_wish
from agent.server.limits import ROUTES
from innkeeper.v1 import network_pb2 as pb

pytestmark = [pytest.mark.unit, pytest.mark.network]

NAMES = {2: "eth0", 3: "a-long-name.100", 9: "br0"}
NOWHERE = (RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT, RouteType.THROW)
KERNELS = (RouteType.LOCAL, RouteType.BROADCAST, RouteType.ANYCAST, RouteType.MULTICAST)


def prefix(family: Family) -> st.SearchStrategy[IpNetwork]:
    version: Any = 4 if family is Family.V4 else 6
    return st.builds(
        lambda address, length: ip_network((address, length), strict=False),
        st.ip_addresses(v=version),
        st.integers(0, family.bits),
    )


def one(version: Any) -> st.SearchStrategy[Any]:
    """The address of one host."""
    return st.ip_addresses(v=version).filter(lambda a: not (a.is_multicast or a.is_unspecified))


def hop(family: Family) -> st.SearchStrategy[Hop]:
    gateways = one(4) | one(6) if family is Family.V4 else one(6)
    via = st.builds(
        Hop,
        gateway=gateways,
        index=st.sampled_from(sorted(NAMES)),
        weight=st.integers(1, 256),
        onlink=st.booleans(),
    )
    return via | st.builds(Hop, index=st.sampled_from(sorted(NAMES)), weight=st.integers(1, 256))


@st.composite
def routes(draw: st.DrawFn, family: Family) -> Route:
    nowhere = draw(st.booleans())
    hops = () if nowhere else tuple(draw(st.lists(hop(family), min_size=1, max_size=4)))
    if len(hops) == 1:
        hops = (Hop(gateway=hops[0].gateway, index=hops[0].index, onlink=hops[0].onlink),)
    scopes = list(Scope) if family is Family.V4 else [Scope.UNIVERSE]
    return Route(
        family=family,
        table=draw(st.sampled_from([1, 254, 2**32 - 1])),
        destination=draw(prefix(family)),
        type=draw(st.sampled_from(NOWHERE)) if nowhere else RouteType.UNICAST,
        hops=hops,
        source=draw(st.none() | one(4 if family is Family.V4 else 6)),
        metric=draw(st.integers(1, 2**32 - 1)),
        scope=draw(st.sampled_from(scopes)),
        mtu=draw(st.integers(0, 65_520)),
        protocol=draw(st.sampled_from([Protocol.BOOT, Protocol.STATIC, Protocol.DHCP, 186])),
        flags=draw(st.integers(0, 31)),
    )


@st.composite
def kernels_routes(draw: st.DrawFn, family: Family) -> Route:
    kind = draw(st.sampled_from(KERNELS))
    return Route(
        family=family,
        table=255,
        destination=draw(prefix(family)),
        type=kind,
        hops=(Hop(index=2),),
        protocol=Protocol.KERNEL,
    )


def wish_of(route: Route) -> RouteWish:
    return RouteWish(
        destination=route.destination,
        type=route.type,
        hops=tuple(
            HopWish(
                gateway=each.gateway,
                device=NAMES[each.index],
                weight=each.weight,
                onlink=each.onlink,
            )
            for each in route.hops
        ),
        source=route.source,
        metric=route.metric,
        scope=route.scope if route.family is Family.V4 else None,
        mtu=route.mtu,
    )


def mixed(strategy: Any) -> st.SearchStrategy[list[Route]]:
    return st.lists(strategy(Family.V4) | strategy(Family.V6), max_size=6)


@given(mixed(routes), mixed(kernels_routes))
def test_what_is_listed_can_be_asked_for(there: list[Route], kernels: list[Route]) -> None:
    unique = {(r.family, r.table, r.destination, r.metric): r for r in there}
    there = list(unique.values())
    told = routes_state(RoutesState(routes=(*kernels, *there), rules=(), names=NAMES))
    again = pb.ApplyRoutesRequest.FromString(told.SerializeToString())
    wish = routes_wish(pb.ApplyRoutesRequest(sets=again.sets))
    assert {(each.family, each.table) for each in wish.sets} == {
        (route.family, route.table) for route in there
    }
    for each in wish.sets:
        here = [r for r in there if (r.family, r.table) == (each.family, each.table)]
        assert each.routes == tuple(map(wish_of, here))


@st.composite
def rules(draw: st.DrawFn, family: Family) -> Rule:
    action = draw(st.sampled_from(RuleAction))
    mark = draw(st.none() | st.integers(0, 2**32 - 1))
    masks = st.integers(1, 2**32 - 1)
    some = prefix(family).filter(lambda network: network.prefixlen > 0)
    return Rule(
        family=family,
        priority=draw(st.integers(1, 32_765)),
        action=action,
        table=draw(masks) if action is RuleAction.TABLE else 0,
        source=draw(st.none() | some),
        destination=draw(st.none() | some),
        incoming=draw(st.sampled_from(["", "eth0"])),
        outgoing=draw(st.sampled_from(["", "br0.100"])),
        mark=mark,
        mark_mask=0xFFFFFFFF if mark is None else draw(masks),
        invert=draw(st.booleans()),
        ip_protocol=draw(st.integers(0, 255)),
        suppress_prefix_length=draw(st.none() | st.integers(0, family.bits)),
    )


KERNELS_RULES = tuple(
    Rule(family=family, priority=priority, table=table, protocol=Protocol.KERNEL, others=not table)
    for family, numbers in (
        # 1000 comes with the first VRF: it looks into the table of the packet's interface.
        (Family.V4, ((0, 255), (1000, 0), (32_766, 254), (32_767, 253))),
        (Family.V6, ((0, 255), (1000, 0), (32_766, 254))),
    )
    for priority, table in numbers
)


@given(st.lists(rules(Family.V4) | rules(Family.V6), max_size=6))
def test_rules_too_and_the_kernels_are_left_out(there: list[Rule]) -> None:
    there = list({(rule.family, rule.priority): rule for rule in there}.values())
    told = routes_state(RoutesState(routes=(), rules=(*there, *KERNELS_RULES), names={}))
    assert [[rule.priority for rule in each.rules][-1] for each in told.rules] == [32_767, 32_766]
    wish = routes_wish(pb.ApplyRoutesRequest(rules=told.rules))
    assert [each.family for each in wish.rules] == [Family.V4, Family.V6]
    for each in wish.rules:
        here = [rule for rule in there if rule.family is each.family]
        assert each.rules == tuple(sorted(here, key=lambda rule: rule.priority))


@pytest.mark.parametrize(
    "rule",
    [
        pb.Rule(priority=0, table=254),
        pb.Rule(priority=0),
        pb.Rule(priority=32_766, table=7),
        pb.Rule(priority=32_766, table=254, source="10.0.0.0/8"),
        pb.Rule(priority=32_767, action=pb.RULE_ACTION_BLACKHOLE),
        # It was listed without its ports, say: as it is it would apply to more.
        pb.Rule(priority=9, table=7, incomplete=True),
    ],
)
def test_what_only_looks_like_the_kernels_is_refused(rule: pb.Rule) -> None:
    request = pb.ApplyRoutesRequest(rules=[pb.RuleSet(family=pb.ADDRESS_FAMILY_V4, rules=[rule])])
    with pytest.raises(AgentError, match=r"rules\[0\]"):
        routes_wish(request)


def test_as_many_routes_as_are_possible() -> None:
    each = [pb.Route(destination=f"10.{n >> 8}.{n & 255}.0/24", device="eth0") for n in range(50)]
    request = pb.ApplyRoutesRequest()
    for table in range(1, ROUTES // 50 + 1):
        number = table if table < 253 else table + 3
        request.sets.add(family=pb.ADDRESS_FAMILY_V4, table=number, routes=each)
    assert sum(len(one.routes) for one in routes_wish(request).sets) == ROUTES == 100_000
    request.sets[0].routes.add(device="eth0", metric=1)
    with pytest.raises(AgentError, match="more than 100000"):
        routes_wish(request)


def test_families_are_never_mixed() -> None:
    """`ip_network` alone would take either."""
    for family, text in (
        (pb.ADDRESS_FAMILY_V4, str(IPv6Network("2001:db8::/32"))),
        (pb.ADDRESS_FAMILY_V6, str(IPv4Network("192.0.2.0/24"))),
    ):
        route = pb.Route(destination=text, device="eth0")
        with pytest.raises(AgentError, match="destination"):
            routes_wish(pb.ApplyRoutesRequest(sets=[pb.RouteSet(family=family, routes=[route])]))
