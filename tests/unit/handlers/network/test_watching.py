"""Notices become events where somebody would see a difference."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import Reason, timed_out
from agent.core.network import (
    Address,
    AddressFlag,
    Counters,
    Family,
    Hop,
    Link,
    LinkFlag,
    Protocol,
    Route,
    RouteType,
    Scope,
)
from agent.core.rtnl.monitor import Lost, Notice
from agent.handlers.network.bursts import MOST
from agent.handlers.network.watching import NetworkWatcher
from tests.fakes.managers import FakeEvents
from tests.fakes.timers import FakeTimers

pytestmark = [pytest.mark.unit, pytest.mark.network]

UP = LinkFlag.UP | LinkFlag.RUNNING | LinkFlag.LOWER_UP
ETH0 = Link(index=2, name="eth0", flags=UP, mtu=1500, mac="02:00:00:00:00:01", carrier=True)
BR0 = Link(index=9, name="br0", flags=UP, mtu=1500, mac="02:00:00:00:00:09", carrier=True)
FOUR = Address(index=2, interface=ip_interface("192.0.2.10/24"))
SIX = Address(index=2, interface=ip_interface("fe80::1/64"), scope=Scope.LINK)
ROUTE = Route(
    family=Family.V4,
    table=254,
    destination=ip_network("198.51.100.0/24"),
    hops=(Hop(gateway=ip_address("192.0.2.1"), index=2),),
    metric=100,
    protocol=Protocol.DHCP,
)


@dataclass(slots=True)
class FakeMonitor:
    """Gives what a test puts in; `idle` tells that all of it was taken."""

    queue: asyncio.Queue[Notice | Lost] = field(default_factory=asyncio.Queue)

    async def notices(self) -> AsyncIterator[Notice | Lost]:
        while True:
            notice = await self.queue.get()
            yield notice
            self.queue.task_done()


@dataclass(slots=True)
class Bench:
    """A watcher that runs; `links` and `addresses` are what a look finds."""

    links: list[Link] = field(default_factory=lambda: [ETH0, BR0])
    addresses: list[Address] = field(default_factory=lambda: [FOUR])
    monitor: FakeMonitor = field(default_factory=FakeMonitor)
    events: FakeEvents = field(default_factory=FakeEvents)
    timers: FakeTimers = field(default_factory=FakeTimers)
    error: Exception | None = None
    woken: list[None] = field(default_factory=list)
    watcher: NetworkWatcher = field(init=False)

    def __post_init__(self) -> None:
        self.watcher = NetworkWatcher(
            self.monitor,
            self.look,
            self.events,
            on_link=lambda: self.woken.append(None),
            timers=self.timers,
        )

    async def look(self, _deadline: Deadline) -> tuple[tuple[Link, ...], tuple[Address, ...]]:
        if self.error is not None:
            raise self.error
        return tuple(self.links), tuple(self.addresses)

    async def tells(self, *notices: Notice | Lost) -> list[tuple[str, str, dict[str, str]]]:
        """What is published of these notices."""
        before = len(self.events.published)
        for notice in notices:
            self.monitor.queue.put_nowait(notice)
        async with asyncio.timeout(10):
            await self.monitor.queue.join()
        return self.events.published[before:]

    async def changes(self, *notices: Notice | Lost) -> list[str]:
        """Of each event its subject and change."""
        told = await self.tells(*notices)
        return [f"{subject} {details['change']}" for _, subject, details in told]


@contextlib.asynccontextmanager
async def watching(bench: Bench) -> AsyncIterator[Bench]:
    task = asyncio.create_task(bench.watcher.run())
    async with asyncio.timeout(10):
        await bench.watcher.ready.wait()
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with watching(Bench()) as running:
        yield running


def new(subject: Any, **parts: bool) -> Notice:
    return Notice(kind="new", subject=subject, **parts)


def gone(subject: Any, **parts: bool) -> Notice:
    return Notice(kind="gone", subject=subject, **parts)


async def test_what_is_there_at_the_beginning_is_no_event(bench: Bench) -> None:
    assert bench.events.published == []


async def test_an_interface_changes_its_state(bench: Bench) -> None:
    down = replace(ETH0, flags=LinkFlag(0))
    (told,) = await bench.tells(new(replace(down, carrier=False, master=9)))
    assert told == (
        "interface_changed",
        "eth0",
        {
            "change": "changed",
            "ifindex": "2",
            "up": "no",
            "carrier": "no",
            "mtu": "1500",
            "mac": "02:00:00:00:00:01",
            "master": "br0",
        },
    )


@pytest.mark.parametrize(
    "difference",
    [
        {"counters": Counters(receive_bytes=1)},
        {"operstate": 6},
        {"transmit_queue_length": 7},
        {"altnames": ("uplink",)},
        {"flags": UP | LinkFlag.PROMISC},
    ],
)
async def test_a_message_without_a_visible_change_is_no_event(
    bench: Bench, difference: dict[str, Any]
) -> None:
    assert await bench.tells(new(replace(ETH0, **difference)), new(ETH0)) == []


@pytest.mark.parametrize(
    ("difference", "name", "value"),
    [
        ({"carrier": False}, "carrier", "no"),
        ({"mtu": 9000}, "mtu", "9000"),
        ({"mac": "02:00:00:00:00:77"}, "mac", "02:00:00:00:00:77"),
        ({"master": 77}, "master", "if77"),
    ],
)
async def test_each_part_of_its_state_counts(
    bench: Bench, difference: dict[str, Any], name: str, value: str
) -> None:
    ((_, _, details),) = await bench.tells(new(replace(ETH0, **difference)))
    assert details[name] == value


async def test_interfaces_come_go_and_get_other_names(bench: Bench) -> None:
    nic = replace(ETH0, index=3, name="eth1")
    web = replace(nic, name="web0", mtu=9000)
    told = await bench.tells(new(nic), new(web), gone(web), gone(web))
    assert [(subject, details["change"]) for _, subject, details in told] == [
        ("eth1", "appeared"),
        ("web0", "renamed"),
        ("web0", "gone"),
    ]
    assert (told[1][2]["former_name"], told[1][2]["mtu"]) == ("eth1", "9000")


async def test_an_interface_goes_into_a_container_and_comes_back(bench: Bench) -> None:
    with bench.watcher.moving(2, "web"):
        pass
    told = await bench.tells(gone(FOUR), gone(ETH0), new(ETH0), gone(ETH0))
    assert [(subject, details["change"]) for _, subject, details in told] == [
        ("eth0", "removed"),
        ("eth0", "moved"),
        ("eth0", "appeared"),
        ("eth0", "gone"),
    ]
    assert told[1][2]["container_id"] == "web"


async def test_one_that_could_not_be_moved_is_no_move(bench: Bench) -> None:
    with pytest.raises(OSError, match="no"), bench.watcher.moving(2, "web"):
        raise OSError("no")
    assert (await bench.changes(gone(ETH0)))[-1] == "eth0 gone"


async def test_addresses_come_and_go(bench: Bench) -> None:
    tentative = replace(SIX, flags=AddressFlag.TENTATIVE)
    told = await bench.tells(new(tentative), new(SIX), new(FOUR), gone(FOUR), gone(FOUR))
    assert told == [
        (
            "address_changed",
            "eth0",
            {"change": "added", "address": "fe80::1/64", "scope": "link"},
        ),
        (
            "address_changed",
            "eth0",
            {"change": "removed", "address": "192.0.2.10/24", "scope": "global"},
        ),
    ]


async def test_addresses_that_differ_in_the_other_end_are_two(bench: Bench) -> None:
    point = replace(FOUR, peer=ip_address("192.0.2.77"))
    assert await bench.changes(new(point), gone(FOUR)) == ["eth0 added", "eth0 removed"]


async def test_a_route_of_somebody_else(bench: Bench) -> None:
    told = await bench.tells(new(ROUTE), new(ROUTE, replaced=True), gone(ROUTE))
    assert told[0] == (
        "route_changed",
        "eth0",
        {
            "change": "added",
            "family": "v4",
            "table": "254",
            "destination": "198.51.100.0/24",
            "gateway": "192.0.2.1",
            "metric": "100",
            "protocol": "dhcp",
        },
    )
    assert [details["change"] for _, _, details in told] == ["added", "replaced", "removed"]


async def test_a_default_route_of_several_ways(bench: Bench) -> None:
    hops = (Hop(gateway=ip_address("fe80::1"), index=2), Hop(index=9))
    route = replace(ROUTE, family=Family.V6, destination=ip_network("::/0"), hops=hops)
    ((_, subject, details),) = await bench.tells(new(replace(route, protocol=186)))
    assert (subject, details["destination"], details["gateway"]) == ("", "default", "fe80::1")
    assert (details["family"], details["protocol"]) == ("v6", "186")


async def test_routes_that_are_ours_or_the_kernels_are_no_event(bench: Bench) -> None:
    local = replace(ROUTE, type=RouteType.LOCAL, protocol=Protocol.BOOT)
    kernels = replace(ROUTE, protocol=Protocol.KERNEL)
    told = await bench.tells(new(ROUTE, own=True), gone(ROUTE, own=True), new(local), new(kernels))
    assert told == []
    advertised = replace(ROUTE, protocol=Protocol.RA, family=Family.V6)
    ((_, _, details),) = await bench.tells(new(advertised))
    assert details["protocol"] == "ra"


async def test_very_many_routes_in_a_second_are_one_event(bench: Bench) -> None:
    assert len(await bench.tells(*[new(ROUTE)] * (MOST + 10))) == MOST
    bench.timers.pass_by(1)
    assert bench.events.published[MOST:] == [
        ("route_changed", "", {"change": "many", "count": "10"})
    ]
    assert await bench.changes(new(ROUTE)) == ["eth0 added"]


async def test_what_is_held_back_is_told_before_the_end() -> None:
    async with watching(Bench()) as other:
        await other.tells(*[new(ROUTE)] * (MOST + 10))
    assert other.events.published[MOST:] == [
        ("route_changed", "", {"change": "many", "count": "10"})
    ]


async def test_after_a_loss_the_differences_are_told() -> None:
    async with watching(Bench()) as bench:
        bench.links = [replace(ETH0, mtu=9000), replace(ETH0, index=4, name="eth2")]
        bench.addresses = [SIX]
        told = await bench.changes(Lost(), Lost())
        assert told == ["eth0 removed", "br0 gone", "eth0 changed", "eth2 appeared", "eth0 added"]
    # Of routes nobody knows which: once for the second in which notices were lost.
    assert bench.events.published[5:] == [
        ("route_changed", "", {"change": "many", "count": "0", "lost": "yes"})
    ]


@pytest.mark.parametrize("error", [OSError("x"), timed_out("x", reason=Reason.OPERATION_TIMED_OUT)])
async def test_a_look_that_fails_changes_nothing_and_notices_go_on(error: Exception) -> None:
    async with watching(Bench()) as bench:
        bench.error = error
        assert await bench.changes(Lost(), gone(BR0)) == ["br0 gone"]


async def test_an_interface_whose_end_was_lost_takes_its_addresses_along(bench: Bench) -> None:
    assert await bench.changes(gone(ETH0)) == ["eth0 removed", "eth0 gone"]


async def test_who_waits_for_an_interface_is_woken_by_any_difference(bench: Bench) -> None:
    """Another name is one, and no event."""
    named = replace(ETH0, altnames=("uplink",))
    nic = replace(ETH0, index=3, name="eth1")
    for notice, times in ((new(ETH0), 0), (new(named), 1), (new(nic), 2), (gone(nic), 3)):
        await bench.tells(notice)
        assert len(bench.woken) == times


async def test_a_socket_that_fails_ends_the_watch_and_holds_up_nobody() -> None:
    bench = Bench(error=RuntimeError("no kernel"))
    with pytest.raises(RuntimeError, match="no kernel"):
        await bench.watcher.run()
    assert bench.watcher.ready.is_set()
