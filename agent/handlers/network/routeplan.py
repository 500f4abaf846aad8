"""The order of changes: from the routes there to those wanted, without a gap.

1. Routes on link are made, those of IPv6 first: gateways are looked for among them, and
   an IPv4 route may have an IPv6 gateway.
2. What hides such a route from a gateway, and goes anyway, goes: IPv6 takes no gateway
   that is itself behind one.
3. Routes with gateways are made, those that would hide another one's gateway last.
4. Rules change (the caller does).
5. What is too much goes, gateways first.

So what replaces a route is there before that one goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.network import MAIN_TABLE, Family
from agent.handlers.network.onlink import OnLink
from agent.handlers.network.routegroups import GroupPlan, Op, Step, group_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.core.network import Route

__all__ = ["Op", "RoutePlan", "Step", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePlan:
    """Changes, each part to be done before the next one is begun; rules change between
    `making` and `removing`."""

    making: tuple[tuple[Step, ...], ...] = ()
    removing: tuple[Step, ...] = ()

    def __bool__(self) -> bool:
        return bool(any(self.making) or self.removing)


def plan(now: Sequence[Route], target: Sequence[Route]) -> RoutePlan:
    """From `now` to `target`: each all routes of the same tables, those of one key in the
    kernel's order. Pure, O(n log n)."""
    groups = [
        found
        for has, shall in _groups(now, target)
        if (found := group_plan(has, shall)).making or found.removing
    ]
    if not groups:
        return RoutePlan()
    on_link = [group for group in groups if not _needs_gateway(group)]
    behind = [group for group in groups if _needs_gateway(group)]
    hiding = _Hiding(groups, OnLink(target))
    removals = [step for group in groups for step in group.removing]
    early = [step for step in removals if hiding.hides(step.route)]
    late = [step for step in removals if not hiding.hides(step.route)]
    hiding_last = sorted(behind, key=lambda group: (hiding.group_hides(group), _rank(group)))
    return RoutePlan(
        making=(_made(sorted(on_link, key=_rank)), tuple(early), _made(hiding_last)),
        removing=tuple(sorted(late, key=_on_link_last)),
    )


def _groups(
    now: Iterable[Route], target: Iterable[Route]
) -> Iterator[tuple[Sequence[Route], Sequence[Route]]]:
    by_key: dict[tuple[object, ...], tuple[list[Route], list[Route]]] = {}
    for route in target:
        by_key.setdefault(route.key, ([], []))[1].append(route)
    for route in now:
        by_key.setdefault(route.key, ([], []))[0].append(route)
    for has, shall in by_key.values():
        if has != shall:
            yield has, shall


def _made(groups: Iterable[GroupPlan]) -> tuple[Step, ...]:
    return tuple(step for group in groups for step in group.making)


def _rank(group: GroupPlan) -> tuple[bool, bool]:
    route = (*group.making, *group.removing)[0].route
    return (route.family is Family.V4, route.table != MAIN_TABLE)


def _needs_gateway(group: GroupPlan) -> bool:
    return any(
        hop.gateway is not None
        for step in group.making
        if step.op is not Op.REMOVE
        for hop in step.route.hops
    )


def _on_link_last(step: Step) -> bool:
    return all(hop.gateway is None for hop in step.route.hops)


class _Hiding:
    """Which IPv6 routes hide the way to a gateway that is about to be used: those that are
    nearer to it than the route on link."""

    def __init__(self, groups: Sequence[GroupPlan], links: OnLink) -> None:
        """`groups` are all that change."""
        steps = [step for group in groups for step in (*group.making, *group.removing)]
        lengths: dict[int, dict[int, set[int]]] = {}
        for step in steps:
            if step.route.family is Family.V6:
                prefix = step.route.destination
                by_length = lengths.setdefault(step.route.table, {})
                by_length.setdefault(prefix.prefixlen, set()).add(int(prefix.network_address))
        self._hiding = {
            (step.route.table, *place)
            for step in steps
            if step.op is not Op.REMOVE
            for place in _hidden_by(step.route, links, lengths.get(step.route.table, {}))
        }

    def hides(self, route: Route) -> bool:
        if route.family is Family.V4 or not self._hiding:
            return False
        prefix = route.destination
        return (route.table, prefix.prefixlen, int(prefix.network_address)) in self._hiding

    def group_hides(self, group: GroupPlan) -> bool:
        return any(self.hides(step.route) for step in group.making)


def _hidden_by(
    route: Route, links: OnLink, lengths: Mapping[int, set[int]]
) -> Iterator[tuple[int, int]]:
    """Length and number of the prefixes that hide this route's gateways."""
    for hop in route.hops:
        if hop.gateway is None or hop.gateway.version == 4 or hop.onlink:
            continue
        way = links.find(hop.gateway, route.table)
        for length in lengths if way is not None else ():
            away = Family.V6.bits - length
            number = int(hop.gateway) >> away << away
            if way is not None and length > way.length and number in lengths[length]:
                yield length, number
