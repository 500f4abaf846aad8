"""Interfaces made what they shall be, on the real kernel; ip(8) is the witness."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.core.addresses import MacAddress
from agent.core.errors import AgentError, Code, Reason, exhausted
from agent.core.network import InterfaceWish, LinkKind, LinkMaking
from agent.core.state import StateStore
from tests.privileged.interfacelab import (
    InterfaceLab,
    WantsItDown,
    at,
    differences,
    interface_lab,
)

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces"),
]


@pytest.fixture
async def net(tmp_path: Path) -> AsyncIterator[InterfaceLab]:
    async with interface_lab(tmp_path) as made:
        yield made


def addresses(net: InterfaceLab, name: str, *, kernels: bool = False) -> list[str]:
    (told,) = net.lab.ip("-j", "addr", "show", "dev", name)
    return [
        f"{each['local']}/{each['prefixlen']}"
        for each in told["addr_info"]
        if kernels or not each["local"].startswith("fe80")
    ]


async def test_everything_at_once_and_nothing_the_second_time(net: InterfaceLab) -> None:
    await net.veth("eth0", "far0", up=False)
    wish = InterfaceWish(
        current_name="eth0",
        name="web0",
        mtu=9000,
        mac="02-00-00-AA-BB-01",
        addresses=at("192.0.2.10/24", "192.0.2.11/24", "2001:db8::10/64"),
        arp=False,
        multicast=False,
        all_multicast=True,
        promiscuous=True,
        transmit_queue_length=500,
        accept_router_advertisements=False,
        altnames=("a-long-name-that-no-kernel-name-can-have",),
        offloads={"tso": False},
    )
    (state,) = await net.apply(wish)
    (told,) = net.lab.ip("-j", "addr", "show", "dev", "web0")
    assert told["mtu"] == 9000
    assert told["address"] == "02:00:00:aa:bb:01"
    assert {"UP", "NOARP", "ALLMULTI", "PROMISC"} <= set(told["flags"])
    assert "MULTICAST" not in told["flags"]
    assert told["txqlen"] == 500
    assert told["altnames"] == ["a-long-name-that-no-kernel-name-can-have"]
    assert addresses(net, "web0") == ["192.0.2.10/24", "192.0.2.11/24", "2001:db8::10/64"]
    assert told["addr_info"][0]["broadcast"] == "192.0.2.255"
    assert {
        "name eth0 -> web0",
        "mtu 1500 -> 9000",
        "arp on -> off",
        "down -> up",
        "address +192.0.2.10/24",
        "address +2001:db8::10/64",
        "transmit queue length 1000 -> 500",
        "offload tx-tcp-segmentation on -> off",
        "router advertisements on -> off",
    } <= set(state.changed)
    assert state.link.name == "web0"
    again = await net.apply(wish)
    assert again[0].changed == ()
    assert again[0].link == state.link


async def test_ipv6_is_usable_at_once(net: InterfaceLab) -> None:
    """The kernel's own duplicate address detection takes a second (RFC 4862)."""
    await net.veth("eth0", "far0")

    def bind() -> None:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("2001:db8::10", 0))

    await net.apply(InterfaceWish(current_name="eth0", addresses=at("2001:db8::10/64")))
    net.lab.within(bind)


async def test_others_go_unless_they_are_kept(net: InterfaceLab) -> None:
    await net.veth("eth0", "far0")
    net.lab.ip("addr", "add", "198.51.100.1/24", "dev", "eth0")
    net.lab.ip("addr", "add", "2001:db8:1::1/64", "dev", "eth0", "nodad")
    wish = InterfaceWish(current_name="eth0", addresses=at("192.0.2.1/24"), keep_addresses=True)
    await net.apply(wish)
    kept = ["192.0.2.1/24", "198.51.100.1/24", "2001:db8:1::1/64"]
    assert sorted(addresses(net, "eth0")) == kept
    (state,) = await net.apply(InterfaceWish(current_name="eth0", addresses=at("192.0.2.1/24")))
    assert addresses(net, "eth0") == ["192.0.2.1/24"]
    assert state.changed == ("address -198.51.100.1/24", "address -2001:db8:1::1/64")
    local = [each for each in addresses(net, "eth0", kernels=True) if each.startswith("fe80")]
    assert len(local) == 1


