"""Routes in the kernel's messages and back, against layouts by hand."""

from __future__ import annotations

import errno
import socket
import struct
from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.deadlines import Deadline
from agent.core.netlink import NetlinkRefusal, Question
from agent.core.network import Family, Hop, Route, RouteType, Scope
from agent.core.rtnl import routes
from tests.fakes import netlink_messages as raw
from tests.fakes.netlink_wire import attribute, frame

pytestmark = [pytest.mark.unit, pytest.mark.network]

HEADER = "=BBBBBBBBI"
INET, INET6 = 2, 10
# include/uapi/linux/rtnetlink.h
RTA_DST, RTA_SRC, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC = 1, 2, 4, 5, 6, 7
RTA_METRICS, RTA_MULTIPATH, RTA_TABLE, RTA_VIA, RTAX_MTU = 8, 9, 15, 18, 2
ONLINK = 4


def ip4(text: str) -> bytes:
    return IPv4Address(text).packed


def ip6(text: str) -> bytes:
    return IPv6Address(text).packed


def of(route: Route) -> tuple[tuple[int, ...], dict[int, bytes]]:
    fields, attributes = raw.parts(routes.added(route, "x").payload, HEADER)
    return fields, dict(attributes)


def hop(index: int, hops: int, flags: int, *attributes: bytes) -> bytes:
    """struct rtnexthop and attributes."""
    inside = b"".join(attributes)
    return struct.pack("=HBBi", 8 + len(inside), flags, hops, index) + inside


@pytest.mark.parametrize(
    ("text", "length", "named"),
    [
        ("fc00::2", 128, True),
        ("192.0.2.9", 32, True),
        ("::/0", 0, False),
        ("0.0.0.0/0", 0, False),
        ("2001:0DB8:0::/48", 48, True),
    ],
)
def test_only_a_prefix_of_length_0_is_the_default(text: str, length: int, named: bool) -> None:
    destination = ip_network(text)
    route = Route(family=Family.of(destination), table=254, destination=destination)
    fields, attributes = of(route)
    assert fields[1] == length
    assert attributes.get(RTA_DST) == (destination.network_address.packed if named else None)


def test_a_gateway_of_the_same_family() -> None:
    route = Route(
        family=Family.V4,
        table=254,
        destination=ip_network("10.0.0.0/8"),
        hops=(Hop(gateway=IPv4Address("192.0.2.1"), index=3),),
        metric=7,
        source=IPv4Address("192.0.2.2"),
        mtu=1400,
        tos=8,
    )
    fields, attributes = of(route)
    # family, lengths, tos, table main, protocol boot, scope, type unicast, flags
    assert fields == (INET, 8, 0, 8, 254, 3, 0, 1, 0)
    metrics = attributes.pop(RTA_METRICS)
    assert raw.inside(metrics) == [(RTAX_MTU, struct.pack("=I", 1400))]
    assert attributes == {
        RTA_DST: ip4("10.0.0.0"),
        RTA_TABLE: struct.pack("=I", 254),
        RTA_PRIORITY: struct.pack("=I", 7),
        RTA_PREFSRC: ip4("192.0.2.2"),
        RTA_GATEWAY: ip4("192.0.2.1"),
        RTA_OIF: struct.pack("=I", 3),
    }


@pytest.mark.parametrize("text", ["2000::0002", "2001:DB8::1", "::ffff:192.0.2.1"])
def test_an_ipv6_gateway_in_any_spelling(text: str) -> None:
    hops = (Hop(gateway=IPv6Address(text), index=3),)
    route = Route(family=Family.V6, table=254, destination=ip_network("::/0"), hops=hops)
    assert of(route)[1][RTA_GATEWAY] == socket.inet_pton(socket.AF_INET6, text)


def test_an_ipv4_route_by_an_ipv6_gateway() -> None:
    hops = (Hop(gateway=IPv6Address("fe80::1"), index=3),)
    route = Route(family=Family.V4, table=254, destination=ip_network("10.0.0.0/8"), hops=hops)
    _, attributes = of(route)
    assert RTA_GATEWAY not in attributes
    # struct rtvia: the family, then the address.
    assert attributes[RTA_VIA] == struct.pack("=H", INET6) + ip6("fe80::1")


def test_several_hops() -> None:
    hops = (
        Hop(gateway=IPv6Address("2001:db8::1"), index=3),
        Hop(gateway=IPv6Address("fe80::1"), index=4, weight=5, onlink=True),
    )
    route = Route(family=Family.V6, table=254, destination=ip_network("::/0"), hops=hops)
    fields, attributes = of(route)
    assert attributes[RTA_MULTIPATH] == (
        hop(3, 0, 0, attribute(RTA_GATEWAY, ip6("2001:db8::1")))
        + hop(4, 4, ONLINK, attribute(RTA_GATEWAY, ip6("fe80::1")))
    )
    assert not {RTA_GATEWAY, RTA_OIF} & set(attributes)
    assert fields[-1] == 0


def test_one_hop_on_the_link() -> None:
    hops = (Hop(gateway=IPv4Address("203.0.113.1"), index=3, onlink=True),)
    route = Route(family=Family.V4, table=254, destination=ip_network("0.0.0.0/0"), hops=hops)
    assert of(route)[0][-1] == ONLINK


def test_a_large_table_and_a_blackhole() -> None:
    route = Route(
        family=Family.V6,
        table=100_000,
        destination=ip_network("fc00::/7"),
        type=RouteType.BLACKHOLE,
        from_=ip_network("2001:db8::/32"),
    )
    fields, attributes = of(route)
    # RT_TABLE_COMPAT where the byte is too small; RTA_TABLE counts.
    assert fields == (INET6, 7, 32, 0, 252, 3, 0, 6, 0)
    assert attributes[RTA_TABLE] == struct.pack("=I", 100_000)
    assert attributes[RTA_SRC] == ip6("2001:db8::")


