"""Notices of what changes in the network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from ipaddress import ip_interface

import pytest

from agent.core.network import (
    Address,
    AddressFlag,
    Hop,
    Link,
    LinkKind,
    LinkMaking,
    Route,
)
from agent.core.rtnl import links, routes
from agent.core.rtnl.monitor import Lost, Monitor, Notice, Subject, open_monitor
from agent.linux.netlinksocket import open_socket
from tests.privileged.netlab import (
    GATE4,
    GATE4B,
    Lab,
    lab,
    r4,
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


async def until(
    monitor: Monitor, wanted: int, about: Callable[[Subject], bool]
) -> list[Notice | Lost]:
    """So many notices about something; the kernel tells of its own doings in between."""
    found: list[Notice | Lost] = []
    async with asyncio.timeout(60), contextlib.aclosing(monitor.notices()) as notices:
        async for notice in notices:
            if isinstance(notice, Lost) or about(notice.subject):
                found.append(notice)
            if len(found) == wanted:
                break
    return found


async def test_the_monitor_tells_what_changes(net: Lab, v0: Link) -> None:
    own = {net.netlink.port}
    route = r4("10.0.0.0/8", Hop(gateway=GATE4, index=v0.index))
    other = r4("10.0.0.0/8", Hop(gateway=GATE4B, index=v0.index))
    added = Address(
        index=v0.index,
        interface=ip_interface("198.51.100.1/32"),
        label="v0",
        flags=AddressFlag.PERMANENT,
    )

    def about(subject: Subject) -> bool:
        match subject:
            case Route(destination=destination):
                return destination == route.destination
            case Address(interface=interface):
                return interface == added.interface
            case Link(mtu=mtu):
                return mtu == 1400

    with contextlib.closing(open_monitor(net.namespace, own=own)) as monitor:
        await net.do(routes.added(route, "add"), routes.replaced(other, "replace"))
        net.ip("route", "del", "10.0.0.0/8")
        net.ip("addr", "add", "198.51.100.1/32", "dev", "v0")
        net.ip("link", "set", "v0", "mtu", "1400")
        *first, link = await until(monitor, 5, about)
    assert first == [
        Notice(kind="new", subject=route, own=True),
        Notice(kind="new", subject=other, replaced=True, own=True),
        Notice(kind="gone", subject=other),
        Notice(kind="new", subject=added),
    ]
    assert isinstance(link, Notice)
    assert isinstance(link.subject, Link)
    assert (link.kind, link.subject.name, link.subject.index) == ("new", "v0", v0.index)


async def test_a_port_that_leaves_a_bridge_is_not_gone(net: Lab) -> None:
    bridge = await net.make("br0", LinkMaking(kind=LinkKind.BRIDGE))
    link = await net.make("v0", VETH)
    await net.do(links.changed(link.index, "put in", master=bridge.index))
    with contextlib.closing(open_monitor(net.namespace)) as monitor:
        await net.do(links.changed(link.index, "take out", master=0))
        await net.do(links.removed(bridge.index, "remove br0"))
        gone = None
        async with asyncio.timeout(60), contextlib.aclosing(monitor.notices()) as notices:
            async for notice in notices:
                if isinstance(notice, Notice) and notice.kind == "gone":
                    gone = notice.subject
                    break
    assert isinstance(gone, Link)
    assert gone.name == "br0"


async def test_notices_that_are_dropped_are_told_twice(net: Lab, v0: Link) -> None:
    """At once, and when the queue is empty: until then the kernel drops everything."""
    wire = open_socket(groups=(7,), namespace=net.namespace, receive_buffer=4096)
    with contextlib.closing(Monitor(wire)) as monitor:
        flood = [r4(f"10.{n}.0.0/16", Hop(index=v0.index), table=50, scope=253) for n in range(200)]
        await net.do(*(routes.added(route, "add") for route in flood))
        found: list[Notice | Lost] = []
        async with asyncio.timeout(60), contextlib.aclosing(monitor.notices()) as notices:
            async for notice in notices:
                found.append(notice)
                if found.count(Lost()) == 2:
                    break
        assert found[0] == found[-1] == Lost()
        assert len(found) < 200
        last = r4("10.250.0.0/16", Hop(index=v0.index), table=50, scope=253)
        await net.do(routes.added(last, "add"))
        assert await until(monitor, 1, lambda _: True) == [Notice(kind="new", subject=last)]
