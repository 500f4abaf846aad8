"""From wanted routes to the routes that shall be there.

A wanted route that leaves something open (the device of a gateway; with a route of the
kernel's its source, scope and IPv6 metric) is satisfied by any route that fills it. So
what shall be there is, for each set: the kernel's own routes, those that are there and
satisfy a wanted one, and new ones. Of one key the first counts: with IPv4 new ones come
before the kernel's; IPv6 takes one more at the end alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from agent.core.errors import invalid
from agent.core.network import Family, RouteType
from agent.handlers.network.kernelroutes import OF_ADDRESSES, is_kernels
from agent.handlers.network.onlink import OnLink
from agent.handlers.network.routetexts import route_text
from agent.handlers.network.routewants import resolved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.core.network import Hop, IpNetwork, Route
    from agent.handlers.network.linknames import LinkNames
    from agent.handlers.network.routewants import Want

SetKey: TypeAlias = tuple[Family, int]


def targets(
    now: Sequence[Route], wanted: Mapping[SetKey, tuple[Want, ...]], names: LinkNames
) -> tuple[Route, ...]:
    """All routes that shall be in the sets. Raises BAD_FIELD for two of one key.

    `now` has more than the sets where gateways without a device are asked for.
    """
    staying = (
        route for route in now if (route.family, route.table) not in wanted or is_kernels(route)
    )
    links = OnLink(chain((want.route for want in chain(*wanted.values())), staying))
    by_set: dict[SetKey, _Matching] = {key: _Matching() for key in wanted}
    for route in now:
        matching = by_set.get((route.family, route.table))
        if matching is not None:
            matching.add(route)
    found: list[Route] = []
    for key, several in wanted.items():
        found += _set_target(by_set[key], [resolved(want, links) for want in several], names)
    return tuple(found)


@dataclass(slots=True)
class _Matching:
    """The routes of one set that are there, and which of them satisfied a wanted one."""

    routes: list[Route] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    by_key: dict[tuple[object, ...], list[int]] = field(default_factory=dict)
    kernels: dict[IpNetwork, list[int]] = field(default_factory=dict)

    def add(self, route: Route) -> None:
        place = len(self.routes)
        self.routes.append(route)
        if is_kernels(route):
            self.kernels.setdefault(route.destination, []).append(place)
        else:
            self.by_key.setdefault(route.key, []).append(place)

    def take(self, want: Want) -> bool:
        """Whether a route that nobody took satisfies this one."""
        for place in self.kernels.get(want.route.destination, ()):
            if place not in self.taken and _kernel_satisfies(self.routes[place], want):
                self.taken.add(place)
                return True
        for place in self.by_key.get(want.route.key, ()):
            if place not in self.taken and _satisfies(self.routes[place], want.route):
                self.taken.add(place)
                return True
        return False

    def staying(self) -> list[Route]:
        return [
            route
            for place, route in enumerate(self.routes)
            if place in self.taken or is_kernels(route)
        ]


def _set_target(there: _Matching, wanted: Sequence[Want], names: LinkNames) -> list[Route]:
    new = [want for want in wanted if not there.take(want)]
    _check_keys(wanted, {want.place for want in new}, names)
    for want in new:
        if want.route.type in OF_ADDRESSES:
            raise invalid(
                f"the kernel makes {want.route.type.name.lower()} routes itself, and there is no "
                f"{route_text(want.route, names)}",
                field=f"{want.place}.type",
                hint="give the interface the address instead",
            )
    made = [want.route for want in new]
    before = bool(made) and made[0].family is Family.V4
    return made + there.staying() if before else there.staying() + made


def _check_keys(wanted: Sequence[Want], new: set[str], names: LinkNames) -> None:
    """No two of one key, unless both are there already: others may make such routes."""
    seen: dict[tuple[object, ...], Want] = {}
    for want in wanted:
        former = seen.setdefault((*want.route.key, _lane(want.route)), want)
        if former is want:
            former = seen.setdefault((*want.route.key, "any"), want)
        joined = _lane(want.route) and _lane(former.route)
        apart = joined and _lane(want.route) != _lane(former.route)
        if former is want or apart or not {want.place, former.place} & new:
            continue
        raise invalid(
            f"{former.place} and {want.place} have one destination and metric: "
            f"{route_text(former.route, names)} and {route_text(want.route, names)}",
            field=want.place,
            hint="give them different metrics, or make them one route with next_hops",
        )


def _lane(route: Route) -> int:
    """IPv6 keeps routes of one key apart that are on link of different interfaces."""
    if route.family is Family.V4 or route.type is not RouteType.UNICAST or len(route.hops) != 1:
        return 0
    return route.hops[0].index if route.hops[0].gateway is None else 0


def _satisfies(there: Route, wanted: Route) -> bool:
    return (
        there.type is wanted.type
        and there.source == wanted.source
        and there.mtu == wanted.mtu
        and there.scope == wanted.scope
        and _same_ways(there.hops, wanted.hops)
    )


def _kernel_satisfies(there: Route, want: Want) -> bool:
    wanted = want.route
    return (
        there.type is wanted.type
        and (want.any_metric or there.metric == wanted.metric)
        and (want.any_scope or there.scope == wanted.scope)
        and wanted.source in (None, there.source)
        and wanted.mtu in (0, there.mtu)
        and _same_ways(there.hops, wanted.hops)
    )


def _same_ways(there: tuple[Hop, ...], wanted: tuple[Hop, ...]) -> bool:
    """In any order; a wanted one without a device is content with any."""
    if there == wanted:
        return True
    if len(there) != len(wanted):
        return False
    return all(
        (has.gateway, has.weight, has.onlink) == (wants.gateway, wants.weight, wants.onlink)
        and wants.index in (0, has.index)
        for has, wants in zip(sorted(there, key=_order), sorted(wanted, key=_order), strict=True)
    )


def _order(hop: Hop) -> tuple[bytes, int, bool, int]:
    gateway = b"" if hop.gateway is None else hop.gateway.packed
    return (gateway, hop.weight, hop.onlink, hop.index)