async def test_a_new_primary_does_not_take_its_secondaries_along(net: InterfaceLab) -> None:
    """promote_secondaries is 0 by default: with a primary its secondaries go."""
    await net.veth("eth0", "far0")
    before = at("192.0.2.1/24", "192.0.2.2/24", "192.0.2.3/24")
    await net.apply(InterfaceWish(current_name="eth0", addresses=before))
    net.lab.ip("route", "add", "default", "via", "192.0.2.254")
    after = at("192.0.2.3/24", "192.0.2.2/24")
    (state,) = await net.apply(InterfaceWish(current_name="eth0", addresses=after))
    assert addresses(net, "eth0") == ["192.0.2.3/24", "192.0.2.2/24"]
    assert state.changed == ("address -192.0.2.1/24",)
    (route,) = net.lab.ip("-j", "route", "show", "default")
    assert route["gateway"] == "192.0.2.254"


async def test_the_wish_for_one_by_mac_is_the_physical_one(net: InterfaceLab) -> None:
    await net.veth("a", "b")
    net.lab.ip("link", "set", "dev", "a", "address", "02:00:00:aa:bb:01")
    index = (await net.lab.link("a")).index
    vlan = LinkMaking(kind=LinkKind.VLAN, vlan_id=10)
    await net.lab.make("a.10", vlan, parent=index)
    for spelling in ("02:00:00:aa:BB:01", "02:00:00:AA:bb:01"):
        (state,) = await net.apply(InterfaceWish(address=MacAddress.parse(spelling)))
        assert state.link.name == "a"


async def test_one_that_does_not_come(net: InterfaceLab) -> None:
    await net.veth("eth0", "far0")
    unknown = (
        InterfaceWish(address=MacAddress.parse("02:00:00:00:00:99"), timeout=0.1),
        InterfaceWish(current_name="eth9", timeout=0.1),
    )
    for wish in unknown:
        with pytest.raises(AgentError) as caught:
            await net.apply(wish)
        assert caught.value.code is Code.NOT_FOUND
        assert caught.value.reason is Reason.UNKNOWN_INTERFACE
        assert "eth0" in caught.value.message


async def test_a_bridge_made_with_its_members(net: InterfaceLab) -> None:
    """In any order, by the names that all of them have afterwards."""
    await net.veth("eth0", "far0")
    await net.veth("eth1", "far1")
    bridge = LinkMaking(kind=LinkKind.BRIDGE, stp=True, forward_delay_millis=4000)
    wishes = (
        InterfaceWish(current_name="eth0", name="port0", master="lan"),
        InterfaceWish(current_name="eth1", name="port1", master="lan", mtu=1400),
        InterfaceWish(name="lan", making=bridge, addresses=at("192.0.2.1/24")),
    )
    states = await net.apply(*wishes)
    assert [state.changed[0] for state in states] == [
        "name eth0 -> port0",
        "name eth1 -> port1",
        "made bridge",
    ]
    assert [state.master for state in states] == ["lan", "lan", ""]
    (told,) = net.lab.ip("-j", "-d", "link", "show", "dev", "lan")
    info = told["linkinfo"]
    assert info["info_kind"] == "bridge"
    assert (info["info_data"]["stp_state"], info["info_data"]["forward_delay"]) == (1, 400)
    assert {each["ifname"] for each in net.lab.ip("-j", "link", "show", "master", "lan")} == {
        "port0",
        "port1",
    }
    assert addresses(net, "lan") == ["192.0.2.1/24"]
    assert [state.changed for state in await net.apply(*wishes)] == [(), (), ()]


async def test_one_that_is_there_is_made_otherwise(net: InterfaceLab) -> None:
    await net.apply(InterfaceWish(name="br0", making=LinkMaking(kind=LinkKind.BRIDGE)))
    making = LinkMaking(kind=LinkKind.BRIDGE, stp=True, forward_delay_millis=5000)
    wish = InterfaceWish(name="br0", making=making)
    (state,) = await net.apply(wish)
    assert state.changed == ("stp off -> on", "forward delay 15000 -> 5000")
    (told,) = net.lab.ip("-j", "-d", "link", "show", "dev", "br0")
    data = told["linkinfo"]["info_data"]
    assert (data["stp_state"], data["forward_delay"]) == (1, 500)
    (state,) = await net.apply(wish)
    assert state.changed == ()
    veth = LinkMaking(kind=LinkKind.VETH, peer_name="far")
    with pytest.raises(AgentError) as caught:
        await net.apply(InterfaceWish(name="br0", making=veth))
    assert caught.value.reason is Reason.WRONG_STATE


