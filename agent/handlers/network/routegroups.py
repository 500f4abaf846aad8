"""Routes of one key (destination, metric, type of service): from those there to those wanted.

The kernel keeps several of one key in an order, and the first one counts. What it does:

* IPv4 (fib_table_insert in net/ipv4/fib_trie.c): one more comes before or after all of
  its key; NLM_F_REPLACE replaces the first one, whoever made it.
* IPv6 (fib6_add_rt2node in net/ipv6/ip6_fib.c): one with a gateway joins those that have
  one, as a further way of one route; NLM_F_REPLACE replaces the first one of the same sort
  (with or without a gateway), with all its ways, or where there is none, the first one.
* A removal takes the first one that has what the message says (fib_table_delete,
  ip6_route_del), and what a message leaves out is not compared. So a removal in the order
  of the list takes exactly what it means.

The routes of the kernel itself are never replaced or removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from agent.core.network import Family
from agent.handlers.network.kernelroutes import REJECTS, is_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.core.network import Route


class Op(StrEnum):
    """What is done with a route."""

    ADD = "add"
    """There is none of its key."""
    PREPEND = "prepend"
    APPEND = "append"
    REPLACE = "replace"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change."""

    op: Op
    route: Route


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """First all groups are made, then what is too much is removed."""

    making: tuple[Step, ...] = ()
    removing: tuple[Step, ...] = ()


_NOTHING = GroupPlan()


def group_plan(now: Sequence[Route], target: Sequence[Route]) -> GroupPlan:
    """Both are all routes of one key in the kernel's order, the kernel's own too."""
    ours = [route for route in now if not is_kernels(route)]
    wanted = [route for route in target if not is_kernels(route)]
    if not ours and not wanted:
        return _NOTHING
    if not wanted:
        return GroupPlan(removing=_removals(ours))
    family = wanted[0].family
    return _v4(now, target) if family is Family.V4 else _v6(now, ours, wanted)


def _removals(routes: Sequence[Route]) -> tuple[Step, ...]:
    return tuple(Step(op=Op.REMOVE, route=route) for route in routes)


def _rebuilt(ours: Sequence[Route], making: Sequence[Step]) -> GroupPlan:
    """Everything goes and comes again: where one change can't be told from another."""
    return GroupPlan(making=(*_removals(ours), *making))


# --- IPv4 -----------------------------------------------------------------------------


def _v4(now: Sequence[Route], target: Sequence[Route]) -> GroupPlan:
    has = [route for route in now if not is_kernels(route) or route in target]
    shall = [route for route in target if not is_kernels(route) or route in now]
    if has == shall:
        return _NOTHING
    start, end = _kept_window(has, shall)
    before, kept, after = shall[:start], shall[start:end], shall[end:]
    gone = [route for route in has if not is_kernels(route) and route not in kept]
    planned = _v4_in_place(now, before, after, gone)
    again = any(route in has for route in (*before, *after))
    if again or _mistaken(planned.removing, shall):
        ours = [route for route in has if not is_kernels(route)]
        return _rebuilt(ours, _v4_made(now, shall))
    return planned


def _v4_in_place(
    now: Sequence[Route], before: Sequence[Route], after: Sequence[Route], gone: list[Route]
) -> GroupPlan:
    making: list[Step] = []
    for route in reversed(before):
        if making or not (gone and now[0] == gone[0]):
            making.append(Step(op=Op.PREPEND if now or making else Op.ADD, route=route))
        else:
            making.append(Step(op=Op.REPLACE, route=route))
            gone = gone[1:]
    making += [Step(op=Op.APPEND, route=route) for route in after]
    return GroupPlan(making=tuple(making), removing=_removals(gone))


def _v4_made(now: Sequence[Route], shall: Sequence[Route]) -> list[Step]:
    """All of ours anew: before the kernel's own what was before them."""
    alone = not any(map(is_kernels, now))
    places = [place for place, route in enumerate(shall) if is_kernels(route)]
    first = places[0] if places else (0 if alone else len(shall))
    ahead = [Step(op=Op.PREPEND, route=route) for route in reversed(shall[:first])]
    behind = [route for route in shall[first:] if not is_kernels(route)]
    return ahead + [Step(op=Op.APPEND, route=route) for route in behind]


