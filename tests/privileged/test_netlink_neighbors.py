"""Neighbours and forwarding entries, with ip(8) and bridge(8) as the witnesses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from ipaddress import IPv4Address, IPv6Address

import pytest

from agent.core.network import (
    Forwarding,
    Link,
    LinkKind,
    LinkMaking,
    Neighbor,
    NeighborFlag,
    NeighborState,
)
from agent.core.rtnl import links, neighbors
from tests.privileged.netlab import (
    GATE4,
    GATE4B,
    GATE6,
    Lab,
    lab,
)

pytestmark = [pytest.mark.privileged, pytest.mark.network]

VETH = LinkMaking(kind=LinkKind.VETH, peer_name="v1")


@pytest.fixture
async def net() -> AsyncIterator[Lab]:
    async with lab() as made:
        yield made


@pytest.fixture
async def v0(net: Lab) -> Link:
    return await net.veth("192.0.2.1/24", "2001:db8::1/64")


STATES = {
    NeighborState.PERMANENT: ["PERMANENT"],
    NeighborState.REACHABLE: ["REACHABLE"],
    NeighborState.STALE: ["STALE"],
    NeighborState.NOARP: ["NOARP"],
}


async def test_neighbours_and_proxies_are_made_shown_and_removed(net: Lab, v0: Link) -> None:
    wanted = [
        Neighbor(index=v0.index, address=GATE4, mac="02:00:00:00:00:01"),
        Neighbor(index=v0.index, address=GATE6, mac="02:00:00:00:00:02"),
        Neighbor(
            index=v0.index,
            address=GATE4B,
            mac="02:00:00:00:00:03",
            state=NeighborState.STALE,
        ),
    ]
    proxies = [
        Neighbor(
            index=v0.index,
            address=address,
            state=NeighborState.NONE,
            flags=NeighborFlag.PROXY,
        )
        for address in (IPv4Address("192.0.2.77"), IPv6Address("2001:db8::77"))
    ]
    await net.do(*(neighbors.replaced(each, f"add {each.address}") for each in (*wanted, *proxies)))
    found = await neighbors.all_neighbors(net.netlink, net.deadline)
    assert set(found) >= {*wanted, *proxies}
    told = {each["dst"]: each for each in net.ip("-j", "neigh", "show", "nud", "all")}
    for each in wanted:
        shown = told[str(each.address)]
        assert (shown["dev"], shown["lladdr"]) == ("v0", each.mac)
        assert shown["state"] == STATES[each.state]
    assert {each["dst"] for each in net.ip("-j", "neigh", "show", "proxy")} == {
        str(each.address) for each in proxies
    }
    for each in (*wanted, *proxies):
        await net.do(neighbors.removed(each, f"remove {each.address}"))
    left = await neighbors.all_neighbors(net.netlink, net.deadline)
    assert not {each.address for each in left if each.mac or each.flags} & {
        each.address for each in (*wanted, *proxies)
    }


async def test_a_neighbour_gets_another_mac(net: Lab, v0: Link) -> None:
    for mac in ("02:00:00:00:00:01", "02:00:00:00:00:02"):
        each = Neighbor(index=v0.index, address=GATE4, mac=mac)
        await net.do(neighbors.replaced(each, f"set {mac}"))
    (told,) = net.ip("-j", "neigh", "show", str(GATE4))
    assert told["lladdr"] == "02:00:00:00:00:02"


async def test_forwarding_entries_of_a_bridge(net: Lab) -> None:
    bridge = await net.make("br0", LinkMaking(kind=LinkKind.BRIDGE))
    link = await net.make("v0", VETH)
    await net.do(links.changed(link.index, "put in", master=bridge.index, up=True))
    await net.up("br0", "v1")
    static = Forwarding(
        index=link.index,
        mac="02:00:00:00:00:11",
        state=NeighborState.NOARP,
        flags=NeighborFlag.MASTER,
    )
    own = Forwarding(index=link.index, mac="02:00:00:00:00:12", flags=NeighborFlag.SELF)
    entries = (static, own)
    await net.do(*(neighbors.forwarding_replaced(each, f"add {each.mac}") for each in entries))
    found, told = await net.steady(
        lambda: neighbors.all_forwarding(net.netlink, net.deadline),
        lambda: net.bridge("-j", "fdb", "show"),
    )
    assert set(found) >= set(entries)
    shown = {(each["ifname"], each["mac"], each.get("master", "")) for each in told}
    names = {each.index: each.name for each in await links.all_links(net.netlink, net.deadline)}
    assert {
        (names[each.index], each.mac, "br0" if NeighborFlag.MASTER in each.flags else "")
        for each in found
    } == shown
    await net.do(*(neighbors.forwarding_removed(each, f"remove {each.mac}") for each in entries))
    assert not set(await neighbors.all_forwarding(net.netlink, net.deadline)) & set(entries)


async def test_forwarding_entries_of_a_vxlan(net: Lab) -> None:
    net.ip("link", "add", "vx0", "type", "vxlan", "id", "7", "dstport", "4789")
    link = await net.link("vx0")
    entry = Forwarding(
        index=link.index, mac="02:00:00:00:00:21", destination=IPv4Address("203.0.113.7")
    )
    await net.do(neighbors.forwarding_replaced(entry, "add"))
    found = await neighbors.all_forwarding(net.netlink, net.deadline)
    assert (entry.mac, entry.destination) in {(each.mac, each.destination) for each in found}
    told = net.bridge("-j", "fdb", "show", "dev", "vx0")
    assert [each["dst"] for each in told if each["mac"] == entry.mac] == ["203.0.113.7"]
    await net.do(neighbors.forwarding_removed(entry, "remove"))
