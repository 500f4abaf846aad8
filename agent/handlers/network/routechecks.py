"""What can be told of wanted routes without asking the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid
from agent.core.network import LOCAL_TABLE, Family, RouteType, Scope
from agent.handlers.network.kernelroutes import OF_ADDRESSES, REJECTS
from agent.handlers.network.routetexts import destination_text, set_text

if TYPE_CHECKING:
    from agent.core.network import HopWish, RouteSet, RoutesWish, RouteWish

ROUTE_LIMIT: Final = 100_000
HOP_LIMIT: Final = 512
"""RTA_MULTIPATH is one attribute of at most 64 KiB."""

_TABLE_MAX: Final = 0xFFFFFFFF
_NUMBER_MAX: Final = 0xFFFFFFFF
_MTU_MAX: Final = 65520
"""The kernel takes more, and makes it 65,520 (ip_metrics_convert, net/ipv4/metrics.c)."""
_WEIGHT_MAX: Final = 256


def check_sets(wish: RoutesWish) -> None:
    """Raises BAD_FIELD."""
    count = sum(len(each.routes) for each in wish.sets)
    if count > ROUTE_LIMIT:
        raise _bad("sets", f"{count:,} routes are more than {ROUTE_LIMIT:,}")
    seen: dict[tuple[Family, int], int] = {}
    for number, each in enumerate(wish.sets):
        _check_table(each, f"sets[{number}]")
        former = seen.setdefault((each.family, each.table), number)
        if former != number:
            text = set_text(each.family, each.table)
            raise _bad(f"sets[{number}]", f"{text} is in sets[{former}] and sets[{number}]")
        for place, route in enumerate(each.routes):
            _check_route(route, each.family, f"sets[{number}].routes[{place}]")


def _check_table(each: RouteSet, where: str) -> None:
    if each.table == LOCAL_TABLE:
        raise _bad(
            f"{where}.table",
            "table 255 is the kernel's own",
            hint="its routes come and go by address",
        )
    if not 1 <= each.table <= _TABLE_MAX:
        raise _bad(f"{where}.table", f"table {each.table} is not between 1 and {_TABLE_MAX}")


def _check_route(wish: RouteWish, family: Family, where: str) -> None:
    text = destination_text(wish.destination)
    _check_family(wish.destination.version, family, f"{where}.destination", text)
    if wish.source is not None:
        _check_family(wish.source.version, family, f"{where}.source", str(wish.source))
        if wish.source.is_unspecified:
            raise _bad(f"{where}.source", f"route {text}: {wish.source} is no source address")
    if not 0 <= wish.metric <= _NUMBER_MAX:
        raise _bad(f"{where}.metric", f"route {text}: metric {wish.metric} has over 32 bits")
    if not 0 <= wish.mtu <= _MTU_MAX:
        raise _bad(f"{where}.mtu", f"route {text}: mtu {wish.mtu} is more than {_MTU_MAX}")
    if wish.scope is not None and not 0 <= wish.scope < Scope.NOWHERE:
        raise _bad(
            f"{where}.scope",
            f"route {text}: no route can have scope {wish.scope}",
            hint="global, site, link or host; or leave it out",
        )
    _check_hops(wish, family, where)


def _check_family(version: int, family: Family, where: str, text: str) -> None:
    if version != (4 if family is Family.V4 else 6):
        raise _bad(where, f"{text} is IPv{version}, and its set is {family.word}")


def _check_hops(wish: RouteWish, family: Family, where: str) -> None:
    text = destination_text(wish.destination)
    if wish.type in REJECTS:
        if wish.hops:
            raise _bad(
                where,
                f"route {text}: {wish.type.name.lower()} goes nowhere, so it has no "
                "gateway and no device",
            )
        return
    if wish.type in OF_ADDRESSES:
        return
    if not wish.hops:
        raise _bad(where, f"route {text} has neither a gateway nor a device")
    if len(wish.hops) > HOP_LIMIT:
        raise _bad(where, f"route {text}: {len(wish.hops)} ways are more than {HOP_LIMIT}")
    for number, hop in enumerate(wish.hops):
        place = f"{where}.next_hops[{number}]" if len(wish.hops) > 1 else where
        _check_hop(hop, family, place, text)
    if family is Family.V6 and len(wish.hops) > 1:
        _check_v6_ways(wish.hops, where, text)


def _check_hop(hop: HopWish, family: Family, where: str, text: str) -> None:
    if not 1 <= hop.weight <= _WEIGHT_MAX:
        raise _bad(f"{where}.weight", f"route {text}: weight {hop.weight} is not 1 to 256")
    if hop.gateway is None:
        _check_link_hop(hop, where, text)
        return
    if hop.gateway.version == 4 and family is Family.V6:
        raise _bad(f"{where}.gateway", f"route {text}: {hop.gateway} is IPv4, and the route is v6")
    if hop.gateway.is_unspecified or hop.gateway.is_multicast:
        raise _bad(
            f"{where}.gateway",
            f"route {text}: {hop.gateway} is no gateway",
            hint="leave the gateway empty for a route on link",
        )
    if hop.onlink and not hop.device:
        raise _bad(f"{where}.device", f"route {text}: a gateway that is onlink needs its device")
    if hop.gateway.version == 6 and hop.gateway.is_link_local and not hop.device:
        raise _bad(
            f"{where}.device",
            f"route {text}: {hop.gateway} is on every link, so its device is needed",
        )


def _check_link_hop(hop: HopWish, where: str, text: str) -> None:
    if not hop.device:
        raise _bad(where, f"route {text} has neither a gateway nor a device")
    if hop.onlink:
        raise _bad(f"{where}.onlink", f"route {text}: without a gateway there is no onlink")


def _check_v6_ways(hops: tuple[HopWish, ...], where: str, text: str) -> None:
    """The kernel has a route of several ways as several routes, which are joined by having
    gateways, each one once (net/ipv6/route.c, ip6_route_multipath_add)."""
    seen: set[tuple[object, str]] = set()
    for number, hop in enumerate(hops):
        place = f"{where}.next_hops[{number}]"
        if hop.gateway is None:
            raise _bad(place, f"route {text}: with IPv6 each of several ways needs a gateway")
        if (hop.gateway, hop.device) in seen:
            raise _bad(
                place,
                f"route {text}: {hop.gateway} is there twice",
                hint="give it a higher weight instead",
            )
        seen.add((hop.gateway, hop.device))


def is_of_lists_alone(type: RouteType) -> bool:  # noqa: A002 - the kernel's word
    """Whether a request may only repeat such a route, not make one."""
    return type in OF_ADDRESSES


def _bad(field: str, message: str, *, hint: str | None = None) -> Exception:
    return invalid(message, field=field, hint=hint)
