"""VLANs, bonds, VRFs and dummies, which not every kernel has; ip(8) is the witness."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.core.addresses import MacAddress
from agent.core.errors import AgentError, Reason
from agent.core.network import InterfaceWish, LinkKind, LinkMaking
from tests.privileged.interfacelab import InterfaceLab, at, interface_lab

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces"),
]


@pytest.fixture
async def net(tmp_path: Path) -> AsyncIterator[InterfaceLab]:
    async with interface_lab(tmp_path) as made:
        yield made


async def needs(net: InterfaceLab, *kinds: LinkKind) -> None:
    """Skips where this kernel has none of a kind."""
    await net.veth("below", "other", up=False)
    for number, kind in enumerate(kinds):
        parent = (await net.lab.link("below")).index if kind is LinkKind.VLAN else 0
        making = LinkMaking(kind=kind, vlan_id=4094, table=4000)
        link = await net.lab.make(f"probe{number}", making, parent=parent)
        net.lab.ip("link", "del", "dev", link.name)
    net.lab.ip("link", "del", "dev", "below")


def told(net: InterfaceLab, name: str) -> dict[str, Any]:
    (found,) = net.lab.ip("-j", "-d", "addr", "show", "dev", name)
    return dict(found)


async def test_a_bond_with_its_members_and_a_vlan_on_top(net: InterfaceLab) -> None:
    """A member has to be down to become one; all get the bond's address."""
    await needs(net, LinkKind.BOND, LinkKind.DUMMY)
    await net.veth("eth0", "far0")
    await net.veth("eth1", "far1")
    bond = LinkMaking(kind=LinkKind.BOND, mode="active-backup", miimon=250)
    vlan = LinkMaking(kind=LinkKind.VLAN, parent="bond0", vlan_id=7)
    wishes = (
        InterfaceWish(name="v7", making=vlan, addresses=at("192.0.2.1/24", "2001:db8::1/64")),
        InterfaceWish(current_name="eth0", master="bond0"),
        InterfaceWish(current_name="eth1", master="bond0"),
        InterfaceWish(name="bond0", making=bond, mtu=1450),
    )
    states = await net.apply(*wishes)
    info = told(net, "bond0")["linkinfo"]["info_data"]
    assert (info["mode"], info["miimon"]) == ("active-backup", 250)
    assert {told(net, name)["address"] for name in ("bond0", "eth0", "eth1", "v7")} == {
        states[3].link.mac
    }
    assert all("UP" in told(net, name)["flags"] for name in ("bond0", "eth0", "eth1", "v7"))
    assert (told(net, "v7")["linkinfo"]["info_data"]["id"], states[0].parent) == (7, "bond0")
    assert [state.changed for state in await net.apply(*wishes)] == [()] * 4
    # The address means the member whose own it was, not the bond and not what is on it.
    for name in ("eth0", "eth1"):
        net.lab.ip("link", "set", "dev", name, "nomaster")
    (state,) = await net.apply(
        InterfaceWish(address=MacAddress.parse(told(net, "eth1")["address"].upper()))
    )
    assert state.link.name == "eth1"


async def test_failures_on_the_way_to_a_bond(net: InterfaceLab) -> None:
    await needs(net, LinkKind.BOND)
    for number in range(2):
        await net.veth(f"eth{number}", f"far{number}")
        net.lab.ip("addr", "add", f"2001:db8:{number}::1/64", "dev", f"eth{number}", "nodad")
        net.lab.ip("route", "add", f"198.51.{number}.0/24", "dev", f"eth{number}")
    wishes = (
        InterfaceWish(current_name="eth0", name="eth1", master="bond0", mtu=1400),
        InterfaceWish(current_name="eth1", name="eth0", master="bond0"),
        InterfaceWish(name="bond0", making=LinkMaking(kind=LinkKind.BOND)),
    )
    turns = itertools.cycle([True, False])
    assert await net.failing_once_each(wishes, lambda: next(turns)) > 6


