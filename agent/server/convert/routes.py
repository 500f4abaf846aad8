"""Routes and policy rules that shall be.

What Network.ListRoutes answers can be sent back: what is the kernel's own in it is left
out here, by its `protocol`, or because it is one of the kernel's three rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid
from agent.core.network import (
    KERNELS_OWN,
    LOCAL_TABLE,
    MAIN_TABLE,
    Family,
    HopWish,
    Protocol,
    RouteSet,
    RoutesWish,
    RouteType,
    RouteWish,
    Scope,
)
from agent.server.convert import fields, inet, linknames
from agent.server.convert.families import family_of
from agent.server.convert.rules import rule_sets
from agent.server.limits import NEXT_HOPS, ROUTES
from innkeeper.v1 import network_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.core.network import IpAddress

_TYPES: Final = {
    pb.ROUTE_TYPE_UNSPECIFIED: RouteType.UNICAST,
    pb.ROUTE_TYPE_UNICAST: RouteType.UNICAST,
    pb.ROUTE_TYPE_BLACKHOLE: RouteType.BLACKHOLE,
    pb.ROUTE_TYPE_UNREACHABLE: RouteType.UNREACHABLE,
    pb.ROUTE_TYPE_PROHIBIT: RouteType.PROHIBIT,
    pb.ROUTE_TYPE_THROW: RouteType.THROW,
}
_KERNELS_OWN: Final = frozenset(Protocol(number).name.lower() for number in KERNELS_OWN)
_SCOPES: Final = {scope.word: scope for scope in Scope}
# rtnh_hops is one octet and one less (include/uapi/linux/rtnetlink.h).
_HEAVIEST: Final = 256
# A larger one the kernel cuts (ip_metrics_convert of net/ipv4/metrics.c): the route would
# never be what was asked for.
_LARGEST_MTU: Final = 65_535 - 15
_V6_METRIC: Final = 1024


def routes_wish(told: pb.ApplyRoutesRequest) -> RoutesWish:
    """At most one set for each family of each table; raises BAD_FIELD."""
    count = sum(len(each.routes) for each in told.sets)
    if count > ROUTES:
        raise invalid(f"sets: {count} routes are more than {ROUTES}", field="sets", limit=ROUTES)
    sets = tuple(_sets(told.sets))
    fields.no_doubles((f"{each.family.word} table {each.table}" for each in sets), "sets")
    return RoutesWish(sets=sets, rules=rule_sets(told.rules))


def _sets(told: Iterable[pb.RouteSet]) -> Iterator[RouteSet]:
    for index, each in enumerate(told):
        field = f"sets[{index}]"
        family = family_of(each.family, f"{field}.family")
        routes = dict(_routes(each, family, field))
        if each.table != LOCAL_TABLE:
            _no_doubles(routes, field)
            table = each.table or MAIN_TABLE
            yield RouteSet(family=family, table=table, routes=tuple(routes.values()))
        elif routes or not each.routes:
            raise invalid(
                f"{field}.table: {LOCAL_TABLE}, the local one, is the kernel's",
                field=f"{field}.table",
            )


def _routes(told: pb.RouteSet, family: Family, field: str) -> Iterator[tuple[int, RouteWish]]:
    for index, each in enumerate(told.routes):
        if each.protocol not in _KERNELS_OWN:
            yield index, _route(each, family, f"{field}.routes[{index}]")


def _no_doubles(routes: dict[int, RouteWish], field: str) -> None:
    """The kernel takes another way of one destination and metric for a replacement."""
    seen: dict[object, int] = {}
    for index, route in routes.items():
        first = seen.setdefault(_kernels_key(route), index)
        if first != index:
            name = f"{field}.routes[{index}]"
            raise invalid(
                f"{name}: {inet.network_text(route.destination)} with metric {route.metric} is"
                f" there already, as routes[{first}]",
                field=name,
                hint="several ways of one route are its next_hops",
            )


def _kernels_key(route: RouteWish) -> object:
    if route.destination.version == 4:
        return route.destination, route.metric
    # On link, IPv6 tells routes by their interface too: each has its own of fe80::/64.
    devices = tuple(hop.device for hop in route.hops if hop.gateway is None)
    return route.destination, route.metric or _V6_METRIC, devices


def _route(told: pb.Route, family: Family, field: str) -> RouteWish:
    kind = _TYPES.get(told.type)
    if kind is None:
        raise invalid(
            f"{field}.type: {_type_name(told.type)} is not one that can be made",
            field=f"{field}.type",
        )
    return RouteWish(
        destination=inet.network(told.destination, family, f"{field}.destination"),
        type=kind,
        hops=_hops(told, kind, family, field),
        source=inet.neighbour(told.source, family, f"{field}.source") if told.source else None,
        metric=told.metric,
        scope=_scope(told.scope, family, f"{field}.scope"),
        mtu=fields.within(told.mtu, 0, _LARGEST_MTU, f"{field}.mtu"),
    )


def _type_name(number: int) -> str:
    known = pb.RouteType.DESCRIPTOR.values_by_number.get(number)
    return known.name if known else str(number)


def _hops(told: pb.Route, kind: RouteType, family: Family, field: str) -> tuple[HopWish, ...]:
    single = [name for name in ("gateway", "device", "onlink") if getattr(told, name)]
    if kind is not RouteType.UNICAST:
        if single or told.next_hops:
            raise invalid(
                f"{field}: a route that sends nothing on has no gateway, device or next_hops",
                field=field,
            )
        return ()
    if not told.next_hops:
        return (_hop(told, family, field),)
    if single:
        raise invalid(
            f"{field}.next_hops: not together with {', '.join(single)}", field=f"{field}.next_hops"
        )
    fields.at_most(NEXT_HOPS, told.next_hops, f"{field}.next_hops")
    return tuple(
        _hop(each, family, f"{field}.next_hops[{index}]", weight=each.weight)
        for index, each in enumerate(told.next_hops)
    )


def _hop(told: pb.Route | pb.NextHop, family: Family, field: str, *, weight: int = 0) -> HopWish:
    if not told.gateway and not told.device:
        raise invalid(f"{field}: a gateway, a device or both are needed", field=field)
    if told.onlink and not (told.gateway and told.device):
        raise invalid(
            f"{field}.onlink: it says that gateway is reachable by device: both are needed",
            field=f"{field}.onlink",
        )
    return HopWish(
        gateway=_next_hop(told.gateway, family, f"{field}.gateway"),
        device=linknames.device(told.device, f"{field}.device") if told.device else "",
        weight=fields.within(weight, 0, _HEAVIEST, f"{field}.weight") or 1,
        onlink=told.onlink,
    )


def _next_hop(text: str, family: Family, field: str) -> IpAddress | None:
    """With IPv4 routes either version (RFC 9229), with IPv6 routes its own."""
    if not text:
        return None
    return inet.neighbour(text, None if family is Family.V4 else family, field)


def _scope(text: str, family: Family, field: str) -> int | None:
    if not text:
        return None
    scope = _SCOPES.get(text)
    if scope is None:
        raise invalid(
            f"{field}: {text[:80]!r} is none of {', '.join(sorted(_SCOPES))}", field=field
        )
    return scope if family is Family.V4 else None
