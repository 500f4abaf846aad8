"""Addresses in the kernel's messages and back, with ip(8) as the witness."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_interface
from typing import Any

import pytest

from agent.core.network import (
    Address,
    AddressFlag,
    Family,
    Link,
    LinkKind,
    LinkMaking,
    Scope,
)
from agent.core.rtnl import addresses
from tests.privileged.netlab import (
    Lab,
    lab,
)

pytestmark = [pytest.mark.privileged, pytest.mark.network]

V4, V6 = Family.V4, Family.V6
VETH = LinkMaking(kind=LinkKind.VETH, peer_name="v1")
FOREVER = 0xFFFFFFFF


@pytest.fixture
async def net() -> AsyncIterator[Lab]:
    async with lab() as made:
        yield made


@pytest.fixture
async def v0(net: Lab) -> Link:
    return await net.veth("192.0.2.1/24", "2001:db8::1/64")


def address_as_ip_has_it(address: Address) -> dict[str, object]:
    scope = Scope(address.scope).word
    return {
        "family": "inet" if address.family is V4 else "inet6",
        "local": str(address.interface.ip),
        "prefixlen": address.interface.network.prefixlen,
        "address": str(address.peer) if address.peer else None,
        "broadcast": str(address.broadcast) if address.broadcast else None,
        "scope": scope,
        "label": address.label or None,
        "valid": address.valid == FOREVER or address.valid > 0,
        "forever": address.preferred == address.valid == FOREVER,
        "nodad": AddressFlag.NODAD in address.flags,
        "tentative": AddressFlag.TENTATIVE in address.flags,
        "noprefixroute": AddressFlag.NOPREFIXROUTE in address.flags,
    }


def address_of_ip(told: dict[str, Any]) -> dict[str, object]:
    keys = ("family", "local", "prefixlen", "address", "broadcast", "scope", "label")
    marks = ("nodad", "tentative", "noprefixroute")
    return {key: told.get(key) for key in keys} | {
        "valid": told["valid_life_time"] > 0,
        "forever": told["preferred_life_time"] == told["valid_life_time"] == FOREVER,
        **{mark: told.get(mark, False) for mark in marks},
    }


def in_order(items: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(items, key=repr)


ADDRESSES = (
    Address(index=0, interface=ip_interface("198.51.100.1/24"), label="v0:web"),
    Address(
        index=0,
        interface=ip_interface("198.51.100.2/25"),
        broadcast=IPv4Address("198.51.100.127"),
    ),
    Address(index=0, interface=ip_interface("203.0.113.1/32"), peer=IPv4Address("203.0.113.9")),
    Address(index=0, interface=ip_interface("203.0.113.5/31")),
    Address(index=0, interface=ip_interface("10.9.8.7/8"), scope=Scope.LINK),
    Address(index=0, interface=ip_interface("10.9.8.6/32"), flags=AddressFlag.NOPREFIXROUTE),
    Address(index=0, interface=ip_interface("fd00::1/64"), flags=AddressFlag.NODAD),
    Address(
        index=0,
        interface=ip_interface("fd00:1::1/128"),
        peer=IPv6Address("fd00:1::2"),
        flags=AddressFlag.NODAD,
    ),
    Address(
        index=0,
        interface=ip_interface("fd00:2::1/64"),
        flags=AddressFlag.NODAD | AddressFlag.NOPREFIXROUTE,
        preferred=1000,
        valid=2000,
    ),
)


def on(link: Link, address: Address) -> Address:
    return replace(address, index=link.index)


async def test_addresses_are_as_ip_shows_them(net: Lab, v0: Link) -> None:
    wanted = [on(v0, address) for address in ADDRESSES]
    await net.do(*(addresses.added(each, f"add {each.interface}") for each in wanted))
    found, (told,) = await net.steady(
        lambda: addresses.all_addresses(net.netlink, net.deadline, index=v0.index),
        lambda: net.ip("-j", "addr", "show", "dev", "v0"),
    )
    assert in_order(map(address_as_ip_has_it, found)) == in_order(
        map(address_of_ip, told["addr_info"])
    )
    there = {each.interface: each for each in found}
    for each in wanted:
        got = there[each.interface]
        assert (got.peer, got.broadcast, got.scope) == (each.peer, each.broadcast, each.scope)
    await net.do(*(addresses.removed(each, f"remove {each.interface}") for each in wanted))
    left = await addresses.all_addresses(net.netlink, net.deadline, index=v0.index)
    assert {each.interface for each in left} & {each.interface for each in wanted} == set()


async def test_the_addresses_of_all_links(net: Lab, v0: Link) -> None:
    found, told = await net.steady(
        lambda: addresses.all_addresses(net.netlink, net.deadline),
        lambda: net.ip("-j", "addr"),
    )
    assert {(each.index, str(each.interface.ip)) for each in found} == {
        (link["ifindex"], info["local"]) for link in told for info in link["addr_info"]
    }


async def test_an_address_that_is_there_may_be_added_again(net: Lab, v0: Link) -> None:
    found = await addresses.all_addresses(net.netlink, net.deadline, index=v0.index)
    await net.do(*(addresses.added(each, f"add {each.interface}") for each in found))
    again = await addresses.all_addresses(net.netlink, net.deadline, index=v0.index)
    assert {each.interface for each in again} >= {each.interface for each in found}


async def test_an_address_without_dad_can_be_bound_at_once(net: Lab, v0: Link) -> None:
    """An address that is still tentative gives EADDRNOTAVAIL."""
    wanted = on(v0, ADDRESSES[6])
    await net.do(addresses.added(wanted, "add fd00::1"))

    def bind() -> None:
        import socket

        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("fd00::1", 0))

    net.within(bind)
