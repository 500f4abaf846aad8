"""What an interface has, as JSON: it is saved before the interface is moved."""

from __future__ import annotations

import ipaddress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from agent.core.network import (
    Address,
    AddressFlag,
    Family,
    Hop,
    Link,
    LinkFlag,
    Neighbor,
    NeighborFlag,
    NeighborState,
    Route,
    RouteType,
)
from agent.handlers.network.holding import Holding

if TYPE_CHECKING:
    from ipaddress import IPv4Address

    from agent.core.network import IpAddress, IpNetwork

_COUNTED = "counters"


def to_data(holding: Holding) -> dict[str, Any]:
    """Numbers, texts and lists alone."""
    return {
        "link": _plain(holding.link),
        "addresses": [_plain(each) for each in holding.addresses],
        "routes": [_route_data(each) for each in holding.routes],
        "shared": [_route_data(each) for each in holding.shared],
        "neighbors": [_plain(each) for each in holding.neighbors],
    }


def from_data(data: dict[str, Any]) -> Holding:
    """Raises KeyError, TypeError or ValueError for data of another shape."""
    link = {**data["link"], "altnames": tuple(data["link"]["altnames"])}
    return Holding(
        link=Link(**{**link, "flags": LinkFlag(link["flags"])}),
        addresses=tuple(map(_address, data["addresses"])),
        routes=tuple(map(_route, data["routes"])),
        shared=tuple(map(_route, data["shared"])),
        neighbors=tuple(map(_neighbor, data["neighbors"])),
    )


def _plain(value: Link | Address | Neighbor | Hop | Route) -> dict[str, Any]:
    """Its members by name: numbers stay, and what has a text of its own becomes that."""
    names = (each.name for each in fields(value) if each.name != _COUNTED)
    return {name: _simple(getattr(value, name)) for name in names}


def _simple(value: object) -> object:
    match value:
        case bool() | str() | None:
            return value
        case int():
            return int(value)
        case tuple():
            return [_simple(each) for each in value]
        case _:
            return str(value)


def _route_data(route: Route) -> dict[str, Any]:
    return {**_plain(route), "hops": [_plain(hop) for hop in route.hops]}


def _address(data: dict[str, Any]) -> Address:
    return Address(
        **{
            **data,
            "interface": ipaddress.ip_interface(data["interface"]),
            "peer": _ip(data["peer"]),
            "broadcast": _v4(data["broadcast"]),
            "flags": AddressFlag(data["flags"]),
        }
    )


def _route(data: dict[str, Any]) -> Route:
    return Route(
        **{
            **data,
            "family": Family(data["family"]),
            "destination": ipaddress.ip_network(data["destination"]),
            "type": RouteType(data["type"]),
            "hops": tuple(Hop(**{**hop, "gateway": _ip(hop["gateway"])}) for hop in data["hops"]),
            "source": _ip(data["source"]),
            "from_": _network(data["from_"]),
        }
    )


def _neighbor(data: dict[str, Any]) -> Neighbor:
    return Neighbor(
        **{
            **data,
            "address": ipaddress.ip_address(data["address"]),
            "state": NeighborState(data["state"]),
            "flags": NeighborFlag(data["flags"]),
        }
    )


def _ip(text: str | None) -> IpAddress | None:
    return None if text is None else ipaddress.ip_address(text)


def _v4(text: str | None) -> IPv4Address | None:
    return None if text is None else ipaddress.IPv4Address(text)


def _network(text: str | None) -> IpNetwork | None:
    return None if text is None else ipaddress.ip_network(text)