def test_the_ways_to_add_and_the_way_to_remove() -> None:
    route = Route(family=Family.V4, table=254, destination=ip_network("10.0.0.0/8"))
    # NLM_F_CREATE 0x400 with EXCL 0x200, APPEND 0x800, REPLACE 0x100.
    assert (routes.added(route, "x").type, routes.added(route, "x").flags) == (24, 0x600)
    assert routes.appended(route, "x").flags == 0xC00
    assert routes.replaced(route, "x").flags == 0x500
    assert (routes.removed(route, "x").type, routes.removed(route, "x").flags) == (25, 0)


def test_a_hop_by_a_gateway_of_another_family_is_read() -> None:
    via = attribute(RTA_VIA, struct.pack("=H", INET6) + ip6("fe80::1"))
    route = routes.decode(raw.route(INET, 0, via, raw.number(RTA_OIF, 3)))
    assert route is not None
    assert route.hops == (Hop(gateway=IPv6Address("fe80::1"), index=3),)
    assert (route.destination, route.protocol) == (ip_network("0.0.0.0/0"), 4)


def test_flags_of_a_route_are_news_and_onlink_is_its_hops() -> None:
    linkdown = 0x10
    gateway = attribute(RTA_GATEWAY, ip4("192.0.2.1"))
    route = routes.decode(
        raw.route(INET, 0, gateway, raw.number(RTA_OIF, 3), flags=ONLINK | linkdown)
    )
    assert route is not None
    assert (route.hops[0].onlink, route.flags) == (True, linkdown)


def test_ipv6_shows_a_blackhole_on_the_loopback_interface() -> None:
    route = routes.decode(raw.route(INET6, 0, raw.number(RTA_OIF, 1), kind=6))
    assert route is not None
    assert (route.type, route.hops) == (RouteType.BLACKHOLE, ())


@pytest.mark.parametrize(
    "message",
    [raw.route(28, 20, table=254), raw.route(INET, 0, kind=11), raw.route(INET, 0, kind=0)],
    ids=["MPLS", "external resolver", "unspecified"],
)
def test_what_is_no_ip_route_is_left_out(message: bytes) -> None:
    assert routes.decode(message) is None


async def test_the_kernel_is_asked_for_one_table_and_one_interface() -> None:
    mine = raw.route(INET, 8, attribute(RTA_DST, ip4("10.0.0.0")), raw.number(RTA_OIF, 3), table=77)
    others = [raw.route(INET, 0, raw.number(RTA_OIF, 3)), raw.route(INET, 0, table=77)]
    netlink = raw.AnsweringNetlink(lambda _: [mine, *others])
    found = await routes.all_routes(
        netlink, Deadline.after(60), family=Family.V4, table=77, index=3
    )
    assert [str(route.destination) for route in found] == ["10.0.0.0/8"]
    fields, attributes = raw.parts(netlink.questions[0].payload, HEADER)
    # Strict checking wants the rest to be empty.
    assert fields == (INET, 0, 0, 0, 0, 0, 0, 0, 0)
    assert dict(attributes) == {
        RTA_TABLE: struct.pack("=I", 77),
        RTA_OIF: struct.pack("=I", 3),
    }


async def test_a_table_that_does_not_exist_is_empty() -> None:
    def answer(question: Question) -> list[bytes]:
        raise NetlinkRefusal(errno.ENOENT, "ipv4: FIB table does not exist", question)

    netlink = raw.AnsweringNetlink(answer)
    at = Deadline.after(60)
    assert await routes.all_routes(netlink, at, family=Family.V4, table=77) == ()
    with pytest.raises(NetlinkRefusal):
        await routes.all_routes(netlink, at, family=Family.V4)


HOPS = {
    Family.V4: st.builds(
        Hop,
        gateway=st.none() | st.ip_addresses(v=4) | st.ip_addresses(v=6),
        index=st.integers(1, 2**31 - 1),
        onlink=st.booleans(),
    ),
    Family.V6: st.builds(
        Hop,
        gateway=st.none() | st.ip_addresses(v=6),
        index=st.integers(1, 2**31 - 1),
        onlink=st.booleans(),
    ),
}


@st.composite
def any_route(draw: st.DrawFn) -> Route:
    family = draw(st.sampled_from(Family))
    address = draw(st.ip_addresses(v=4 if family is Family.V4 else 6))
    length = draw(st.integers(0, family.bits))
    hops = draw(st.lists(HOPS[family], max_size=4))
    source = draw(st.none() | st.ip_addresses(v=4 if family is Family.V4 else 6))
    return Route(
        family=family,
        table=draw(st.integers(1, 2**32 - 1)),
        destination=ip_network((address, length), strict=False),
        type=RouteType.UNICAST if hops else RouteType.PROHIBIT,
        hops=tuple(hops),
        source=source,
        metric=draw(st.integers(0, 2**32 - 1)),
        scope=draw(st.sampled_from(Scope)),
        mtu=draw(st.integers(0, 65535)),
        protocol=draw(st.integers(0, 255)),
        tos=draw(st.integers(0, 255)),
    )


@given(any_route())
def test_what_is_written_is_what_is_read(route: Route) -> None:
    """The kernel tells a route in the attributes in which it was told."""
    assert routes.decode(frame(24, routes.added(route, "x").payload, sequence=1)) == route