async def test_a_pair_made_and_its_other_end_named(net: InterfaceLab) -> None:
    making = LinkMaking(kind=LinkKind.VETH, peer_name="inner")
    wishes = (
        InterfaceWish(current_name="inner", addresses=at("192.0.2.2/32 peer 192.0.2.1")),
        InterfaceWish(name="outer", making=making, addresses=at("192.0.2.1/32 peer 192.0.2.2")),
    )
    await net.apply(*wishes)
    (told,) = net.lab.ip("-j", "addr", "show", "dev", "inner")
    assert (told["addr_info"][0]["local"], told["addr_info"][0]["address"]) == (
        "192.0.2.2",
        "192.0.2.1",
    )
    assert "broadcast" not in told["addr_info"][0]
    assert [state.changed for state in await net.apply(*wishes)] == [(), ()]
    await net.interfaces.remove("outer", net.lab.deadline)
    await net.interfaces.remove("outer", net.lab.deadline)
    assert net.names() == {}


async def test_what_is_made_takes_a_name_in_the_same_request(net: InterfaceLab) -> None:
    """eth0 becomes wan while a bridge of the name eth0 is made."""
    await net.veth("eth0", "far0")
    wishes = (
        InterfaceWish(current_name="br0", name="eth0", making=LinkMaking(kind=LinkKind.BRIDGE)),
        InterfaceWish(current_name="far0", name="wan", master="eth0"),
    )
    index = (await net.lab.link("eth0")).index
    with pytest.raises(AgentError):  # eth0 is there, and is another kind
        await net.apply(*wishes)
    wishes = (
        InterfaceWish(current_name="far0", name="wan"),
        InterfaceWish(name="far0", making=LinkMaking(kind=LinkKind.VETH, peer_name="eth0")),
    )
    with pytest.raises(AgentError):
        await net.apply(*wishes)
    assert sorted(net.names().values()) == ["eth0", "far0"]
    assert (await net.lab.link("eth0")).index == index


async def test_a_request_that_fails_leaves_nothing_made(net: InterfaceLab) -> None:
    await net.veth("eth0", "far0")
    net.lab.ip("route", "add", "198.51.100.0/24", "dev", "eth0")
    before = net.snapshot()
    with pytest.raises(AgentError) as caught:
        await net.apply(
            InterfaceWish(name="br0", making=LinkMaking(kind=LinkKind.BRIDGE)),
            InterfaceWish(current_name="eth0", name="p0", master="br0", mtu=100_000),
        )
    assert caught.value.reason is Reason.KERNEL_REFUSED
    assert net.snapshot() == before


async def test_down_loses_what_the_protocol_says(net: InterfaceLab) -> None:
    await net.veth("eth0", "far0")
    v6 = at("2001:db8::1/64", "192.0.2.1/24")
    await net.apply(InterfaceWish(current_name="eth0", addresses=v6))
    wish = InterfaceWish(current_name="eth0", addresses=v6, up=False)
    (state,) = await net.apply(wish)
    assert state.changed == ("up -> down",)
    assert sorted(addresses(net, "eth0")) == ["192.0.2.1/24", "2001:db8::1/64"]
    assert (await net.apply(wish))[0].changed == ()


async def test_a_driver_that_wants_it_down_for_another_address(net: InterfaceLab) -> None:
    """EBUSY of eth_prepare_mac_addr_change: it goes down and up, and keeps what it has."""
    await net.veth("eth0", "far0")
    kept = at("192.0.2.1/24", "2001:db8::1/64")
    await net.apply(InterfaceWish(current_name="eth0", addresses=kept))
    net.lab.ip("route", "add", "default", "via", "192.0.2.254")
    net.lab.ip("-6", "route", "add", "default", "via", "2001:db8::fe")
    before = net.snapshot()
    kernel = WantsItDown(net.lab.netlink, "give eth0 the MAC")
    wish = InterfaceWish(current_name="eth0", mac="02:00:00:00:00:42", keep_addresses=True)
    (state,) = await net.failing(kernel, wish)
    assert kernel.lowered == 1
    assert len(state.changed) == 1
    after = net.snapshot()
    assert after["links"]["eth0"]["address"] == "02:00:00:00:00:42"
    assert after["links"]["eth0"]["addr_info"] == before["links"]["eth0"]["addr_info"]
    assert (after["v4"], after["v6"]) == (before["v4"], before["v6"])


