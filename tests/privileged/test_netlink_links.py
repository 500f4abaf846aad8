"""Links in the kernel's messages and back, with ip(8) as the witness."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent.core.netlink import NetlinkRefusal, open_netlink
from agent.core.network import (
    Link,
    LinkFlag,
    LinkKind,
    LinkMaking,
)
from agent.core.rtnl import links
from tests.privileged.netlab import (
    Lab,
    lab,
    namespace,
)

pytestmark = [pytest.mark.privileged, pytest.mark.network]

VETH = LinkMaking(kind=LinkKind.VETH, peer_name="v1")


@pytest.fixture
async def net() -> AsyncIterator[Lab]:
    async with lab() as made:
        yield made


OPERSTATES = ("UNKNOWN", "NOTPRESENT", "DOWN", "LOWERLAYERDOWN", "TESTING", "DORMANT", "UP")
FLAGS = (
    LinkFlag.UP,
    LinkFlag.BROADCAST,
    LinkFlag.LOOPBACK,
    LinkFlag.POINTOPOINT,
    LinkFlag.NOARP,
    LinkFlag.PROMISC,
    LinkFlag.ALLMULTI,
    LinkFlag.MULTICAST,
    LinkFlag.LOWER_UP,
)


def link_as_ip_has_it(link: Link, names: dict[int, str]) -> dict[str, object]:
    return {
        "ifindex": link.index,
        "ifname": link.name,
        "link": names.get(link.parent),
        "mtu": link.mtu,
        "operstate": OPERSTATES[link.operstate],
        "txqlen": link.transmit_queue_length or None,
        "address": link.mac or "00:00:00:00:00:00",
        "master": names.get(link.master),
        "kind": link.kind or None,
        "slave": link.slave_kind or None,
        "altnames": sorted(link.altnames),
        "flags": {flag.name for flag in FLAGS if flag in link.flags},
    }


def link_of_ip(told: dict[str, Any]) -> dict[str, object]:
    info = told.get("linkinfo", {})
    keys = ("ifindex", "ifname", "link", "mtu", "operstate", "txqlen", "address", "master")
    names = {flag.name for flag in FLAGS}
    return {key: told.get(key) for key in keys} | {
        "kind": info.get("info_kind"),
        "slave": info.get("info_slave_kind"),
        "altnames": sorted(told.get("altnames", [])),
        "flags": names & set(told["flags"]),
    }


async def agrees(net: Lab) -> tuple[Link, ...]:
    """The links, once they are as ip has them."""
    found, told = await net.steady(
        lambda: links.all_links(net.netlink, net.deadline),
        lambda: [link_of_ip(link) for link in net.ip("-j", "-d", "link", "show")],
    )
    names = {link.index: link.name for link in found}
    assert [link_as_ip_has_it(link, names) for link in found] == sorted(
        told, key=lambda link: int(str(link["ifindex"]))
    )
    return found


async def test_links_are_as_ip_shows_them(net: Lab) -> None:
    await net.make("v0", VETH)
    bridge = await net.make("br0", LinkMaking(kind=LinkKind.BRIDGE))
    port = await net.link("v1")
    await net.do(links.changed(port.index, "put v1 into br0", master=bridge.index))
    await net.up("v0", "v1", "br0")
    found = {link.name: link for link in await agrees(net)}
    assert set(found) >= {"lo", "v0", "v1", "br0"}
    assert (found["v1"].master, found["v1"].slave_kind) == (bridge.index, "bridge")
    assert (found["lo"].mac, found["lo"].link_type) == ("", 772)
    assert found["v0"].carrier
    assert found["v0"].permanent_mac == ""


@pytest.mark.parametrize(
    ("making", "data"),
    [
        (VETH, {}),
        (
            LinkMaking(kind=LinkKind.BRIDGE, stp=True, forward_delay_millis=4000),
            {"stp_state": 1, "forward_delay": 400, "vlan_filtering": 0},
        ),
        (LinkMaking(kind=LinkKind.BRIDGE), {"stp_state": 0, "forward_delay": 1500}),
        (LinkMaking(kind=LinkKind.BRIDGE, vlan_filtering=True), {"vlan_filtering": 1}),
        (
            LinkMaking(kind=LinkKind.VLAN, vlan_id=5, parent="v1"),
            {"protocol": "802.1Q", "id": 5},
        ),
        (
            LinkMaking(kind=LinkKind.VLAN, vlan_id=4094, service_tag=True, parent="v1"),
            {"protocol": "802.1ad", "id": 4094},
        ),
        (
            LinkMaking(kind=LinkKind.BOND, mode="active-backup", miimon=100),
            {"mode": "active-backup", "miimon": 100},
        ),
        (LinkMaking(kind=LinkKind.BOND, mode="802.3ad"), {"mode": "802.3ad"}),
        (LinkMaking(kind=LinkKind.VRF, table=1234), {"table": 1234}),
        (LinkMaking(kind=LinkKind.DUMMY), {}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value.kind,
)
async def test_every_kind_is_made_as_asked(
    net: Lab, making: LinkMaking, data: dict[str, object]
) -> None:
    parent = await net.make("v0", VETH) if making.parent else None
    made = await net.make("made", making, parent=parent.index if parent else 0)
    (told,) = net.ip("-j", "-d", "link", "show", "dev", "made")
    assert told["linkinfo"]["info_kind"] == made.kind == making.kind
    assert told["linkinfo"].get("info_data", {}).items() >= data.items()
    assert (made.vlan_id, made.service_tag) == (making.vlan_id, making.service_tag)
    assert made.vrf_table == making.table
    await agrees(net)
    await net.do(links.removed(made.index, "remove made"))
    assert await links.one_link(net.netlink, net.deadline, name="made") is None


async def test_a_name_in_use_is_refused(net: Lab) -> None:
    await net.make("v0", VETH)
    again = links.created("v0", LinkMaking(kind=LinkKind.VETH, peer_name="v2"), "make v0")
    with pytest.raises(NetlinkRefusal, match="make v0: File exists") as caught:
        await net.do(again)
    assert caught.value.errno == 17


async def test_everything_of_a_link_is_changed_at_once(net: Lab) -> None:
    link = await net.make("v0", VETH)
    await net.do(
        links.changed(
            link.index,
            "change v0",
            name="eth9",
            mtu=1400,
            mac="02:00:00:00:00:01",
            up=True,
            arp=False,
            multicast=False,
            all_multicast=True,
            promiscuous=True,
            transmit_queue_length=77,
        ),
    )
    (told,) = net.ip("-j", "link", "show", "dev", "eth9")
    assert (told["mtu"], told["txqlen"], told["address"]) == (1400, 77, "02:00:00:00:00:01")
    assert {"UP", "NOARP", "ALLMULTI", "PROMISC"} <= set(told["flags"])
    assert "MULTICAST" not in told["flags"]
    await agrees(net)


async def test_what_is_not_named_stays(net: Lab) -> None:
    link = await net.make("v0", VETH)
    on = links.changed(link.index, "set on", up=True, promiscuous=True, mtu=1400)
    off = links.changed(link.index, "set off", promiscuous=False)
    await net.do(on, off)
    after = await net.link("v0")
    assert after.up
    assert after.mtu == 1400
    assert after.arp
    assert LinkFlag.PROMISC not in after.flags


async def test_a_port_leaves_its_master(net: Lab) -> None:
    bridge = await net.make("br0", LinkMaking(kind=LinkKind.BRIDGE))
    link = await net.make("v0", VETH)
    await net.do(links.changed(link.index, "put in", master=bridge.index))
    assert (await net.link("v0")).master == bridge.index
    await net.do(links.changed(link.index, "take out", master=0))
    assert (await net.link("v0")).master == 0
    await agrees(net)


async def test_alternative_names(net: Lab) -> None:
    link = await net.make("v0", VETH)
    names = ("storage", "ein-sehr-langer-name-" + "x" * 100, "zweiter")
    await net.do(*(links.altname_added(link.index, name, f"add {name}") for name in names))
    (told,) = net.ip("-j", "link", "show", "dev", "v0")
    assert told["altnames"] == list(names)
    assert set((await net.link("v0")).altnames) == set(names)
    for name in names:
        assert (await net.link(name)).index == link.index
    with pytest.raises(NetlinkRefusal) as caught:
        await net.do(links.altname_added(link.index, "storage", "add storage"))
    assert caught.value.errno == 17
    await net.do(links.altname_removed(link.index, "storage", "remove storage"))
    assert set((await net.link("v0")).altnames) == set(names[1:])
    await agrees(net)


async def test_a_name_that_is_not_utf8_breaks_nothing(net: Lab) -> None:
    await net.make("v0", VETH)
    net.run("ip", "link", "set", "dev", "v1", "name", os.fsdecode(b"\xff\xfe1"))
    found = {link.name for link in await links.all_links(net.netlink, net.deadline)}
    assert {"v0", r"\xff\xfe1"} <= found
    assert all(name.encode() for name in found)


async def test_a_link_that_is_not_there(net: Lab) -> None:
    for name in ("nope", "", "x" * 200, "\udcff"):
        assert await links.one_link(net.netlink, net.deadline, name=name) is None
    assert await links.one_link(net.netlink, net.deadline, index=4242) is None


async def test_a_link_moves_to_another_namespace_and_gets_its_name_there(net: Lab) -> None:
    link = await net.make("v0", VETH)
    with namespace() as other, contextlib.closing(open_netlink(other)) as there:
        await net.do(links.moved(link.index, "move v0", namespace=other, name="eth0"))
        names = {each.name for each in await links.all_links(there, net.deadline)}
        assert "eth0" in names
        assert await links.one_link(net.netlink, net.deadline, name="v0") is None
        # Its peer stayed: IFLA_LINK is an index of the other namespace now.
        assert (await net.link("v1")).parent == 0


async def test_counters_are_as_ip_shows_them(net: Lab) -> None:
    await net.up("lo")

    def talk() -> None:
        import socket

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            sock.sendto(b"x" * 100, sock.getsockname())

    net.within(talk)
    counters = (await net.link("lo")).counters
    (told,) = net.ip("-j", "-s", "link", "show", "dev", "lo")
    received, sent = told["stats64"]["rx"], told["stats64"]["tx"]
    # UDP's 8 and IP's 20 bytes.
    assert counters.receive_bytes == received["bytes"] == 128
    assert counters.receive_packets == received["packets"] == 1
    assert (counters.transmit_bytes, counters.transmit_packets) == (sent["bytes"], 1)
    assert counters.multicast == received["multicast"]