async def test_a_vlan_that_is_there_and_another(net: InterfaceLab) -> None:
    await needs(net, LinkKind.VLAN)
    await net.veth("eth0", "far0")
    await net.veth("eth1", "far1")
    vlan = LinkMaking(kind=LinkKind.VLAN, parent="eth0", vlan_id=10, service_tag=True)
    wish = InterfaceWish(name="eth0.10", making=vlan)
    await net.apply(wish)
    assert told(net, "eth0.10")["linkinfo"]["info_data"]["protocol"] == "802.1ad"
    assert (await net.apply(wish))[0].changed == ()
    for other in (
        LinkMaking(kind=LinkKind.VLAN, parent="eth0", vlan_id=11, service_tag=True),
        LinkMaking(kind=LinkKind.VLAN, parent="eth0", vlan_id=10),
        LinkMaking(kind=LinkKind.VLAN, parent="eth1", vlan_id=10, service_tag=True),
        LinkMaking(kind=LinkKind.BRIDGE),
    ):
        with pytest.raises(AgentError) as caught:
            await net.apply(InterfaceWish(name="eth0.10", making=other))
        assert caught.value.reason is Reason.WRONG_STATE


async def test_what_is_on_top_keeps_what_it_has(net: InterfaceLab) -> None:
    """A VLAN goes down and up with its parent, and would lose routes and IPv6 addresses."""
    await needs(net, LinkKind.VLAN, LinkKind.BOND)
    await net.veth("eth0", "far0")
    vlan = LinkMaking(kind=LinkKind.VLAN, parent="eth0", vlan_id=10)
    top = InterfaceWish(name="v10", making=vlan, addresses=at("192.0.2.1/24", "2001:db8::1/64"))
    await net.apply(top)
    net.lab.ip("route", "add", "default", "via", "192.0.2.254")
    net.lab.ip("neigh", "add", "192.0.2.9", "lladdr", "02:00:00:00:00:09", "dev", "v10")
    before = net.snapshot()
    bond = InterfaceWish(name="bond0", making=LinkMaking(kind=LinkKind.BOND))
    await net.apply(bond, InterfaceWish(current_name="eth0", master="bond0"))
    after = net.snapshot()
    assert after["v4"] == before["v4"]
    assert after["links"]["v10"]["addr_info"] == before["links"]["v10"]["addr_info"]
    assert [each["dst"] for each in net.lab.ip("-j", "neigh")] == ["192.0.2.9"]


async def test_a_vrf(net: InterfaceLab) -> None:
    """Becoming a member cycles the interface, which takes its IPv6 addresses
    (Documentation/networking/vrf.rst)."""
    await needs(net, LinkKind.VRF)
    await net.veth("eth0", "far0")
    vrf = LinkMaking(kind=LinkKind.VRF, table=100)
    member = InterfaceWish(
        current_name="eth0", master="red", addresses=at("192.0.2.1/24", "2001:db8::1/64")
    )
    wishes = (member, InterfaceWish(name="red", making=vrf))
    await net.apply(*wishes)
    assert told(net, "red")["linkinfo"]["info_data"]["table"] == 100
    assert told(net, "eth0")["master"] == "red"
    there = {each["local"] for each in told(net, "eth0")["addr_info"]}
    assert {"192.0.2.1", "2001:db8::1"} <= there
    assert [state.changed for state in await net.apply(*wishes)] == [(), ()]
    other = LinkMaking(kind=LinkKind.VRF, table=101)
    with pytest.raises(AgentError) as caught:
        await net.apply(InterfaceWish(name="red", making=other))
    assert caught.value.reason is Reason.WRONG_STATE
    kept = InterfaceWish(current_name="eth0", master="", keep_addresses=True)
    (state,) = await net.apply(kept)
    assert state.changed == ("master red -> none",)
    assert {each["local"] for each in told(net, "eth0")["addr_info"]} >= {"2001:db8::1"}


async def test_a_dummy(net: InterfaceLab) -> None:
    await needs(net, LinkKind.DUMMY)
    wish = InterfaceWish(
        name="d0",
        making=LinkMaking(kind=LinkKind.DUMMY),
        mac="02:00:00:00:00:07",
        addresses=at("192.0.2.7/32"),
    )
    (state,) = await net.apply(wish)
    assert state.changed[0] == "made dummy"
    assert told(net, "d0")["address"] == "02:00:00:00:00:07"
    assert (await net.apply(wish))[0].changed == ()
    await net.interfaces.remove("d0", net.lab.deadline)
    assert net.names() == {}
