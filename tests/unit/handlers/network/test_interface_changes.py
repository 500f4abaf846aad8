"""The lines of `changed`, as network.proto shows them."""

from __future__ import annotations

import ipaddress
from dataclasses import replace

import pytest

from agent.core.network import Address, Link, LinkFlag, LinkKind, LinkMaking, Queues
from agent.handlers.network.interface_changes import View, lines
from agent.handlers.network.interface_sysctls import Ipv6Settings

pytestmark = [pytest.mark.unit, pytest.mark.network]

LINK = Link(
    index=2,
    name="eth0",
    flags=LinkFlag.BROADCAST | LinkFlag.MULTICAST,
    mtu=1500,
    mac="02:00:00:00:00:01",
    altnames=("old",),
    transmit_queue_length=1000,
)


def address(text: str, **more: object) -> Address:
    made = Address(index=2, interface=ipaddress.ip_interface(text))
    if made.interface.version == 4:
        made = replace(made, broadcast=made.interface.network.broadcast_address)
    return replace(made, **more)  # type: ignore[arg-type]


def test_nothing() -> None:
    """What moves by itself is no change: the carrier, counters, the kernel's own addresses."""
    before = View(link=LINK)
    moved = replace(LINK, carrier=True, operstate=6, flags=LINK.flags | LinkFlag.LOWER_UP)
    local = address("fe80::1/64", protocol=3)
    assert lines(before, View(link=moved, addresses=(local,))) == ()


def test_the_examples_of_the_protocol() -> None:
    now = replace(LINK, name="web0", mtu=9000)
    after = View(link=now, addresses=(address("192.0.2.10/24"),))
    assert lines(View(link=LINK), after) == (
        "name eth0 -> web0",
        "mtu 1500 -> 9000",
        "address +192.0.2.10/24",
    )


def test_every_kind_of_line() -> None:
    now = replace(
        LINK,
        flags=LinkFlag.UP | LinkFlag.NOARP | LinkFlag.PROMISC | LinkFlag.ALLMULTI,
        mac="02:00:00:00:00:02",
        altnames=("new",),
        transmit_queue_length=10,
    )
    bridge = LinkMaking(kind=LinkKind.BRIDGE, forward_delay_millis=15000)
    before = View(
        link=LINK,
        addresses=(address("2001:db8::1/64"), address("192.0.2.1/24")),
        making=bridge,
        ipv6=Ipv6Settings(enabled=True, accept_ra=True),
        queues=Queues(combined=4),
        offloads={"tx-tcp-segmentation": True, "rx-gro": True},
    )
    after = View(
        link=now,
        addresses=(address("192.0.2.1/24", peer=ipaddress.ip_address("192.0.2.2")),),
        master="br0",
        making=replace(bridge, stp=True),
        ipv6=Ipv6Settings(enabled=False, accept_ra=False),
        queues=Queues(combined=2),
        offloads={"tx-tcp-segmentation": False, "rx-gro": True},
    )
    assert lines(before, after) == (
        "mac 02:00:00:00:00:01 -> 02:00:00:00:00:02",
        "master none -> br0",
        "transmit queue length 1000 -> 10",
        "arp on -> off",
        "multicast on -> off",
        "all multicast off -> on",
        "promiscuous mode off -> on",
        "down -> up",
        "stp off -> on",
        "ipv6 on -> off",
        "router advertisements on -> off",
        "address -2001:db8::1/64",
        "address -192.0.2.1/24",
        "address +192.0.2.1/24 peer 192.0.2.2",
        "combined queues 4 -> 2",
        "offload tx-tcp-segmentation on -> off",
        "alternative name -old",
        "alternative name +new",
    )
