"""Which settings of a link differ from what is wanted, and in which order they change: pure.

A link that shall be down goes down first, and one that shall be up comes up last: some
drivers change their address or MTU only while it is down, and a bond takes and gives both.
Facts: net/core/rtnetlink.c (do_setlink), drivers/net/bonding/bond_main.c (bond_enslave).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.network import LinkFlag
from agent.core.rtnl import links

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.core.netlink import Change
    from agent.core.network import InterfaceWish, Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The settings that a link shall have; None, 0 and empty: as they are."""

    up: bool
    mtu: int = 0
    mac: str = ""
    arp: bool | None = None
    multicast: bool | None = None
    all_multicast: bool | None = None
    promiscuous: bool | None = None
    master: int | None = None
    """Its index; 0: none."""
    transmit_queue_length: int | None = None


def goal_of(wish: InterfaceWish, master: int | None) -> Goal:
    """What a wish says of the settings, with its master by index."""
    return Goal(
        up=wish.up,
        mtu=wish.mtu,
        mac=wish.mac,
        arp=wish.arp,
        multicast=wish.multicast,
        all_multicast=wish.all_multicast,
        promiscuous=wish.promiscuous,
        master=master,
        transmit_queue_length=wish.transmit_queue_length,
    )


def plan(link: Link, goal: Goal) -> tuple[Change, ...]:
    """The changes that are left, in order; none where all is as wanted."""
    return tuple(_plan(link, goal))


def _plan(link: Link, goal: Goal) -> Iterator[Change]:
    index, name = link.index, link.name
    if link.up and not goal.up:
        yield links.changed(index, f"set {name} down", up=False)
    if goal.master is not None and goal.master != link.master:
        what = f"put {name} below interface {goal.master}" if goal.master else f"free {name}"
        yield links.changed(index, what, master=goal.master)
    yield from _flags(link, goal)
    length = goal.transmit_queue_length
    if length is not None and length != link.transmit_queue_length:
        what = f"give {name} a transmit queue of {length}"
        yield links.changed(index, what, transmit_queue_length=length)
    if goal.mac and goal.mac != link.mac:
        yield links.changed(index, f"give {name} the MAC address {goal.mac}", mac=goal.mac)
    if goal.mtu and goal.mtu != link.mtu:
        yield links.changed(index, f"give {name} the MTU {goal.mtu}", mtu=goal.mtu)
    if goal.up and not link.up:
        yield links.changed(index, f"set {name} up", up=True)


def _flags(link: Link, goal: Goal) -> Iterator[Change]:
    index, name = link.index, link.name
    if goal.arp is not None and goal.arp != link.arp:
        yield links.changed(index, f"set ARP of {name} {on_off(goal.arp)}", arp=goal.arp)
    many = LinkFlag.MULTICAST in link.flags
    if goal.multicast is not None and goal.multicast != many:
        what = f"set multicast of {name} {on_off(goal.multicast)}"
        yield links.changed(index, what, multicast=goal.multicast)
    every = LinkFlag.ALLMULTI in link.flags
    if goal.all_multicast is not None and goal.all_multicast != every:
        what = f"set all multicast of {name} {on_off(goal.all_multicast)}"
        yield links.changed(index, what, all_multicast=goal.all_multicast)
    promiscuous = LinkFlag.PROMISC in link.flags
    if goal.promiscuous is not None and goal.promiscuous != promiscuous:
        what = f"set promiscuous mode of {name} {on_off(goal.promiscuous)}"
        yield links.changed(index, what, promiscuous=goal.promiscuous)


def on_off(value: bool) -> str:  # noqa: FBT001 - a word for a value
    """How texts say it."""
    return "on" if value else "off"


def in_order(indexes: Sequence[int], above: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Those that others are on top of, or members of, first; `above` has by index what has
    to come before it. A circle is cut anywhere."""
    done: list[int] = []

    def visit(index: int, path: tuple[int, ...]) -> None:
        if index in done or index in path:
            return
        for each in above.get(index, ()):
            if each in indexes:
                visit(each, (*path, index))
        done.append(index)

    for index in indexes:
        visit(index, ())
    return tuple(done)


def around(indexes: Sequence[int], all_links: Sequence[Link]) -> tuple[int, ...]:
    """Those whose settings change along with those of the given ones: their masters, what
    is below them, what is on top of them, and the members of bonds; the given ones first.

    A veth's `parent` is its other end, which stays as it is.
    """
    by_index = {link.index: link for link in all_links}
    found = list(dict.fromkeys(indexes))
    for index in found:
        if (link := by_index.get(index)) is not None:
            for each in _beside(link, all_links):
                if each in by_index and each not in found:
                    found.append(each)
    return tuple(found)


def _beside(link: Link, all_links: Sequence[Link]) -> Iterator[int]:
    """Upwards only from what is itself on top: a bridge's other members are not concerned."""
    yield from (each.index for each in all_links if is_on_top(each) and each.parent == link.index)
    if link.kind in ("bond", "team"):
        yield from (each.index for each in all_links if each.master == link.index)
    if link.master:
        yield link.master


def is_on_top(link: Link) -> bool:
    """Whether `parent` is what the link is on top of."""
    return bool(link.parent) and link.kind != "veth"
