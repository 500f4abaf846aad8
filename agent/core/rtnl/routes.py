"""Routes (rtnetlink(7), include/uapi/linux/rtnetlink.h).

A destination is always an `ipaddress` network: a host is /32 or /128, and only a prefix of
length 0 is sent without RTA_DST, which is how the kernel spells the default route.
"""

from __future__ import annotations

import errno
import ipaddress
from typing import TYPE_CHECKING, Any

from agent.core.netlink import (
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Change,
    NetlinkRefusal,
    Question,
)
from agent.core.network import Family, Hop, Route, RouteType
from agent.core.rtnl.messages import (
    RTM_DELROUTE,
    RTM_GETROUTE,
    RTM_NEWROUTE,
    Attributes,
    address,
    body,
    decoded,
    nested,
    route_message,
)

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink
    from agent.core.network import IpAddress, IpNetwork

_ONLINK = 4  # RTNH_F_ONLINK
_COMPAT = 252  # RT_TABLE_COMPAT: the table is in RTA_TABLE
_WITHOUT_HOPS = frozenset(
    {RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT, RouteType.THROW}
)
"""Types that lead nowhere, whatever interface the kernel tells for them."""

_FAMILIES = frozenset(Family)
_TYPES = frozenset(RouteType)


async def all_routes(
    netlink: Netlink, deadline: Deadline, *, family: Family, table: int = 0, index: int = 0
) -> tuple[Route, ...]:
    """Every route of a family; of one table, by one interface, where those are not 0."""
    question = Question(
        what=f"list the IP{family.word} routes",
        type=RTM_GETROUTE,
        flags=NLM_F_DUMP,
        payload=body(
            route_message,
            {"family": int(family)},
            ("RTA_TABLE", table or None),
            ("RTA_OIF", index or None),
        ),
        decode=decode,
    )
    try:
        found = await netlink.ask(question, deadline)
    except NetlinkRefusal as error:
        # A table comes to be with its first route; an interface may just have gone.
        if (table and error.errno == errno.ENOENT) or (index and error.errno == errno.ENODEV):
            return ()
        raise
    return tuple(
        route
        for route in found
        if route is not None
        and table in (0, route.table)
        and (not index or any(hop.index == index for hop in route.hops))
    )


def decode(data: bytes) -> Route | None:
    """RTM_NEWROUTE or RTM_DELROUTE, header included; None for what is no IP route."""
    message = decoded(route_message, data)
    if message["family"] not in _FAMILIES or message["type"] not in _TYPES:
        return None
    family = Family(message["family"])
    kind = RouteType(message["type"])
    found = Attributes(message)
    return Route(
        family=family,
        table=found.number("RTA_TABLE", message["table"]),
        destination=_network(family, found.raw("RTA_DST"), message["dst_len"]),
        type=kind,
        hops=() if kind in _WITHOUT_HOPS else _hops(message, found),
        source=found.address("RTA_PREFSRC"),
        metric=found.number("RTA_PRIORITY"),
        scope=message["scope"],
        mtu=found.within("RTA_METRICS").number("RTAX_MTU") if "RTA_METRICS" in found else 0,
        protocol=message["proto"],
        tos=message["tos"],
        from_=_network(family, found.raw("RTA_SRC"), message["src_len"])
        if "RTA_SRC" in found
        else None,
        flags=message["flags"] & ~_ONLINK,
    )


def _network(family: Family, raw: bytes | None, length: int) -> IpNetwork:
    packed = raw or bytes(family.bits // 8)
    return ipaddress.ip_network((packed, length), strict=False)


def _hops(message: Any, found: Attributes) -> tuple[Hop, ...]:
    if "RTA_MULTIPATH" in found:
        return tuple(
            Hop(
                gateway=_gateway(Attributes(hop)),
                index=hop["oif"],
                weight=hop["hops"] + 1,
                onlink=bool(hop["flags"] & _ONLINK),
            )
            for hop in found.inside("RTA_MULTIPATH")
        )
    gateway, index = _gateway(found), found.number("RTA_OIF")
    if gateway is None and not index:
        return ()
    return (Hop(gateway=gateway, index=index, onlink=bool(message["flags"] & _ONLINK)),)


def _gateway(found: Attributes) -> IpAddress | None:
    """RTA_GATEWAY; or RTA_VIA, a gateway of another family (struct rtvia)."""
    if (via := found.raw("RTA_VIA")) is not None:
        return address(via[2:])
    return found.address("RTA_GATEWAY")


def added(route: Route, what: str) -> Change:
    """Add a route; EEXIST where one of its key is there."""
    return _new(route, what, NLM_F_CREATE | NLM_F_EXCL)


def appended(route: Route, what: str) -> Change:
    """Add a route behind those of its key; IPv6 makes it another hop of those."""
    return _new(route, what, NLM_F_CREATE | NLM_F_APPEND)


def replaced(route: Route, what: str) -> Change:
    """Add a route, or put it in the place of the first one of its key."""
    return _new(route, what, NLM_F_CREATE | NLM_F_REPLACE)


def removed(route: Route, what: str) -> Change:
    """Remove exactly this route. The kernel takes a metric of 0 for any."""
    return Change(what=what, type=RTM_DELROUTE, flags=0, payload=_payload(route))


def _new(route: Route, what: str, flags: int) -> Change:
    return Change(what=what, type=RTM_NEWROUTE, flags=flags, payload=_payload(route))


def _payload(route: Route) -> bytes:
    return body(
        route_message,
        _fields(route),
        ("RTA_DST", _text(route.destination)),
        ("RTA_SRC", _text(route.from_)),
        ("RTA_TABLE", route.table),
        ("RTA_PRIORITY", route.metric or None),
        ("RTA_PREFSRC", str(route.source) if route.source else None),
        ("RTA_METRICS", nested(("RTAX_MTU", route.mtu)) if route.mtu else None),
        *_ways(route),
    )


def _fields(route: Route) -> dict[str, int]:
    onlink = len(route.hops) == 1 and route.hops[0].onlink
    return {
        "family": int(route.family),
        "dst_len": route.destination.prefixlen,
        "src_len": route.from_.prefixlen if route.from_ else 0,
        "tos": route.tos,
        "table": route.table if route.table < 256 else _COMPAT,
        "proto": int(route.protocol),
        "scope": int(route.scope),
        "type": int(route.type),
        "flags": _ONLINK if onlink else 0,
    }


def _text(network: IpNetwork | None) -> str | None:
    return str(network.network_address) if network and network.prefixlen else None


def _ways(route: Route) -> list[tuple[str, Any]]:
    match route.hops:
        case ():
            return []
        case (hop,):
            return [*_via(route.family, hop), ("RTA_OIF", hop.index or None)]
        case hops:
            return [("RTA_MULTIPATH", [_multipath(route.family, hop) for hop in hops])]


def _multipath(family: Family, hop: Hop) -> dict[str, Any]:
    return {
        "oif": hop.index,
        "hops": hop.weight - 1,
        "flags": _ONLINK if hop.onlink else 0,
    } | nested(*_via(family, hop))


def _via(family: Family, hop: Hop) -> list[tuple[str, Any]]:
    if hop.gateway is None:
        return []
    if Family.of(hop.gateway) is family:
        return [("RTA_GATEWAY", str(hop.gateway))]
    other = int(Family.of(hop.gateway))
    return [("RTA_VIA", {"family": other, "addr": str(hop.gateway)})]