async def test_ipv6_off_and_on(net: InterfaceLab) -> None:
    await net.veth("eth0", "far0")
    (state,) = await net.apply(InterfaceWish(current_name="eth0", ipv6=False))
    assert state.changed == ("ipv6 on -> off",)
    assert addresses(net, "eth0", kernels=True) == []
    (state,) = await net.apply(
        InterfaceWish(current_name="eth0", ipv6=True, addresses=at("2001:db8::1/64"))
    )
    assert state.changed == ("ipv6 off -> on", "address +2001:db8::1/64")


async def test_offloads_by_every_kind_of_name(net: InterfaceLab) -> None:
    await net.veth("eth0", "far0")
    for name in ("tso", "tcp-segmentation-offload", "tx-tcp-segmentation"):
        for on in (False, True):
            wish = InterfaceWish(current_name="eth0", offloads={name: on})
            (state,) = await net.apply(wish)
            assert state.offloads["tx-tcp-segmentation"] is on
            assert any("offload tx-tcp-segmentation" in line for line in state.changed)
            assert (await net.apply(wish))[0].changed == ()
    with pytest.raises(AgentError) as caught:
        await net.apply(InterfaceWish(current_name="eth0", offloads={"no-such-thing": True}))
    assert caught.value.reason is Reason.BAD_FIELD
    before = net.snapshot()
    fixed = {"tso": False, "lro": True}
    with pytest.raises(AgentError) as caught:
        await net.apply(InterfaceWish(current_name="eth0", mtu=1400, offloads=fixed))
    assert caught.value.reason is Reason.OFFLOAD_REFUSED
    assert net.snapshot() == before


async def test_a_list_of_all(net: InterfaceLab) -> None:
    await net.veth("eth0", "far0")
    net.lab.ip("addr", "add", "192.0.2.1/24", "dev", "eth0")
    states = await net.interfaces.list(net.lab.deadline)
    told = net.lab.ip("-j", "addr")
    assert [(state.link.index, state.link.name) for state in states] == [
        (each["ifindex"], each["ifname"]) for each in sorted(told, key=lambda e: e["ifindex"])
    ]
    (eth0,) = [state for state in states if state.link.name == "eth0"]
    assert [str(each.interface) for each in eth0.addresses if each.family.word == "v4"] == [
        "192.0.2.1/24"
    ]
    assert (eth0.driver, eth0.pci_path, eth0.link.kind) == ("", "", "veth")


async def test_hardware_stays(net: InterfaceLab) -> None:
    with pytest.raises(AgentError) as caught:
        await net.interfaces.remove("lo", net.lab.deadline)
    assert caught.value.reason is Reason.NOT_REMOVABLE


class FullStore(StateStore):
    """Has room for `room` more files."""

    room = 0

    def save(self, kind: str, key: str, data: dict[str, Any]) -> None:
        if not self.room:
            raise exhausted("the run directory is full", reason=Reason.NO_SPACE)
        self.room -= 1
        super().save(kind, key, data)


@pytest.mark.parametrize("room", range(3))
async def test_without_room_for_a_note_all_is_as_it_was(
    net: InterfaceLab, tmp_path: Path, room: int
) -> None:
    """Names, settings and addresses, although that the names are back can't be noted."""
    await net.veth("eth0", "far0")
    net.lab.ip("addr", "add", "192.0.2.9/24", "dev", "eth0")
    await net.lab.make("br0", LinkMaking(kind=LinkKind.BRIDGE))
    await net.lab.up("br0")
    store = FullStore(tmp_path / "full")
    full = replace(net, state=store)
    before = net.snapshot()
    store.room = room
    with pytest.raises(AgentError) as caught:
        await full.failing(
            net.lab.netlink,
            InterfaceWish(current_name="eth0", name="web0", mtu=1400, addresses=at("192.0.2.1/24")),
            InterfaceWish(name="br0", making=LinkMaking(kind=LinkKind.BRIDGE, stp=True)),
        )
    assert caught.value.reason is Reason.NO_SPACE
    assert differences(net.snapshot(), before) == []
