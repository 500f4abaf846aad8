"""The kernel's routing tables, as far as the order of routes of one key goes.

By fib_table_insert and fib_table_delete of net/ipv4/fib_trie.c, fib6_add_rt2node and
ip6_route_del of net/ipv6. Checked against a real kernel by tests/privileged/test_routes.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from agent.core.network import Family, Route, RouteType
from agent.handlers.network.routegroups import Op, Step


class FibRefusedError(Exception):
    """EEXIST, ESRCH."""


class Fib:
    """Routes by key, in their order."""

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self._groups: dict[tuple[object, ...], list[Route]] = {}
        for route in routes:
            self._groups.setdefault(route.key, []).append(route)

    @property
    def routes(self) -> tuple[Route, ...]:
        return tuple(route for group in self._groups.values() for route in group)

    def group(self, key: tuple[object, ...]) -> list[Route]:
        return self._groups.get(key, [])

    def do(self, step: Step) -> None:
        group = self._groups.setdefault(step.route.key, [])
        if step.op is Op.REMOVE:
            _remove(group, step.route)
        elif step.op is Op.ADD and group:
            raise FibRefusedError("EEXIST")
        elif step.route.family is Family.V4:
            _insert_v4(group, step)
        else:
            _insert_v6(group, step)


def _insert_v4(group: list[Route], step: Step) -> None:
    same = [route for route in group if _same_but_protocol(route, step.route)]
    if same and not (step.op is Op.REPLACE and same[0] is group[0]):
        raise FibRefusedError("EEXIST")
    match step.op:
        case Op.REPLACE:
            group[:1] = [step.route]
        case Op.APPEND:
            group.append(step.route)
        case _:
            group.insert(0, step.route)


def _same_but_protocol(one: Route, other: Route) -> bool:
    """fib_find_info compares the protocol as well."""
    return one == other


def _insert_v6(group: list[Route], step: Step) -> None:
    route = step.route
    place = _sibling(group, route)
    if step.op is Op.REPLACE:
        if place is None:
            place = 0 if group else None
        if place is None:
            group.append(route)
        else:
            group[place] = route
        return
    if any(_duplicate(other, route) for other in group):
        raise FibRefusedError("EEXIST")
    if place is None or not _joins(route):
        group.append(route)
    else:
        group[place] = dataclasses.replace(group[place], hops=(*group[place].hops, *route.hops))


def _joins(route: Route) -> bool:
    """rt6_qualify_for_ecmp: has a gateway and is not of a router's advertisement."""
    return route.protocol != 9 and any(hop.gateway is not None for hop in route.hops)


def _sibling(group: list[Route], route: Route) -> int | None:
    for place, other in enumerate(group):
        if _joins(other) == _joins(route):
            return place
    return None


def _duplicate(one: Route, other: Route) -> bool:
    """nexthop_same: the way alone is compared. One that rejects has the way to lo."""
    ways = [{(hop.gateway, hop.index) for hop in each.hops} or {(None, 1)} for each in (one, other)]
    return bool(ways[0] & ways[1])


def _remove(group: list[Route], route: Route) -> None:
    for place, other in enumerate(group):
        if _meant(route, other):
            del group[place]
            return
    raise FibRefusedError("ESRCH")


def _meant(route: Route, other: Route) -> bool:
    if route.protocol not in (0, other.protocol):
        return False
    if route.family is Family.V4:
        same = (route.type, route.scope) == (other.type, other.scope)
        if not same or route.source not in (None, other.source):
            return False
        if route.mtu not in (0, other.mtu):
            return False
    return _ways_meant(route, other)


def _ways_meant(route: Route, other: Route) -> bool:
    if len(route.hops) > 1:
        return set(route.hops) == set(other.hops)
    if not route.hops or not other.hops:
        return route.type is not RouteType.UNICAST or route.hops == other.hops
    hop, first = route.hops[0], other.hops[0]
    return hop.index in (0, first.index) and hop.gateway in (None, first.gateway)
