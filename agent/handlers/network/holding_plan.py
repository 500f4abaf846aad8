"""From what an interface has to what it shall have: the changes, in an order that works.

Pure, and used both ways: to give an interface its things, and to take a failure back.
What is there already is left alone, so a second plan is empty.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from agent.core.network import LinkFlag, NeighborFlag
from agent.core.rtnl import addresses, links, neighbors, routes
from agent.handlers.network import interface_addresses, planning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.core.netlink import Change
    from agent.core.network import Address, Link, Neighbor, Route
    from agent.handlers.network.holding import Holding

    Key: TypeAlias = tuple[object, ...]


def plan(now: Holding, wanted: Holding) -> tuple[Change, ...]:
    """What makes `now` (an interface as it is) into `wanted` (of any index)."""
    wanted = wanted.at(now.link.index)
    # Going down takes addresses and routes, so it comes before them, and up too.
    return (
        *_link(now.link, wanted.link),
        *_gone(now, wanted),
        *_addresses(now, wanted),
        *_routes(now, wanted),
        *_neighbors(now, wanted),
    )


def _link(now: Link, wanted: Link) -> Iterator[Change]:
    yield from _names(now, wanted)
    yield from planning.plan(replace(now, name=wanted.name), _goal(wanted))


def _goal(wanted: Link) -> planning.Goal:
    return planning.Goal(
        up=wanted.up,
        mtu=wanted.mtu,
        mac=wanted.mac,
        arp=wanted.arp,
        multicast=LinkFlag.MULTICAST in wanted.flags,
        all_multicast=LinkFlag.ALLMULTI in wanted.flags,
        promiscuous=LinkFlag.PROMISC in wanted.flags,
        master=wanted.master,
        transmit_queue_length=wanted.transmit_queue_length,
    )


def _names(now: Link, wanted: Link) -> Iterator[Change]:
    index, name = now.index, wanted.name
    for each in now.altnames:
        # One that shall be the name must be free for it.
        if each not in wanted.altnames:
            yield links.altname_removed(index, each, f"take the name {each} off {name}")
    if now.name != name:
        yield links.changed(index, f"rename {now.name} to {name}", name=name)
    for each in wanted.altnames:
        if each not in now.altnames:
            yield links.altname_added(index, each, f"call {name} {each} too")


def _gone(now: Holding, wanted: Holding) -> Iterator[Change]:
    """Neighbours and routes before the addresses that they may need."""
    name = wanted.link.name
    # There may be a hundred thousand of them.
    entries = {_entry(each) for each in wanted.neighbors}
    for neighbor in now.neighbors:
        # An entry of that address will be written over it.
        if _entry(neighbor) not in entries:
            what = f"remove the neighbour {neighbor.address} of {name}"
            yield neighbors.removed(neighbor, what)
    asked = frozenset(wanted.routes)
    for route in now.routes:
        if route not in asked:
            yield routes.removed(route, f"remove the route {route_words(route)} through {name}")


def _addresses(now: Holding, wanted: Holding) -> Iterator[Change]:
    name = wanted.link.name
    asked = tuple(_labelled(each, name) for each in wanted.addresses)
    for step in interface_addresses.plan(now.addresses, asked, link=now.link):
        what = f"{step.address.interface}"
        if isinstance(step, interface_addresses.Remove):
            yield addresses.removed(step.address, f"remove {what} from {name}")
        else:
            # One that is there and made anew still has the label of a former name.
            yield addresses.added(_labelled(step.address, name), f"add {what} to {name}")


def _labelled(address: Address, name: str) -> Address:
    """An IPv4 label is the interface's name, or that with ":" and something."""
    if not address.label:
        return address
    suffix = address.label.partition(":")[2]
    return replace(address, label=f"{name}:{suffix}" if suffix else name)


def _routes(now: Holding, wanted: Holding) -> Iterator[Change]:
    """Those on link first: gateways are reached through them."""
    name = wanted.link.name
    present = frozenset((*now.routes, *now.shared))
    missing = [route for route in wanted.routes if route not in present]
    for route in sorted(missing, key=lambda route: route.hops[0].gateway is not None):
        # Appended: another interface may have a route to there by now, which stays.
        yield routes.appended(route, f"add the route {route_words(route)} through {name}")
    for route in wanted.shared:
        if route not in present:
            yield routes.replaced(route, f"add the route {route_words(route)} of several ways")


def _neighbors(now: Holding, wanted: Holding) -> Iterator[Change]:
    present = frozenset(now.neighbors)
    for neighbor in wanted.neighbors:
        if neighbor not in present:
            what = f"add the neighbour {neighbor.address} to {wanted.link.name}"
            yield neighbors.replaced(neighbor, what)


def _entry(neighbor: Neighbor) -> Key:
    return (neighbor.address, NeighborFlag.PROXY in neighbor.flags)


def route_words(route: Route) -> str:
    """A route in short, as `ip route` would say it."""
    destination = "default" if route.destination.prefixlen == 0 else str(route.destination)
    via = next((f" via {hop.gateway}" for hop in route.hops if hop.gateway is not None), "")
    metric = f" metric {route.metric}" if route.metric else ""
    return f"{destination}{via}{metric} (table {route.table})"
