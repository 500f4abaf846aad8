"""Notices of what changes, from a scripted kernel."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest

from agent.core.network import Address, Link, Route
from agent.core.rtnl.monitor import Lost, Monitor, Notice
from agent.linux.netlinksocket import Datagram
from tests.fakes import netlink_messages as raw
from tests.fakes.netlink_wire import Answer, FakeWire, attribute, dropped, frame

pytestmark = [pytest.mark.unit, pytest.mark.network]

INET, BRIDGE = 2, 7
LINK = raw.link(3, 1, attribute(3, b"eth0\0"))
ADDRESS = raw.address(INET, 32, 3, attribute(2, IPv4Address("192.0.2.1").packed))
ROUTE = raw.route(INET, 0, raw.number(4, 3))


def as_kind(message: bytes, kind: int, *, flags: int = 0, port: int = 0) -> bytes:
    return frame(kind, message[16:], sequence=0, flags=flags, port=port)


@pytest.fixture
def wire() -> Iterator[FakeWire]:
    made = FakeWire(lambda message: [])
    with contextlib.closing(made):
        yield made


async def told(
    wire: FakeWire, wanted: int, *arrived: Answer, own: set[int] | None = None
) -> list[Notice | Lost]:
    for answer in arrived:
        wire.put(answer)
    monitor = Monitor(wire, own=own or set())
    found: list[Notice | Lost] = []
    async with contextlib.aclosing(monitor.notices()) as notices:
        async for notice in notices:
            found.append(notice)
            if len(found) == wanted:
                break
    return found


def subjects(notices: list[Notice | Lost]) -> list[tuple[str, type]]:
    return [(each.kind, type(each.subject)) for each in notices if isinstance(each, Notice)]


async def test_what_comes_and_goes(wire: FakeWire) -> None:
    arrived = [
        *(as_kind(LINK, 16), as_kind(LINK, 17)),
        *(as_kind(ADDRESS, 20), as_kind(ADDRESS, 21)),
        *(as_kind(ROUTE, 24), as_kind(ROUTE, 25)),
    ]
    assert subjects(await told(wire, 6, *arrived)) == [
        ("new", Link),
        ("gone", Link),
        ("new", Address),
        ("gone", Address),
        ("new", Route),
        ("gone", Route),
    ]


async def test_one_that_took_anothers_place_and_our_own(wire: FakeWire) -> None:
    arrived = as_kind(ROUTE, 24, flags=0x100, port=77) + as_kind(ROUTE, 24, port=78)
    first, second = await told(wire, 2, arrived, own={77})
    assert isinstance(first, Notice)
    assert isinstance(second, Notice)
    assert (first.replaced, first.own, second.replaced, second.own) == (True, True, False, False)


async def test_a_port_that_leaves_its_bridge_is_no_link_that_is_gone(wire: FakeWire) -> None:
    port = as_kind(raw.link(3, 1, family=BRIDGE), 17)
    assert subjects(await told(wire, 1, port + as_kind(LINK, 16))) == [("new", Link)]


async def test_what_is_not_understood_or_not_the_kernels_is_skipped(wire: FakeWire) -> None:
    arrived: list[Answer] = [
        as_kind(LINK, 99),
        as_kind(raw.route(28, 20), 24),
        Datagram(as_kind(LINK, 17), 1234, False),
        as_kind(LINK, 16),
    ]
    assert subjects(await told(wire, 1, *arrived)) == [("new", Link)]


async def test_notices_that_were_dropped_are_told_at_once_and_when_all_is_read(
    wire: FakeWire,
) -> None:
    """net/netlink/af_netlink.c: congested until the queue is empty, and told only once."""
    first, link, last = await told(wire, 3, dropped(), as_kind(LINK, 16))
    assert (first, last) == (Lost(), Lost())
    assert isinstance(link, Notice)


async def test_a_notice_that_was_cut_is_lost(wire: FakeWire) -> None:
    assert await told(wire, 1, Datagram(LINK[:16], 0, True)) == [Lost()]


async def test_another_error_is_raised(wire: FakeWire) -> None:
    with pytest.raises(OSError, match="broken"):
        await told(wire, 1, OSError(errno.EIO, "broken"))
