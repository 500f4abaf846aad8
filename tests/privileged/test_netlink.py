"""The exchange by netlink with the real kernel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from ipaddress import IPv4Address

import pytest

from agent.core.netlink import KernelNetlink, open_netlink
from agent.core.network import (
    Family,
    Hop,
    Link,
    LinkKind,
    LinkMaking,
)
from agent.core.rtnl import links, routes
from agent.linux.netlinksocket import NetlinkSocket, open_socket
from tests.privileged.counts import often
from tests.privileged.netlab import (
    GATE4,
    Lab,
    apart,
    lab,
    namespace,
    r4,
    within,
)

pytestmark = [pytest.mark.privileged, pytest.mark.network]

V4, V6 = Family.V4, Family.V6
VETH = LinkMaking(kind=LinkKind.VETH, peer_name="v1")


@pytest.fixture
async def net() -> AsyncIterator[Lab]:
    async with lab() as made:
        yield made


@pytest.fixture
async def v0(net: Lab) -> Link:
    return await net.veth("192.0.2.1/24", "2001:db8::1/64")


async def test_each_namespace_has_its_own_links(net: Lab) -> None:
    await net.make("v0", VETH)
    with namespace() as other, contextlib.closing(open_netlink(other)) as there:
        names = {link.name for link in await links.all_links(there, net.deadline)}
        assert "v0" not in names
        assert names == set(apart(lambda: within(other, interfaces)))
    assert "v0" in {link.name for link in await links.all_links(net.netlink, net.deadline)}


def interfaces() -> list[str]:
    import socket

    return [name for _, name in socket.if_nameindex()]


def test_a_descriptor_that_is_no_namespace_is_refused() -> None:
    with open("/dev/null") as null, pytest.raises(OSError, match="setns") as caught:
        open_netlink(null.fileno())
    assert caught.value.filename == "/dev/null"


async def test_questions_and_changes_at_once(net: Lab, v0: Link) -> None:
    async def come_and_go(table: int) -> None:
        wanted = [
            r4(f"10.{n}.0.0/16", Hop(index=v0.index), table=table, scope=253) for n in range(100)
        ]
        await net.do(*(routes.added(route, "add") for route in wanted))
        found = await routes.all_routes(net.netlink, net.deadline, family=V4, table=table)
        assert set(found) == set(wanted)
        await net.do(*(routes.removed(route, "remove") for route in wanted))

    async with asyncio.TaskGroup() as group:
        for table in range(1000, 1003):
            group.create_task(come_and_go(table))
        for _ in range(10):
            group.create_task(links.all_links(net.netlink, net.deadline))


async def test_an_answer_larger_than_the_buffer_is_asked_for_again(net: Lab) -> None:
    await net.make("v0", VETH)

    def small() -> NetlinkSocket:
        made = open_socket(namespace=net.namespace)
        return NetlinkSocket(made._socket, message_size=256)

    with contextlib.closing(KernelNetlink(small())) as netlink:
        assert await links.all_links(netlink, net.deadline) == await links.all_links(
            net.netlink, net.deadline
        )


async def test_thousands_of_routes(net: Lab, v0: Link) -> None:
    count, base = often(5000), int(IPv4Address("10.0.0.0"))
    hop = Hop(gateway=GATE4, index=v0.index)
    wanted = [r4(f"{IPv4Address(base + 256 * number)}/24", hop) for number in range(count)]
    before = await routes.all_routes(net.netlink, net.deadline, family=V4, table=254)
    await net.do(*(routes.added(route, f"add {route.destination}") for route in wanted))
    found = await routes.all_routes(net.netlink, net.deadline, family=V4, table=254)
    assert set(found) == {*wanted, *before}
    assert len(net.ip("-j", "route")) == count + len(before)
