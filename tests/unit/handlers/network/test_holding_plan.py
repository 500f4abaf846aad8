"""From what an interface has to what it shall have: which changes, and in which order."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from agent.core.network import Address, Family, Hop, Link, LinkFlag, Neighbor, Route
from agent.handlers.network.holding import Holding
from agent.handlers.network.holding_plan import plan

pytestmark = [pytest.mark.unit, pytest.mark.network]

DOWN = LinkFlag.BROADCAST | LinkFlag.MULTICAST
UP = DOWN | LinkFlag.UP
LINK = Link(index=4, name="eth0", flags=UP, mtu=1500, mac="02:00:00:00:00:04")
ADDRESS = Address(index=4, interface=ip_interface("192.0.2.1/24"), label="eth0")
ON_LINK = Route(
    family=Family.V4,
    table=254,
    destination=ip_network("198.51.100.0/24"),
    hops=(Hop(index=4),),
)
DEFAULT = Route(
    family=Family.V4,
    table=254,
    destination=ip_network("0.0.0.0/0"),
    hops=(Hop(index=4, gateway=ip_address("198.51.100.9")),),
)
NEIGHBOR = Neighbor(index=4, address=ip_address("192.0.2.7"), mac="02:00:00:00:00:07")
WHOLE = Holding(link=LINK, addresses=(ADDRESS,), routes=(DEFAULT, ON_LINK), neighbors=(NEIGHBOR,))
BARE = Holding(link=replace(LINK, name="eth9", flags=DOWN, mtu=1400, altnames=("old",)))


def words(now: Holding, wanted: Holding) -> list[str]:
    return [change.what for change in plan(now, wanted)]


def test_nothing_is_done_where_nothing_is_missing() -> None:
    assert words(WHOLE, WHOLE) == []


def test_names_then_up_then_addresses_then_routes_on_link_first() -> None:
    assert words(BARE, WHOLE) == [
        "take the name old off eth0",
        "rename eth9 to eth0",
        "give eth0 the MTU 1500",
        "set eth0 up",
        "add 192.0.2.1/24 to eth0",
        "add the route 198.51.100.0/24 (table 254) through eth0",
        "add the route default via 198.51.100.9 (table 254) through eth0",
        "add the neighbour 192.0.2.7 to eth0",
    ]


def test_what_needs_an_address_goes_before_it() -> None:
    assert words(WHOLE, replace(BARE, link=replace(LINK, flags=DOWN))) == [
        "set eth0 down",
        "remove the neighbour 192.0.2.7 of eth0",
        "remove the route default via 198.51.100.9 (table 254) through eth0",
        "remove the route 198.51.100.0/24 (table 254) through eth0",
        "remove 192.0.2.1/24 from eth0",
    ]


def test_a_neighbour_of_another_address_is_written_over() -> None:
    """Removed first it would be looked for by whoever sends meanwhile."""
    other = replace(WHOLE, neighbors=(replace(NEIGHBOR, mac="02:00:00:00:00:08"),))
    assert words(other, WHOLE) == ["add the neighbour 192.0.2.7 to eth0"]


def test_the_index_is_that_of_now() -> None:
    elsewhere = WHOLE.at(17)
    assert words(elsewhere, WHOLE) == []
    assert {hop.index for route in elsewhere.routes for hop in route.hops} == {17}


def test_apart_it_has_no_master_and_no_route_that_others_share() -> None:
    hops = (Hop(index=4), Hop(index=5))
    tied = replace(WHOLE, link=replace(LINK, master=3), shared=(replace(ON_LINK, hops=hops),))
    assert tied.apart() == WHOLE


@pytest.mark.timeout(60)
def test_a_hundred_thousand_routes_hold_nobody_up() -> None:
    """Each is looked up, not compared with all others, which would take hours."""
    networks = [ip_network((0x0A000000 + number, 32)) for number in range(100_000)]
    many = replace(WHOLE, routes=tuple(replace(ON_LINK, destination=each) for each in networks))
    assert words(many, replace(many, routes=(*reversed(many.routes[1:]), DEFAULT))) == [
        "remove the route 10.0.0.0/32 (table 254) through eth0",
        "add the route default via 198.51.100.9 (table 254) through eth0",
    ]
