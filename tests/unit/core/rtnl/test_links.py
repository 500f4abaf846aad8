"""Links in the kernel's messages and back, against layouts by hand."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from agent.core.deadlines import Deadline
from agent.core.netlink import NetlinkRefusal, Question
from agent.core.network import LinkFlag, LinkKind, LinkMaking
from agent.core.rtnl import links
from tests.fakes import netlink_messages as raw
from tests.fakes.netlink_wire import attribute

pytestmark = [pytest.mark.unit, pytest.mark.network]

HEADER = "=BxHiII"
# include/uapi/linux/if_link.h
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER = 1, 3, 4, 5, 10
IFLA_TXQLEN, IFLA_OPERSTATE, IFLA_LINKINFO, IFLA_STATS64, IFLA_NET_NS_FD = 13, 16, 18, 23, 28
IFLA_CARRIER, IFLA_LINK_NETNSID, IFLA_PROP_LIST, IFLA_ALT_IFNAME = 33, 37, 52, 53
IFLA_PERM_ADDRESS = 54
IFLA_INFO_KIND, IFLA_INFO_DATA, IFLA_INFO_SLAVE_KIND = 1, 2, 4
MAC = bytes([0x52, 0x54, 0, 0x12, 0x34, 0x56])


def deadline() -> Deadline:
    return Deadline.after(60)


def test_a_card_with_two_alternative_names() -> None:
    names = (attribute(IFLA_ALT_IFNAME, b"enp5s0\0"), attribute(IFLA_ALT_IFNAME, b"\xffx\0"))
    counters = struct.pack("=24Q", *range(24))
    link = links.decode(
        raw.link(
            7,
            0x11043,
            attribute(IFLA_IFNAME, b"eth0\0"),
            raw.number(IFLA_MTU, 9000),
            raw.number(IFLA_TXQLEN, 1000),
            attribute(IFLA_OPERSTATE, b"\6"),
            attribute(IFLA_CARRIER, b"\1"),
            attribute(IFLA_ADDRESS, MAC),
            attribute(IFLA_PERM_ADDRESS, MAC[:5] + b"\x57"),
            raw.nested(IFLA_PROP_LIST, *names),
            attribute(IFLA_STATS64, counters),
        )
    )
    assert (link.index, link.name, link.mtu, link.transmit_queue_length) == (7, "eth0", 9000, 1000)
    assert link.altnames == ("enp5s0", r"\xffx")
    assert (link.mac, link.permanent_mac) == ("52:54:00:12:34:56", "52:54:00:12:34:57")
    assert (link.up, link.carrier, link.operstate, link.link_type) == (True, True, 6, 1)
    assert (
        link.flags
        == LinkFlag.UP
        | LinkFlag.RUNNING
        | LinkFlag.LOWER_UP
        | LinkFlag.BROADCAST
        | LinkFlag.MULTICAST
    )
    # struct rtnl_link_stats64: rx and tx packets, bytes, errors, dropped, multicast, collisions.
    assert (link.counters.receive_packets, link.counters.transmit_packets) == (0, 1)
    assert (link.counters.receive_bytes, link.counters.transmit_bytes) == (2, 3)
    assert (link.counters.transmit_dropped, link.counters.collisions) == (7, 9)
    assert (link.kind, link.master, link.parent) == ("", 0, 0)


def test_a_vlan_with_a_service_tag() -> None:
    data = raw.nested(
        IFLA_INFO_DATA,
        attribute(1, struct.pack("=H", 42)),  # IFLA_VLAN_ID
        attribute(5, bytes([0x88, 0xA8])),  # IFLA_VLAN_PROTOCOL, big endian
    )
    info = raw.nested(IFLA_LINKINFO, attribute(IFLA_INFO_KIND, b"vlan\0"), data)
    link = links.decode(raw.link(9, 0, raw.number(IFLA_LINK, 7), info))
    assert (link.kind, link.vlan_id, link.service_tag, link.parent) == ("vlan", 42, True, 7)


def test_a_port_of_a_vrf_and_the_vrf() -> None:
    port = raw.nested(IFLA_LINKINFO, attribute(IFLA_INFO_SLAVE_KIND, b"vrf\0"))
    link = links.decode(raw.link(3, 0, raw.number(IFLA_MASTER, 4), port))
    assert (link.master, link.slave_kind, link.kind, link.vrf_table) == (4, "vrf", "", 0)
    data = raw.nested(IFLA_INFO_DATA, raw.number(1, 1234))
    vrf = raw.nested(IFLA_LINKINFO, attribute(IFLA_INFO_KIND, b"vrf\0"), data)
    assert links.decode(raw.link(4, 0, vrf)).vrf_table == 1234


def test_a_parent_in_another_namespace_is_none_here() -> None:
    elsewhere = raw.number(IFLA_LINK, 7), raw.number(IFLA_LINK_NETNSID, 0)
    assert links.decode(raw.link(3, 0, *elsewhere)).parent == 0


def test_addresses_that_are_no_macs() -> None:
    tunnel = links.decode(raw.link(3, 0, attribute(IFLA_ADDRESS, bytes([192, 0, 2, 1]))))
    assert tunnel.mac == "c0:00:02:01"
    loopback = links.decode(raw.link(1, 0, attribute(IFLA_ADDRESS, bytes(6)), kind=772))
    assert (loopback.mac, loopback.link_type) == ("", 772)


def test_a_kind_that_nobody_knows() -> None:
    data = raw.nested(IFLA_INFO_DATA, attribute(1, b"\1"))
    info = raw.nested(IFLA_LINKINFO, attribute(IFLA_INFO_KIND, b"warp\0"), data)
    assert links.decode(raw.link(9, 0, info)).kind == "warp"


async def test_links_are_listed_by_index() -> None:
    netlink = raw.AnsweringNetlink(lambda _: [raw.link(9, 0), raw.link(1, 0)])
    assert [link.index for link in await links.all_links(netlink, deadline())] == [1, 9]
    (question,) = netlink.questions
    assert (question.type, question.flags) == (18, 0x300)  # RTM_GETLINK, NLM_F_DUMP
    # With strict checking a header that is not empty is refused.
    assert question.payload == bytes(16)


async def test_one_link_by_either_sort_of_name() -> None:
    netlink = raw.AnsweringNetlink(lambda _: [raw.link(9, 0)])
    assert await links.one_link(netlink, deadline(), name="eth0") is not None
    assert await links.one_link(netlink, deadline(), index=9) is not None
    by_name, by_index = (raw.parts(question.payload, HEADER) for question in netlink.questions)
    assert by_name == ((0, 0, 0, 0, 0), [(IFLA_ALT_IFNAME, b"eth0\0")])
    assert by_index == ((0, 0, 9, 0, 0), [])


async def test_a_link_that_is_not_there() -> None:
    def answer(question: Question) -> list[bytes]:
        raise NetlinkRefusal(number, "", question)

    number = errno.ENODEV
    netlink = raw.AnsweringNetlink(answer)
    assert await links.one_link(netlink, deadline(), name="eth0") is None
    assert await links.one_link(netlink, deadline(), name="") is None
    assert await links.one_link(netlink, deadline(), name="x" * 128) is None
    assert len(netlink.questions) == 1
    number = errno.EPERM
    with pytest.raises(NetlinkRefusal):
        await links.one_link(netlink, deadline(), name="eth0")


def test_only_the_flags_that_are_named_change() -> None:
    change = links.changed(7, "x", up=True, promiscuous=False)
    fields, attributes = raw.parts(change.payload, HEADER)
    assert fields == (0, 0, 7, 0x1, 0x101)
    assert attributes == []
    assert (change.type, change.flags) == (16, 0)  # RTM_NEWLINK; without NLM_F_CREATE: a change


def test_arp_is_a_flag_upside_down() -> None:
    assert raw.parts(links.changed(7, "x", arp=False).payload, HEADER)[0][3:] == (0x80, 0x80)
    assert raw.parts(links.changed(7, "x", arp=True).payload, HEADER)[0][3:] == (0, 0x80)


def test_every_value_of_a_change() -> None:
    change = links.changed(
        7, "x", name="a", mtu=1400, mac="52:54:00:12:34:56", master=0, transmit_queue_length=0
    )
    _, attributes = raw.parts(change.payload, HEADER)
    assert dict(attributes) == {
        IFLA_IFNAME: b"a\0",
        IFLA_MTU: struct.pack("=I", 1400),
        IFLA_ADDRESS: MAC,
        IFLA_MASTER: bytes(4),
        IFLA_TXQLEN: bytes(4),
    }


def _made(making: LinkMaking, *, parent: int = 0) -> tuple[dict[int, bytes], dict[int, bytes]]:
    change = links.created("new0", making, "x", parent=parent)
    assert (change.type, change.flags) == (16, 0x600)  # NLM_F_CREATE | NLM_F_EXCL
    _, attributes = raw.parts(change.payload, HEADER)
    found = dict(attributes)
    assert found[IFLA_IFNAME] == b"new0\0"
    info = dict(raw.inside(found[IFLA_LINKINFO]))
    assert info[IFLA_INFO_KIND] == making.kind.encode() + b"\0"
    return found, dict(raw.inside(info.get(IFLA_INFO_DATA, b"")))


def test_a_vlan() -> None:
    found, data = _made(LinkMaking(kind=LinkKind.VLAN, vlan_id=42), parent=7)
    assert found[IFLA_LINK] == struct.pack("=I", 7)
    assert data == {1: struct.pack("=H", 42), 5: bytes([0x81, 0x00])}
    _, data = _made(LinkMaking(kind=LinkKind.VLAN, vlan_id=1, service_tag=True), parent=7)
    assert data[5] == bytes([0x88, 0xA8])


def test_a_bridge() -> None:
    making = LinkMaking(
        kind=LinkKind.BRIDGE, stp=True, vlan_filtering=True, forward_delay_millis=4000
    )
    found, data = _made(making)
    assert IFLA_LINK not in found
    # IFLA_BR_FORWARD_DELAY in hundredths, IFLA_BR_STP_STATE, IFLA_BR_VLAN_FILTERING.
    assert data == {1: struct.pack("=I", 400), 5: struct.pack("=I", 1), 7: b"\1"}
    assert _made(LinkMaking(kind=LinkKind.BRIDGE))[1] == {5: bytes(4)}


@pytest.mark.parametrize(
    ("mode", "number"),
    [
        ("balance-rr", 0),
        ("active-backup", 1),
        ("balance-xor", 2),
        ("broadcast", 3),
        ("802.3ad", 4),
        ("balance-tlb", 5),
        ("balance-alb", 6),
    ],
)
def test_a_bond(mode: str, number: int) -> None:
    """The numbers of Documentation/networking/bonding.rst."""
    _, data = _made(LinkMaking(kind=LinkKind.BOND, mode=mode, miimon=100))
    assert data == {1: bytes([number]), 3: struct.pack("=I", 100)}


def test_a_vrf_a_dummy_and_a_pair() -> None:
    assert _made(LinkMaking(kind=LinkKind.VRF, table=7))[1] == {1: struct.pack("=I", 7)}
    assert _made(LinkMaking(kind=LinkKind.DUMMY))[1] == {}
    _, data = _made(LinkMaking(kind=LinkKind.VETH, peer_name="peer"))
    # VETH_INFO_PEER has a struct ifinfomsg before its attributes.
    assert raw.parts(data[1], HEADER) == ((0, 0, 0, 0, 0), [(IFLA_IFNAME, b"peer\0")])


def test_a_link_is_removed_by_its_index() -> None:
    change = links.removed(7, "remove eth0")
    assert (change.what, change.type, change.flags) == ("remove eth0", 17, 0)
    assert raw.parts(change.payload, HEADER) == ((0, 0, 7, 0, 0), [])


def test_alternative_names() -> None:
    added, removed = links.altname_added(7, "web", "x"), links.altname_removed(7, "web", "x")
    assert (added.type, removed.type) == (108, 109)  # RTM_NEWLINKPROP, RTM_DELLINKPROP
    assert added.payload == removed.payload
    ((kind, names),) = raw.parts(added.payload, HEADER)[1]
    assert (kind, raw.inside(names)) == (IFLA_PROP_LIST, [(IFLA_ALT_IFNAME, b"web\0")])


def test_a_move() -> None:
    descriptor = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        change = links.moved(7, "x", namespace=descriptor, name="eth0")
    finally:
        os.close(descriptor)
    _, attributes = raw.parts(change.payload, HEADER)
    assert dict(attributes) == {
        IFLA_NET_NS_FD: struct.pack("=I", descriptor),
        IFLA_IFNAME: b"eth0\0",
    }
