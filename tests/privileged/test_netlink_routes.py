"""Routes in the kernel's messages and back, with ip(8) as the witness."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Any

import pytest

from agent.core.netlink import NetlinkRefusal
from agent.core.network import (
    LOCAL_TABLE,
    MAIN_TABLE,
    Family,
    Hop,
    Link,
    LinkKind,
    LinkMaking,
    Protocol,
    Route,
    RouteType,
    Scope,
)
from agent.core.rtnl import links, routes
from tests.privileged.netlab import (
    GATE4,
    GATE4B,
    GATE6,
    GATE6B,
    Lab,
    lab,
    r4,
    r6,
)

pytestmark = [pytest.mark.privileged, pytest.mark.network]

V4, V6 = Family.V4, Family.V6
VETH = LinkMaking(kind=LinkKind.VETH, peer_name="v1")


@pytest.fixture
async def net() -> AsyncIterator[Lab]:
    async with lab() as made:
        yield made


@pytest.fixture
async def v0(net: Lab) -> Link:
    return await net.veth("192.0.2.1/24", "2001:db8::1/64")


def every_route(index: int) -> list[Route]:
    """One of each sort that the words have."""
    far4, far6 = IPv4Address("203.0.113.1"), IPv6Address("fe80::1")
    via4, via4b = Hop(gateway=GATE4, index=index), Hop(gateway=GATE4B, index=index)
    via6, via6b = Hop(gateway=GATE6, index=index), Hop(gateway=GATE6B, index=index, weight=2)
    link = Hop(index=index)
    heavy = Hop(gateway=GATE4, index=index, weight=256)
    onlink4 = Hop(gateway=far4, index=index, onlink=True)
    onlink6 = Hop(gateway=far6, index=index, onlink=True)
    return [
        r4("0.0.0.0/0", via4),
        r4("0.0.0.0/0", via4b, metric=100),
        r4(
            "10.0.0.1/32",
            via4,
            metric=5,
            mtu=1400,
            source=IPv4Address("192.0.2.1"),
            tos=8,
        ),
        r4("10.1.0.0/16", heavy, via4b),
        r4("10.2.0.0/16", via6),
        r4("10.3.0.0/16", onlink4),
        r4("10.4.0.0/16", via6, onlink4),
        r4("10.5.0.0/16", link, scope=Scope.LINK, protocol=Protocol.STATIC, table=1000),
        r4("10.6.0.0/16", link, scope=Scope.LINK, protocol=Protocol.DHCP),
        r4("10.7.0.0/16", link, scope=Scope.LINK, protocol=77),
        r4("10.8.0.0/16", type=RouteType.BLACKHOLE),
        r4("10.9.0.0/16", type=RouteType.UNREACHABLE),
        r4("10.10.0.0/16", type=RouteType.PROHIBIT),
        r4("10.11.0.0/16", type=RouteType.THROW, table=0xFFFFFFFE),
        r4("10.12.0.0/16", Hop(index=1), type=RouteType.LOCAL, scope=Scope.HOST, table=LOCAL_TABLE),
        r4("10.13.0.0/16", link, type=RouteType.BROADCAST, scope=Scope.LINK, table=LOCAL_TABLE),
        r6("::/0", via6, metric=77),
        r6("fc00::2/128", via6),
        r6("fc01::/16", via6, via6b),
        r6("fc02::/16", onlink6, mtu=1300, source=IPv6Address("2001:db8::1")),
        r6("fc03::/16", link, table=5000, protocol=Protocol.STATIC),
        r6("fc04::/16", type=RouteType.BLACKHOLE),
        r6("fc05::/16", type=RouteType.UNREACHABLE),
        r6("fc06::/16", type=RouteType.PROHIBIT),
        r6("fc07::/16", type=RouteType.THROW),
        r6("fc08::/16", Hop(index=1), type=RouteType.LOCAL, table=LOCAL_TABLE),
        r6("fc09::/16", link, type=RouteType.ANYCAST),
        r6("ff0e::/16", link, type=RouteType.MULTICAST),
    ]


PROTOCOLS = {1: "redirect", 2: "kernel", 3: "boot", 4: "static", 9: "ra", 16: "dhcp"}
TABLES = {253: "default", 254: "main", 255: "local"}


def way_as_ip_has_it(hop: Hop, family: Family, names: dict[int, str]) -> dict[str, object]:
    shown: dict[str, object] = {"dev": names[hop.index], "onlink": hop.onlink}
    if hop.gateway is not None:
        if Family.of(hop.gateway) is family:
            shown["gateway"] = str(hop.gateway)
        else:
            shown["via"] = {"family": "inet6", "host": str(hop.gateway)}
    return shown


def route_as_ip_has_it(route: Route, names: dict[int, str]) -> dict[str, object]:
    bare = route.destination.prefixlen == route.family.bits
    name = str(route.destination.network_address if bare else route.destination)
    ways = [way_as_ip_has_it(hop, route.family, names) for hop in route.hops]
    many = len(ways) > 1
    return {
        "type": route.type.name.lower(),
        "dst": "default" if route.destination.prefixlen == 0 else name,
        "from": str(route.from_) if route.from_ else None,
        "ways": ways,
        "weights": [hop.weight for hop in route.hops] if many else [],
        "table": TABLES.get(route.table, str(route.table)),
        "protocol": PROTOCOLS.get(route.protocol, str(route.protocol)),
        "scope": Scope(route.scope).word,
        "prefsrc": str(route.source) if route.source else None,
        "metric": route.metric,
        "tos": route.tos,
        "mtu": route.mtu,
    }


def way_of_ip(told: dict[str, Any]) -> dict[str, object]:
    keys = [key for key in ("dev", "gateway", "via") if key in told]
    return {key: told[key] for key in keys} | {"onlink": "onlink" in told["flags"]}


def route_of_ip(told: dict[str, Any]) -> dict[str, object]:
    hops = told.get("nexthops", [told] if "dev" in told else [])
    if told["type"] in ("blackhole", "unreachable", "prohibit", "throw"):
        hops = []  # IPv6 shows them on lo
    return {
        **{key: told.get(key) for key in ("type", "dst", "from", "table", "protocol", "scope")},
        "ways": [way_of_ip(hop) for hop in hops],
        "weights": [hop["weight"] for hop in told.get("nexthops", [])],
        "prefsrc": told.get("prefsrc"),
        "metric": told.get("metric", 0),
        "tos": int(told.get("tos", "0"), 16),
        "mtu": next((metric["mtu"] for metric in told.get("metrics", []) if "mtu" in metric), 0),
    }


async def routes_agree(net: Lab, family: Family) -> tuple[Route, ...]:
    """The routes, once they are as ip has them."""
    names = {link.index: link.name for link in await links.all_links(net.netlink, net.deadline)}
    option = "-4" if family is V4 else "-6"
    found, told = await net.steady(
        lambda: routes.all_routes(net.netlink, net.deadline, family=family),
        lambda: net.ip(option, "-j", "-d", "route", "show", "table", "all"),
    )
    assert sorted((route_as_ip_has_it(route, names) for route in found), key=repr) == sorted(
        map(route_of_ip, told), key=repr
    )
    return found


@pytest.mark.parametrize("family", Family)
async def test_routes_of_every_sort_are_made_shown_and_removed(
    net: Lab, v0: Link, family: Family
) -> None:
    wanted = [route for route in every_route(v0.index) if route.family is family]
    await net.do(*(routes.added(route, f"add {route.destination}") for route in wanted))
    found = await routes_agree(net, family)
    assert {each for each in found if each.protocol != Protocol.KERNEL} == set(wanted)
    await net.do(*(routes.removed(route, f"remove {route.destination}") for route in wanted))
    after = await routes.all_routes(net.netlink, net.deadline, family=family)
    assert set(after) & set(wanted) == set()


async def test_a_source_specific_route(net: Lab, v0: Link) -> None:
    wanted = r6("fc03::/16", Hop(index=v0.index), from_=ip_network("2001:db8:9::/48"))
    try:
        await net.do(routes.added(wanted, "add fc03::/16"))
    except NetlinkRefusal:
        pytest.skip("this kernel has no IPv6 subtrees")
    assert wanted in await routes_agree(net, V6)
    await net.do(routes.removed(wanted, "remove fc03::/16"))


async def test_a_listing_of_one_table_or_one_interface(net: Lab, v0: Link) -> None:
    wanted = every_route(v0.index)
    await net.do(*(routes.added(route, f"add {route.destination}") for route in wanted))

    async def listed(family: Family, **only: int) -> set[Route]:
        found = await routes.all_routes(net.netlink, net.deadline, family=family, **only)
        # The kernel's own may come any moment.
        return {route for route in found if route.protocol != Protocol.KERNEL}

    for family in Family:
        every = await listed(family)
        for table in {route.table for route in every} | {4242}:
            assert await listed(family, table=table) == {
                route for route in every if route.table == table
            }
        for index in (1, v0.index, 4242):
            assert await listed(family, index=index) == {
                route for route in every if any(hop.index == index for hop in route.hops)
            }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fc00::2", "fc00::2"),
        ("192.0.2.9", "192.0.2.9"),
        ("::/0", "default"),
        ("0.0.0.0/0", "default"),
    ],
)
async def test_an_address_without_a_prefix_is_a_host(
    net: Lab, v0: Link, text: str, shown: str
) -> None:
    destination = ip_network(text)
    family = Family.of(destination)
    gateway = GATE4 if family is V4 else GATE6
    route = Route(
        family=family,
        table=77,
        destination=destination,
        hops=(Hop(gateway=gateway, index=v0.index),),
    )
    await net.do(routes.added(route, f"add {text}"))
    option = "-4" if family is V4 else "-6"
    (told,) = net.ip(option, "-j", "route", "show", "table", "77")
    assert told["dst"] == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2001:0DB8:0000::00fE", "2001:db8::fe"),
        ("2001:DB8::FE", "2001:db8::fe"),
        ("2001:db8::192.0.2.1", "2001:db8::c000:201"),
    ],
)
async def test_an_ipv6_gateway_in_any_spelling(net: Lab, v0: Link, text: str, shown: str) -> None:
    """The default route of IPv6, next to the one of IPv4."""
    gateway = ipaddress.ip_address(text)
    six = r6("::/0", Hop(gateway=gateway, index=v0.index))
    four = r4("0.0.0.0/0", Hop(gateway=GATE4, index=v0.index))
    await net.do(routes.added(four, "add the IPv4 default"), routes.added(six, "add ::/0"))
    (told,) = net.ip("-6", "-j", "route", "show", "default")
    assert told["gateway"] == shown
    assert six in await routes.all_routes(net.netlink, net.deadline, family=V6)
    assert four in await routes.all_routes(net.netlink, net.deadline, family=V4)


async def test_of_routes_that_differ_little_exactly_one_is_removed(net: Lab, v0: Link) -> None:
    via, via_b = Hop(gateway=GATE4, index=v0.index), Hop(gateway=GATE4B, index=v0.index)
    near = [
        r4("10.0.0.0/8", via),
        r4("10.0.0.0/8", via, metric=10),
        r4("10.0.0.0/8", via_b, metric=20),
        r4("10.0.0.0/9", via),
        r4("10.0.0.0/8", via, tos=8),
        r4("10.0.0.0/8", via, table=99),
    ]
    for gone in near:
        await net.do(*(routes.added(route, "add") for route in near))
        await net.do(routes.removed(gone, "remove one"))
        left = await routes.all_routes(net.netlink, net.deadline, family=V4)
        assert set(near) - set(left) == {gone}
        await net.do(*(routes.removed(route, "remove") for route in near if route != gone))


async def test_routes_are_appended_and_replaced(net: Lab, v0: Link) -> None:
    via, via_b = Hop(gateway=GATE4, index=v0.index), Hop(gateway=GATE4B, index=v0.index)
    first, second = r4("10.0.0.0/8", via), r4("10.0.0.0/8", via_b)

    async def there() -> list[Route]:
        found = await routes.all_routes(net.netlink, net.deadline, family=V4, table=MAIN_TABLE)
        return [route for route in found if route.destination == first.destination]

    await net.do(routes.added(first, "add"), routes.appended(second, "append"))
    assert await there() == [first, second]
    with pytest.raises(NetlinkRefusal, match="add again: File exists"):
        await net.do(routes.added(first, "add again"))
    await net.do(routes.removed(second, "remove"), routes.replaced(second, "replace"))
    assert await there() == [second]


async def test_a_refusal_has_the_kernels_own_words(net: Lab, v0: Link) -> None:
    off_link = r4("10.0.0.0/8", Hop(gateway=IPv4Address("203.0.113.7"), index=v0.index))
    with pytest.raises(NetlinkRefusal) as caught:
        await net.do(routes.added(off_link, "add 10.0.0.0/8"))
    assert caught.value.text == "Nexthop has invalid gateway"
    assert str(caught.value) == (
        "add 10.0.0.0/8: Network is unreachable: Nexthop has invalid gateway"
    )