def _kept_window(has: Sequence[Route], shall: Sequence[Route]) -> tuple[int, int]:
    """The longest stretch of `shall` that is there in this order, with the most of the
    kernel's own, which can't be moved; an empty one at the end where there is none."""
    best = (0, 0, len(shall), len(shall))
    for start in range(len(shall)):
        end = start
        place = 0
        while end < len(shall) and (found := _index(has, shall[end], place)) is not None:
            place, end = found + 1, end + 1
        fixed = sum(map(is_kernels, shall[start:end]))
        if (fixed, end - start) > best[:2]:
            best = (fixed, end - start, start, end)
    return best[2:]


def _index(routes: Sequence[Route], route: Route, start: int) -> int | None:
    return next((n for n in range(start, len(routes)) if routes[n] == route), None)


# --- IPv6 -----------------------------------------------------------------------------


def _v6(now: Sequence[Route], ours: list[Route], wanted: list[Route]) -> GroupPlan:
    if ours == wanted:
        return _NOTHING
    gone = [route for route in ours if route not in wanted]
    new = [route for route in wanted if route not in ours]
    if len(now) == len(gone) == len(new) == 1:
        return GroupPlan(making=(Step(op=Op.REPLACE, route=new[0]),))
    making: list[Step] = []
    result = ours
    if (joined := _with_gateway(gone)) and (joining := _with_gateway(new)):
        making.append(Step(op=Op.REPLACE, route=joining[0]))
        result = [joining[0] if route == joined[0] else route for route in ours]
        gone.remove(joined[0])
        new.remove(joining[0])
    result = [route for route in result if route not in gone] + new
    in_the_way = any(_in_the_way(old, one) for old in gone for one in new)
    if result != wanted or in_the_way or _mistaken(_removals(gone), wanted):
        return _rebuilt(ours, [Step(op=Op.APPEND, route=route) for route in wanted])
    first = Op.APPEND if now else Op.ADD
    making += [Step(op=first, route=route) for route in new[:1]]
    making += [Step(op=Op.APPEND, route=route) for route in new[1:]]
    return GroupPlan(making=tuple(making), removing=_removals(gone))


def _with_gateway(routes: Sequence[Route]) -> list[Route]:
    return [route for route in routes if any(hop.gateway is not None for hop in route.hops)]


def _in_the_way(old: Route, new: Route) -> bool:
    """Whether the kernel would join the two, or take the new one for the old one."""
    if old.type in REJECTS or new.type in REJECTS:
        return old.type in REJECTS and new.type in REJECTS
    if _with_gateway([old]) or _with_gateway([new]):
        return bool(_with_gateway([old]) and _with_gateway([new]))
    return {hop.index for hop in old.hops} == {hop.index for hop in new.hops}


# --- removals -------------------------------------------------------------------------


def _mistaken(removals: Sequence[Step], staying: Sequence[Route]) -> bool:
    """Whether a removal could take one that shall be there."""
    return any(
        _could_mean(step.route, other)
        for step in removals
        for other in staying
        if not is_kernels(other)
    )


def _could_mean(removed: Route, other: Route) -> bool:
    if removed.protocol not in (0, other.protocol):
        return False
    if removed.family is Family.V6:
        return _could_mean_hops(removed, other)
    return (
        removed.type is other.type
        and removed.scope == other.scope
        and removed.source in (None, other.source)
        and removed.mtu in (0, other.mtu)
        and _could_mean_hops(removed, other)
    )


def _could_mean_hops(removed: Route, other: Route) -> bool:
    """One way alone is compared with each of the other's; no way at all with none."""
    if len(removed.hops) > 1 and removed.family is Family.V4:
        return removed.hops == other.hops
    if not removed.hops or not other.hops:
        return True
    return any(
        one.index in (0, another.index) and one.gateway in (None, another.gateway)
        for one in removed.hops
        for another in other.hops
    )
