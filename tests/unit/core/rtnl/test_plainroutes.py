"""Plain routes in the kernel's messages: the same as pyroute2 makes and reads, to the byte."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.network import Family, Hop, Route, RouteType, Scope
from agent.core.rtnl import plainroutes, routes
from tests.fakes import netlink_messages as raw
from tests.fakes.netlink_wire import attribute, frame

pytestmark = [pytest.mark.unit, pytest.mark.network]

# include/uapi/linux/rtnetlink.h
RTM_NEWROUTE = 24
RTA_DST, RTA_SRC, RTA_OIF, RTA_GATEWAY, RTA_METRICS = 1, 2, 4, 5, 8
RTA_MULTIPATH, RTA_CACHEINFO, RTA_TABLE, RTA_VIA, RTA_PREF = 9, 12, 15, 18, 20

PLAIN = Route(
    family=Family.V4,
    table=254,
    destination=ip_network("10.0.0.0/8"),
    hops=(Hop(gateway=IPv4Address("192.0.2.1"), index=3),),
)


@st.composite
def plain_route(draw: st.DrawFn) -> Route:
    family = draw(st.sampled_from(Family))
    address = st.ip_addresses(v=4 if family is Family.V4 else 6)
    hop = st.builds(
        Hop,
        gateway=st.none() | address,
        index=st.integers(1, 2**31 - 1),
        onlink=st.booleans(),
    )
    way = draw(st.none() | hop)
    length = draw(st.integers(0, family.bits))
    return Route(
        family=family,
        table=draw(st.integers(1, 2**32 - 1)),
        destination=ip_network((draw(address), length), strict=False),
        type=RouteType.UNICAST if way else RouteType.PROHIBIT,
        hops=(way,) if way else (),
        source=draw(st.none() | address),
        metric=draw(st.integers(0, 2**32 - 1)),
        scope=draw(st.sampled_from(Scope)),
        protocol=draw(st.integers(0, 255)),
        tos=draw(st.integers(0, 255)),
    )


@pytest.fixture(scope="module")
def by_pyroute2() -> Callable[[Route], bytes]:
    """The message that pyroute2 makes of a route."""

    def made(route: Route) -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plainroutes, "written", lambda _: None)
            return routes.added(route, "x").payload

    return made


@given(route=plain_route())
def test_written_as_pyroute2_does(by_pyroute2: Callable[[Route], bytes], route: Route) -> None:
    assert plainroutes.written(route) == by_pyroute2(route)


@given(route=plain_route())
def test_read_as_it_was_written(by_pyroute2: Callable[[Route], bytes], route: Route) -> None:
    assert plainroutes.read(frame(RTM_NEWROUTE, by_pyroute2(route), sequence=1)) == route


@pytest.mark.parametrize(
    "more",
    [
        {"mtu": 1400},
        {"hops": PLAIN.hops * 2},
        {"hops": (Hop(gateway=IPv6Address("fe80::1"), index=3),)},
        {"family": Family.V6, "destination": ip_network("::/0"), "from_": ip_network("2001::/16")},
    ],
    ids=["metrics", "two ways", "a gateway of another family", "by source"],
)
def test_what_is_not_plain_is_not_written(more: dict[str, Any]) -> None:
    assert plainroutes.written(replace(PLAIN, **more)) is None


@pytest.mark.parametrize("kind", [RTA_SRC, RTA_METRICS, RTA_MULTIPATH, RTA_VIA])
def test_what_is_not_plain_is_not_read(kind: int) -> None:
    assert plainroutes.read(raw.route(2, 0, attribute(kind, bytes(8)))) is None


def test_a_route_as_linux_tells_it() -> None:
    """With the news of IPv6's rt6_fill_node: what is no part of a route is passed over."""
    message = raw.route(
        10,
        32,
        raw.number(RTA_TABLE, 100_000),
        attribute(RTA_DST, IPv6Address("2001:db8::").packed),
        raw.number(RTA_OIF, 3),
        attribute(RTA_CACHEINFO, bytes(32)),
        attribute(RTA_PREF, b"\0"),
        table=252,
        flags=0x10,
    )
    route = plainroutes.read(message)
    assert route is not None
    assert (route.table, str(route.destination)) == (100_000, "2001:db8::/32")
    assert (route.hops, route.flags) == ((Hop(index=3),), 0x10)


@pytest.mark.parametrize(
    "message",
    [
        raw.route(28, 20),
        raw.route(2, 0, kind=11),
        frame(RTM_NEWROUTE, b"\2\0\0", sequence=1),
    ],
    ids=["MPLS", "external resolver", "too short"],
)
def test_what_is_no_ip_route_is_not_read(message: bytes) -> None:
    assert plainroutes.read(message) is None


def test_an_attribute_without_a_length_ends_the_rest() -> None:
    """Rather than never."""
    broken = struct.pack("=HH", 0, RTA_OIF)
    gateway = attribute(RTA_GATEWAY, IPv4Address("192.0.2.1").packed)
    route = plainroutes.read(raw.route(2, 0, gateway, broken, raw.number(RTA_OIF, 3)))
    assert route is not None
    assert route.hops == (Hop(gateway=IPv4Address("192.0.2.1")),)
