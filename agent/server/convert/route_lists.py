"""Routes and policy rules that are, in sets that a request takes."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from agent.core.network import RouteType, protocol_word, scope_word
from agent.server.convert import inet
from agent.server.convert.families import family_word
from agent.server.convert.rules import rule_list
from innkeeper.v1 import network_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.network import Hop, Route, RoutesState

_TYPES: Final = {
    RouteType.UNICAST: pb.ROUTE_TYPE_UNICAST,
    RouteType.LOCAL: pb.ROUTE_TYPE_LOCAL,
    RouteType.BROADCAST: pb.ROUTE_TYPE_BROADCAST,
    RouteType.ANYCAST: pb.ROUTE_TYPE_ANYCAST,
    RouteType.MULTICAST: pb.ROUTE_TYPE_MULTICAST,
    RouteType.BLACKHOLE: pb.ROUTE_TYPE_BLACKHOLE,
    RouteType.UNREACHABLE: pb.ROUTE_TYPE_UNREACHABLE,
    RouteType.PROHIBIT: pb.ROUTE_TYPE_PROHIBIT,
    RouteType.THROW: pb.ROUTE_TYPE_THROW,
}
_WITHOUT_WAY: Final = frozenset(
    {RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT, RouteType.THROW}
)
# RTNH_F_* of include/uapi/linux/rtnetlink.h.
_ONLINK: Final = 0x04
_FLAGS: Final = ((0x01, "dead"), (0x02, "pervasive"), (0x08, "offload"), (0x10, "linkdown"))


def routes_state(state: RoutesState) -> pb.RoutesState:
    """By family and table, as the kernel lists them within one."""
    routes = sorted(state.routes, key=lambda route: (route.family, route.table))
    return pb.RoutesState(
        sets=[
            pb.RouteSet(
                family=family_word(family),
                table=table,
                routes=[_as_told(route, state.names) for route in members],
            )
            for (family, table), members in groupby(
                routes, key=lambda route: (route.family, route.table)
            )
        ],
        rules=rule_list(state.rules),
        changed=state.changed,
    )


def _as_told(route: Route, names: Mapping[int, str]) -> pb.Route:
    told = pb.Route(
        destination=inet.network_text(route.destination),
        source=inet.text_of(route.source),
        metric=route.metric,
        scope=scope_word(route.scope),
        mtu=route.mtu,
        type=_TYPES[route.type],
        protocol=protocol_word(route.protocol),
        flags=_flags(route),
    )
    if route.type in _WITHOUT_WAY:
        # With IPv6 the kernel tells the loopback for these.
        return told
    match route.hops:
        case (hop,):
            told.gateway = inet.text_of(hop.gateway)
            told.device = _name(hop.index, names)
            told.onlink = hop.onlink
        case hops:
            told.next_hops.extend(_next_hop(hop, names) for hop in hops)
    return told


def _next_hop(hop: Hop, names: Mapping[int, str]) -> pb.NextHop:
    return pb.NextHop(
        gateway=inet.text_of(hop.gateway),
        device=_name(hop.index, names),
        weight=hop.weight,
        onlink=hop.onlink,
    )


def _name(index: int, names: Mapping[int, str]) -> str:
    """An interface that went in between has its number."""
    return names.get(index, f"if{index}") if index else ""


def _flags(route: Route) -> list[str]:
    words = [word for bit, word in _FLAGS if route.flags & bit]
    if any(hop.onlink for hop in route.hops) or route.flags & _ONLINK:
        words.append("onlink")
    return words
