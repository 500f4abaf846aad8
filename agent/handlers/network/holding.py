"""Everything that an interface has, as one value: read it, and make an interface be that again.

An interface that is set down, moved to another namespace or renamed loses parts of what it
has. So it is read before (`held`), and given back afterwards (`give_back`), to the same
interface or, by its new index, to one that came back from elsewhere.

Facts: net/core/dev.c (what a change of namespace takes), net/ipv4/devinet.c and
net/ipv6/addrconf.c (what `down` takes).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Reason, not_found
from agent.core.network import KERNELS_OWN, Family, NeighborFlag, NeighborState
from agent.core.rtnl import addresses, links, neighbors, routes
from agent.handlers.network.attempts import attempt
from agent.handlers.network.holding_plan import plan
from agent.handlers.network.interface_addresses import is_kernels

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.netlink import Change, Netlink
    from agent.core.network import Address, Link, Neighbor, Route

__all__ = ["Holding", "give_back", "held", "plan"]

_ROUNDS = 4
"""Changes have side effects (one that wants the interface down takes its addresses), so
what is there is looked at again after each round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What an interface has, but for what the kernel makes by itself.

    `routes` are those that go through it alone, of every table; `shared` those of several
    ways that use it too. `neighbors` are the permanent entries and the proxies.
    """

    link: Link
    addresses: tuple[Address, ...] = ()
    routes: tuple[Route, ...] = ()
    shared: tuple[Route, ...] = ()
    neighbors: tuple[Neighbor, ...] = ()

    def at(self, index: int) -> Holding:
        """The same of the interface with another index."""
        old = self.link.index
        if index == old:
            return self
        return Holding(
            link=replace(self.link, index=index),
            addresses=tuple(replace(each, index=index) for each in self.addresses),
            routes=tuple(_through(each, old, index) for each in self.routes),
            shared=tuple(_through(each, old, index) for each in self.shared),
            neighbors=tuple(replace(each, index=index) for each in self.neighbors),
        )

    def called(self, name: str) -> Holding:
        """The same of the interface under another name."""
        return replace(self, link=replace(self.link, name=name))

    def apart(self) -> Holding:
        """The same without what ties it to other interfaces of its namespace."""
        return replace(self, link=replace(self.link, master=0), shared=())


async def held(netlink: Netlink, index: int, deadline: Deadline) -> Holding:
    """What the interface with this index has now.

    Raises UNKNOWN_INTERFACE, NetlinkRefusal, OPERATION_TIMED_OUT.
    """
    link = await links.one_link(netlink, deadline, index=index)
    if link is None:
        raise not_found(
            f"there is no interface with index {index} (any more)",
            reason=Reason.UNKNOWN_INTERFACE,
            ifindex=index,
        )
    owned = await addresses.all_addresses(netlink, deadline, index=index)
    through = await _routes(netlink, index, deadline)
    entries = await neighbors.all_neighbors(netlink, deadline)
    return Holding(
        link=link,
        addresses=tuple(each for each in owned if not is_kernels(each, link)),
        routes=tuple(route for route in through if len(route.hops) == 1),
        shared=tuple(route for route in through if len(route.hops) > 1),
        neighbors=tuple(each for each in entries if each.index == index and _lasting(each)),
    )


async def give_back(
    netlink: Netlink,
    holding: Holding,
    deadline: Deadline,
    *,
    index: int | None = None,
    name: str | None = None,
) -> tuple[str, ...]:
    """Make the interface be that again; returns what could not be put back, and why.

    `index`: the one that it has now; `name`: the one that it shall have. Goes on after
    refusals. Nothing is raised for what the kernel refuses, nor for a deadline that
    passes: it is told. An interface that is not there is one line.
    """
    index = holding.link.index if index is None else index
    wanted = holding.at(index).called(name or holding.link.name)
    failures: dict[str, str] = {}
    try:
        await _rounds(netlink, wanted, failures, deadline)
        left = plan(await held(netlink, index, deadline), wanted)
    except (AgentError, OSError) as error:
        return (*failures.values(), str(error))
    return tuple(failures.get(change.what, f"{change.what}: it did not stay") for change in left)


async def _rounds(
    netlink: Netlink, wanted: Holding, failures: dict[str, str], deadline: Deadline
) -> None:
    """Until nothing is left to do, or what is left was refused before."""
    before: tuple[Change, ...] = ()
    for _ in range(_ROUNDS):
        changes = plan(await held(netlink, wanted.link.index, deadline), wanted)
        if not changes or changes == before:
            return
        before = changes
        failures.clear()
        for change in changes:
            problem = await attempt(netlink, change, wanted.link.index, deadline)
            if problem:
                failures[change.what] = problem


async def _routes(netlink: Netlink, index: int, deadline: Deadline) -> tuple[Route, ...]:
    """Those through the interface that the kernel did not make."""
    found: list[Route] = []
    for family in Family:
        found += await routes.all_routes(netlink, deadline, family=family, index=index)
    return tuple(
        route
        for route in found
        if route.protocol not in KERNELS_OWN and any(hop.index == index for hop in route.hops)
    )


def _lasting(neighbor: Neighbor) -> bool:
    learned = NeighborFlag.EXT_LEARNED in neighbor.flags
    proxy = NeighborFlag.PROXY in neighbor.flags
    return not learned and (proxy or NeighborState.PERMANENT in neighbor.state)


def _through(route: Route, old: int, new: int) -> Route:
    hops = (replace(hop, index=new if hop.index == old else hop.index) for hop in route.hops)
    return replace(route, hops=tuple(hops))
