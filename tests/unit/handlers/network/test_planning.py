"""Which settings change, in which order, and what else changes with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.network import Link, LinkFlag
from agent.handlers.network.planning import Goal, around, in_order, plan

pytestmark = [pytest.mark.unit, pytest.mark.network]

DOWN = Link(index=2, name="eth0", flags=LinkFlag.BROADCAST | LinkFlag.MULTICAST, mtu=1500)
UP = replace(DOWN, flags=DOWN.flags | LinkFlag.UP)


def words(link: Link, goal: Goal) -> list[str]:
    return [change.what for change in plan(link, goal)]


def test_nothing_to_do() -> None:
    assert plan(UP, Goal(up=True)) == ()
    same = Goal(up=True, mtu=1500, arp=True, multicast=True, master=0, transmit_queue_length=0)
    assert plan(UP, same) == ()


def test_up_comes_last_and_down_first() -> None:
    """Some drivers change address and MTU only while they are down."""
    wanted = Goal(up=True, mtu=9000, mac="02:00:00:00:00:01", master=7)
    assert words(DOWN, wanted) == [
        "put eth0 below interface 7",
        "give eth0 the MAC address 02:00:00:00:00:01",
        "give eth0 the MTU 9000",
        "set eth0 up",
    ]
    assert words(UP, replace(wanted, up=False))[0] == "set eth0 down"


def test_flags() -> None:
    wanted = Goal(up=True, arp=False, multicast=False, all_multicast=True, promiscuous=True)
    assert words(UP, wanted) == [
        "set ARP of eth0 off",
        "set multicast of eth0 off",
        "set all multicast of eth0 on",
        "set promiscuous mode of eth0 on",
    ]


@given(st.dictionaries(st.integers(1, 8), st.lists(st.integers(0, 8), max_size=2), max_size=8))
def test_what_is_below_comes_first(above: dict[int, list[int]]) -> None:
    indexes = sorted(above)
    order = in_order(indexes, above)
    assert sorted(order) == indexes
    if not _circular(above):
        for index in indexes:
            for each in above[index]:
                assert each not in indexes or order.index(each) < order.index(index)


def _circular(above: dict[int, list[int]]) -> bool:
    def reaches(start: int, goal: int, seen: frozenset[int]) -> bool:
        return any(
            each == goal or (each not in seen and reaches(each, goal, seen | {each}))
            for each in above.get(start, ())
        )

    return any(reaches(index, index, frozenset()) for index in above)


def test_what_changes_along() -> None:
    """A bond's members and what is on top; a bridge's other ports and a veth's end do not."""
    links = [
        replace(DOWN, index=2, name="eth0", master=4),
        replace(DOWN, index=3, name="eth1", master=4),
        replace(DOWN, index=4, name="bond0", kind="bond", master=9),
        replace(DOWN, index=5, name="bond0.7", kind="vlan", parent=4),
        replace(DOWN, index=6, name="veth0", kind="veth", parent=7),
        replace(DOWN, index=7, name="veth1", kind="veth", parent=6),
        replace(DOWN, index=8, name="port", master=9),
        replace(DOWN, index=9, name="br0", kind="bridge"),
    ]
    assert set(around([2], links)) == {2, 3, 4, 5, 9}
    assert around([6], links) == (6,)
    assert around([8], links) == (8, 9)
