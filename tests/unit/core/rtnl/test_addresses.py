"""Addresses in the kernel's messages and back, against layouts by hand."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_interface

import pytest

from agent.core.deadlines import Deadline
from agent.core.network import Address, AddressFlag, Scope
from agent.core.rtnl import addresses
from tests.fakes import netlink_messages as raw
from tests.fakes.netlink_wire import attribute

pytestmark = [pytest.mark.unit, pytest.mark.network]

HEADER = "=BBBBI"
INET, INET6 = 2, 10
# include/uapi/linux/if_addr.h
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_BROADCAST, IFA_CACHEINFO, IFA_FLAGS, IFA_PROTO = (
    *(1, 2, 3, 4, 6),
    *(8, 11),
)
FOREVER = 0xFFFFFFFF


def ip4(text: str) -> bytes:
    return IPv4Address(text).packed


def ip6(text: str) -> bytes:
    return IPv6Address(text).packed


def test_an_ipv4_address() -> None:
    found = addresses.decode(
        raw.address(
            INET,
            24,
            3,
            attribute(IFA_ADDRESS, ip4("192.0.2.1")),
            attribute(IFA_LOCAL, ip4("192.0.2.1")),
            attribute(IFA_BROADCAST, ip4("192.0.2.255")),
            attribute(IFA_LABEL, b"eth0:web\0"),
            raw.number(IFA_FLAGS, 0x80),
            attribute(IFA_CACHEINFO, struct.pack("=4I", FOREVER, FOREVER, 1, 1)),
        )
    )
    assert found == Address(
        index=3,
        interface=ip_interface("192.0.2.1/24"),
        broadcast=IPv4Address("192.0.2.255"),
        label="eth0:web",
        flags=AddressFlag.PERMANENT,
    )


def test_the_other_end_of_a_link_is_in_ifa_address() -> None:
    """For IPv4 and IPv6 alike; IPv6 leaves IFA_LOCAL out where there is no other end."""
    found = addresses.decode(
        raw.address(
            INET6,
            128,
            3,
            attribute(IFA_LOCAL, ip6("2001:db8::1")),
            attribute(IFA_ADDRESS, ip6("2001:db8::2")),
        )
    )
    assert found is not None
    assert (found.interface, found.peer) == (
        ip_interface("2001:db8::1/128"),
        IPv6Address("2001:db8::2"),
    )
    alone = addresses.decode(raw.address(INET6, 64, 3, attribute(IFA_ADDRESS, ip6("2001:db8::1"))))
    assert alone is not None
    assert (alone.interface, alone.peer) == (ip_interface("2001:db8::1/64"), None)


def test_lifetimes_scope_and_protocol() -> None:
    found = addresses.decode(
        raw.address(
            INET6,
            64,
            3,
            attribute(IFA_ADDRESS, ip6("fe80::1")),
            attribute(IFA_CACHEINFO, struct.pack("=4I", 600, 1200, 1, 1)),
            attribute(IFA_PROTO, b"\3"),
            raw.number(IFA_FLAGS, 0x240),
            scope=253,
        )
    )
    assert found is not None
    assert (found.preferred, found.valid, found.protocol) == (600, 1200, 3)
    assert found.scope == Scope.LINK
    assert found.flags == AddressFlag.TENTATIVE | AddressFlag.NOPREFIXROUTE


def test_what_is_no_ip_address_is_left_out() -> None:
    assert addresses.decode(raw.address(0, 0, 3)) is None


async def test_a_listing_of_one_interface() -> None:
    """Also of a kernel that does not filter."""
    one, other = (
        raw.address(INET, 32, index, attribute(IFA_LOCAL, ip4("192.0.2.1"))) for index in (3, 4)
    )
    netlink = raw.AnsweringNetlink(lambda _: [one, other])
    found = await addresses.all_addresses(netlink, Deadline.after(60), index=4)
    assert [address.index for address in found] == [4]
    assert raw.parts(netlink.questions[0].payload, HEADER) == ((0, 0, 0, 0, 4), [])
    assert len(await addresses.all_addresses(netlink, Deadline.after(60))) == 2


def test_an_address_is_added() -> None:
    wanted = Address(
        index=3,
        interface=ip_interface("192.0.2.1/24"),
        broadcast=IPv4Address("192.0.2.255"),
        label="eth0:web",
        scope=Scope.LINK,
    )
    change = addresses.added(wanted, "add it")
    # RTM_NEWADDR, NLM_F_REPLACE | NLM_F_CREATE.
    assert (change.what, change.type, change.flags) == ("add it", 20, 0x500)
    fields, attributes = raw.parts(change.payload, HEADER)
    assert fields == (INET, 24, 0, 253, 3)
    assert dict(attributes) == {
        IFA_LOCAL: ip4("192.0.2.1"),
        IFA_ADDRESS: ip4("192.0.2.1"),
        IFA_BROADCAST: ip4("192.0.2.255"),
        IFA_LABEL: b"eth0:web\0",
        IFA_FLAGS: bytes(4),
    }


def test_an_address_with_another_end_and_lifetimes() -> None:
    wanted = Address(
        index=3,
        interface=ip_interface("2001:db8::1/128"),
        peer=IPv6Address("2001:db8::2"),
        flags=AddressFlag.NODAD,
        preferred=600,
        valid=1200,
        protocol=3,
    )
    fields, attributes = raw.parts(addresses.added(wanted, "x").payload, HEADER)
    assert fields == (INET6, 128, 0, 0, 3)
    assert dict(attributes) == {
        IFA_LOCAL: ip6("2001:db8::1"),
        IFA_ADDRESS: ip6("2001:db8::2"),
        IFA_FLAGS: struct.pack("=I", 0x02),
        IFA_CACHEINFO: struct.pack("=4I", 600, 1200, 0, 0),
        IFA_PROTO: b"\3",
    }


def test_news_of_the_kernel_are_no_wishes() -> None:
    """An address that was read can be put back as it is."""
    news = AddressFlag.PERMANENT | AddressFlag.TENTATIVE | AddressFlag.SECONDARY
    read = Address(index=3, interface=ip_interface("fd00::1/64"), flags=news | AddressFlag.NODAD)
    _, attributes = raw.parts(addresses.added(read, "x").payload, HEADER)
    assert dict(attributes)[IFA_FLAGS] == struct.pack("=I", 0x02)


def test_an_address_is_removed_by_its_ends_and_prefix() -> None:
    there = Address(index=3, interface=ip_interface("192.0.2.1/32"), peer=IPv4Address("192.0.2.9"))
    change = addresses.removed(there, "x")
    assert (change.type, change.flags) == (21, 0)
    fields, attributes = raw.parts(change.payload, HEADER)
    assert fields == (INET, 32, 0, 0, 3)
    assert dict(attributes) == {IFA_LOCAL: ip4("192.0.2.1"), IFA_ADDRESS: ip4("192.0.2.9")}
