"""Routes as nearly all are: one way at most, of their own family, without metrics.

They come by the ten thousand, and each is read and written several times in one change.
pyroute2's message classes take some 0.1 ms for one, an emulated CPU thirty times as long.
These few attributes are read and written with struct here, to the same bytes; a route
that has anything else is left to pyroute2 (see routes).

Layouts: struct rtmsg and RTA_* of include/uapi/linux/rtnetlink.h.
"""

from __future__ import annotations

import struct
import sys
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Final

from agent.core.network import Family, Hop, Route, RouteType
from agent.core.rtnl.messages import HEADER_SIZE

if TYPE_CHECKING:
    from agent.core.network import IpAddress, IpNetwork

ONLINK: Final = 4
"""RTNH_F_ONLINK."""

COMPAT: Final = 252
"""RT_TABLE_COMPAT: the table is in RTA_TABLE."""

WITHOUT_HOPS: Final = frozenset(
    {RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT, RouteType.THROW}
)
"""Types that lead nowhere, whatever interface the kernel tells for them."""

_RTMSG: Final = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NUMBER: Final = struct.Struct("=HHI")
_KIND: Final = 0x3FFF
"""Above are NLA_F_NESTED and NLA_F_NET_BYTEORDER."""

_DST, _SRC, _OIF, _GATEWAY, _PRIORITY, _PREFSRC = 1, 2, 4, 5, 6, 7
_METRICS, _MULTIPATH, _TABLE, _VIA = 8, 9, 15, 18
_NOT_PLAIN: Final = frozenset({_SRC, _METRICS, _MULTIPATH, _VIA})

_FAMILIES: Final = {int(family): family for family in Family}
_TYPES: Final = {int(kind): kind for kind in RouteType}


def written(route: Route) -> bytes | None:
    """The payload of RTM_NEWROUTE and RTM_DELROUTE; None where the route is not plain."""
    hop = _only_hop(route)
    if hop is None or route.mtu or route.from_ is not None:
        return None
    parts = [_header(route, hop)]
    if route.destination.prefixlen:
        parts.append(_attribute(_DST, route.destination.network_address.packed))
    parts.append(_NUMBER.pack(8, _TABLE, route.table))
    if route.metric:
        parts.append(_NUMBER.pack(8, _PRIORITY, route.metric))
    if route.source is not None:
        parts.append(_attribute(_PREFSRC, route.source.packed))
    if hop.gateway is not None:
        parts.append(_attribute(_GATEWAY, hop.gateway.packed))
    if hop.index:
        parts.append(_NUMBER.pack(8, _OIF, hop.index))
    return b"".join(parts)


_NO_HOP: Final = Hop()


def _only_hop(route: Route) -> Hop | None:
    match route.hops:
        case ():
            return _NO_HOP
        case (hop,) if hop.gateway is None or Family.of(hop.gateway) is route.family:
            return hop
        case _:
            return None


def _header(route: Route, hop: Hop) -> bytes:
    table = route.table if route.table < 256 else COMPAT
    return _RTMSG.pack(
        *(route.family, route.destination.prefixlen, 0, route.tos, table),
        *(route.protocol, route.scope, route.type, ONLINK if hop.onlink else 0),
    )


def _attribute(kind: int, data: bytes) -> bytes:
    """Of 4 or 16 bytes, so that there is no padding."""
    return _ATTRIBUTE.pack(4 + len(data), kind) + data


def read(data: bytes) -> Route | None:
    """RTM_NEWROUTE or RTM_DELROUTE, header included; None for what is not plain."""
    if len(data) < HEADER_SIZE + _RTMSG.size:
        return None
    number, length, _, tos, table, protocol, scope, type_, flags = _RTMSG.unpack_from(
        data, HEADER_SIZE
    )
    family, kind = _FAMILIES.get(number), _TYPES.get(type_)
    found = _attributes(data, HEADER_SIZE + _RTMSG.size)
    if family is None or kind is None or not found.keys().isdisjoint(_NOT_PLAIN):
        return None
    hop = _hop(found.get(_GATEWAY), _number(found, _OIF), bool(flags & ONLINK))
    return Route(
        family=family,
        table=_number(found, _TABLE) or table,
        destination=_network(family, found.get(_DST), length),
        type=kind,
        hops=() if hop is None or kind in WITHOUT_HOPS else (hop,),
        source=_address(found.get(_PREFSRC)),
        metric=_number(found, _PRIORITY),
        scope=scope,
        protocol=protocol,
        tos=tos,
        flags=flags & ~ONLINK,
    )


def _attributes(data: bytes, offset: int) -> dict[int, bytes]:
    """By number; what is malformed ends them."""
    found: dict[int, bytes] = {}
    end = len(data)
    while offset + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4:
            break
        found[kind & _KIND] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def _number(found: dict[int, bytes], kind: int) -> int:
    return int.from_bytes(found.get(kind, b""), sys.byteorder)


def _network(family: Family, raw: bytes | None, length: int) -> IpNetwork:
    """From numbers: from bytes it takes four times as long."""
    number = int.from_bytes(raw or b"", "big")
    if family is Family.V4:
        return IPv4Network((number, length), strict=False)
    return IPv6Network((number, length), strict=False)


@lru_cache(maxsize=1024)
def _hop(gateway: bytes | None, index: int, onlink: bool) -> Hop | None:  # noqa: FBT001 - cached
    """Many routes have the same one."""
    if gateway is None and not index:
        return None
    return Hop(gateway=_address(gateway), index=index, onlink=onlink)


def _address(raw: bytes | None) -> IpAddress | None:
    match len(raw or b""):
        case 4:
            return IPv4Address(raw or b"")
        case 16:
            return IPv6Address(raw or b"")
        case _:
            return None
