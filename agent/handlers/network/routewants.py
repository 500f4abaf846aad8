"""Wanted routes with their interfaces' numbers and what the kernel fills in.

What a request leaves open: the device of a gateway, found by the routes on link; the
scope, which is the kernel's rule; the metric, which is 1024 with IPv6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from agent.core.network import Family, Hop, Route, Scope
from agent.handlers.network.routetexts import destination_text, set_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.network import HopWish, RouteSet, RouteWish
    from agent.handlers.network.linknames import LinkNames
    from agent.handlers.network.onlink import OnLink

V6_METRIC: Final = 1024
"""IP6_RT_PRIO_USER: what the kernel makes of metric 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A wanted route with its devices' numbers; `place` is where the request has it."""

    route: Route
    any_metric: bool
    any_scope: bool
    place: str


def wants(each: RouteSet, names: LinkNames, where: str) -> tuple[Want, ...]:
    """The routes of a set. Raises NOT_FOUND UNKNOWN_INTERFACE."""
    return tuple(
        _want(wish, each, names, f"{where}.routes[{place}]")
        for place, wish in enumerate(each.routes)
    )


def without_device(wanted: Iterable[Want]) -> Iterable[Family]:
    """The families of gateways whose devices have to be found."""
    for want in wanted:
        for hop in want.route.hops:
            if hop.gateway is not None and not hop.index:
                yield Family.of(hop.gateway)


def _want(wish: RouteWish, each: RouteSet, names: LinkNames, place: str) -> Want:
    text = f"route {destination_text(wish.destination)} of {set_text(each.family, each.table)}"
    hops = tuple(_hop(hop, names, text, alone=len(wish.hops) == 1) for hop in wish.hops)
    v6 = each.family is Family.V6
    route = Route(
        family=each.family,
        table=each.table,
        destination=wish.destination,
        type=wish.type,
        hops=hops,
        source=wish.source,
        metric=wish.metric or (V6_METRIC if v6 else 0),
        scope=Scope.UNIVERSE if v6 else _scope(wish),
        mtu=wish.mtu,
    )
    return Want(
        route=route,
        any_metric=v6 and not wish.metric,
        any_scope=v6 or wish.scope is None,
        place=place,
    )


def _hop(hop: HopWish, names: LinkNames, text: str, *, alone: bool) -> Hop:
    return Hop(
        gateway=hop.gateway,
        index=names.index(hop.device, of=text) if hop.device else 0,
        weight=1 if alone else hop.weight,
        onlink=hop.onlink,
    )


def _scope(wish: RouteWish) -> int:
    if wish.scope is not None:
        return wish.scope
    if not wish.hops or any(hop.gateway is not None for hop in wish.hops):
        return Scope.UNIVERSE
    return Scope.LINK


def resolved(want: Want, links: OnLink) -> Want:
    """With the devices of its gateways where they can be told."""
    route = want.route
    if all(hop.index or hop.gateway is None for hop in route.hops):
        return want
    hops = tuple(_with_device(hop, links, route.table) for hop in route.hops)
    return replace(want, route=replace(route, hops=hops))


def _with_device(hop: Hop, links: OnLink, table: int) -> Hop:
    if hop.index or hop.gateway is None:
        return hop
    way = links.find(hop.gateway, table)
    index = 0 if way is None else way.index
    return replace(hop, index=index)
