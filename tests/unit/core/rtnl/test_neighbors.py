"""Neighbours and forwarding entries in the kernel's messages and back."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

import pytest

from agent.core.deadlines import Deadline
from agent.core.netlink import Question
from agent.core.network import Forwarding, Neighbor, NeighborFlag, NeighborState
from agent.core.rtnl import neighbors
from tests.fakes import netlink_messages as raw
from tests.fakes.netlink_wire import attribute

pytestmark = [pytest.mark.unit, pytest.mark.network]

HEADER = "=B3xiHBB"
INET, INET6, BRIDGE = 2, 10, 7
# include/uapi/linux/neighbour.h
NDA_DST, NDA_LLADDR, NDA_VLAN, NDA_MASTER = 1, 2, 5, 9
NTF_SELF, NTF_MASTER, NTF_PROXY = 2, 4, 8
PERMANENT, STALE = 0x80, 0x04
MAC = bytes([2, 0, 0, 0, 0, 9])
GATE = IPv4Address("192.0.2.254")


def test_a_neighbour() -> None:
    there = attribute(NDA_DST, GATE.packed), attribute(NDA_LLADDR, MAC)
    assert neighbors.decode(raw.neighbor(INET, 3, STALE, *there)) == Neighbor(
        index=3, address=GATE, mac="02:00:00:00:00:09", state=NeighborState.STALE
    )


def test_what_has_no_address_or_another_family_is_left_out() -> None:
    assert neighbors.decode(raw.neighbor(INET, 3, STALE)) is None
    bridged = raw.neighbor(BRIDGE, 3, STALE, attribute(NDA_DST, GATE.packed))
    assert neighbors.decode(bridged) is None


async def test_proxies_are_asked_for_apart() -> None:
    def answer(question: Question) -> list[bytes]:
        (*_, flags, _), attributes = raw.parts(question.payload, HEADER)
        assert attributes == []
        address = IPv6Address("2001:db8::7") if flags else GATE
        family = INET6 if flags else INET
        there = attribute(NDA_DST, address.packed)
        return [raw.neighbor(family, 3, 0, there, flags=flags)]

    netlink = raw.AnsweringNetlink(answer)
    entry, proxy = await neighbors.all_neighbors(netlink, Deadline.after(60))
    assert (entry.address, entry.flags) == (GATE, NeighborFlag.NONE)
    assert (proxy.address, proxy.flags) == (IPv6Address("2001:db8::7"), NeighborFlag.PROXY)
    assert [question.type for question in netlink.questions] == [30, 30]


def test_a_neighbour_is_set() -> None:
    entry = Neighbor(index=3, address=GATE, mac="02:00:00:00:00:09")
    change = neighbors.replaced(entry, "set it")
    assert (change.what, change.type, change.flags) == ("set it", 28, 0x500)
    fields, attributes = raw.parts(change.payload, HEADER)
    assert fields == (INET, 3, PERMANENT, 0, 0)
    assert attributes == [(NDA_DST, GATE.packed), (NDA_LLADDR, MAC)]


def test_a_proxy_has_no_mac_and_is_removed_as_a_proxy() -> None:
    entry = Neighbor(index=3, address=GATE, state=NeighborState.NONE, flags=NeighborFlag.PROXY)
    fields, attributes = raw.parts(neighbors.replaced(entry, "x").payload, HEADER)
    assert (fields[2:4], attributes) == ((0, NTF_PROXY), [(NDA_DST, GATE.packed)])
    change = neighbors.removed(entry, "x")
    fields, attributes = raw.parts(change.payload, HEADER)
    assert (change.type, fields) == (29, (INET, 3, 0, NTF_PROXY, 0))
    assert attributes == [(NDA_DST, GATE.packed)]


def test_a_bridge_does_not_flag_its_entries() -> None:
    there = (
        attribute(NDA_LLADDR, MAC),
        raw.number(NDA_MASTER, 9),
        attribute(NDA_VLAN, struct.pack("=H", 42)),
    )
    assert neighbors.decode_forwarding(raw.neighbor(BRIDGE, 3, PERMANENT, *there)) == Forwarding(
        index=3, mac="02:00:00:00:00:09", vlan_id=42, flags=NeighborFlag.MASTER
    )


def test_an_interfaces_own_entry() -> None:
    there = attribute(NDA_LLADDR, MAC), attribute(NDA_DST, GATE.packed)
    message = raw.neighbor(BRIDGE, 3, PERMANENT, *there, flags=NTF_SELF)
    found = neighbors.decode_forwarding(message)
    assert found == Forwarding(index=3, mac="02:00:00:00:00:09", destination=GATE)
    assert neighbors.decode_forwarding(raw.neighbor(INET, 3, STALE)) is None


def test_a_forwarding_entry_is_set_and_removed() -> None:
    entry = Forwarding(
        index=3,
        mac="02:00:00:00:00:09",
        vlan_id=42,
        destination=GATE,
        state=NeighborState.NOARP,
        flags=NeighborFlag.MASTER,
    )
    change, removal = (
        neighbors.forwarding_replaced(entry, "x"),
        neighbors.forwarding_removed(entry, "x"),
    )
    assert (change.type, change.flags, removal.type) == (28, 0x500, 29)
    fields, attributes = raw.parts(change.payload, HEADER)
    assert fields == (BRIDGE, 3, 0x40, NTF_MASTER, 0)
    assert attributes == [
        (NDA_LLADDR, MAC),
        (NDA_VLAN, struct.pack("=H", 42)),
        (NDA_DST, GATE.packed),
    ]
    assert removal.payload == change.payload


async def test_a_listing_of_forwarding_entries() -> None:
    netlink = raw.AnsweringNetlink(
        lambda _: [raw.neighbor(BRIDGE, 3, PERMANENT, attribute(NDA_LLADDR, MAC))]
    )
    found = await neighbors.all_forwarding(netlink, Deadline.after(60))
    assert [entry.mac for entry in found] == ["02:00:00:00:00:09"]
    fields, attributes = raw.parts(netlink.questions[0].payload, HEADER)
    assert (fields, attributes) == ((BRIDGE, 0, 0, 0, 0), [])
