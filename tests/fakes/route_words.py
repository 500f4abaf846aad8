"""Routes and rules written as ip(8) writes them.

wished("default via 192.0.2.1 dev e0 metric 5")
there("192.0.2.0/24 dev e0 proto kernel scope link", LINKS)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from agent.core.network import (
    MAIN_TABLE,
    Family,
    Hop,
    HopWish,
    IpNetwork,
    Link,
    LinkFlag,
    Protocol,
    Route,
    RouteSet,
    RoutesWish,
    RouteType,
    RouteWish,
    RuleSet,
    Scope,
)
from agent.handlers.network.linknames import LinkNames

LINKS: Mapping[str, int] = {"lo": 1, "e0": 2, "e1": 3, "e2": 4}
_PROTOCOLS = {each.name.lower(): each for each in Protocol}
_SCOPES = {each.word: each for each in Scope}
_TYPES = {each.name.lower(): each for each in RouteType}
_PAIRS = {"src", "metric", "mtu", "scope", "proto", "via", "dev", "weight", "tos"}


def names(links: Mapping[str, int] = LINKS) -> LinkNames:
    """The interfaces of the fakes."""
    return LinkNames(
        Link(index=index, name=name, flags=LinkFlag.UP, mtu=1500) for name, index in links.items()
    )


def wished(text: str, family: Family = Family.V4) -> RouteWish:
    """A wanted route."""
    type_, destination, parts, hops = _parsed(text, family)
    return RouteWish(
        destination=destination,
        type=type_,
        hops=tuple(HopWish(**hop) for hop in hops),
        source=parts.get("source"),
        metric=parts.get("metric", 0),
        scope=parts.get("scope"),
        mtu=parts.get("mtu", 0),
    )


def there(
    text: str,
    family: Family = Family.V4,
    *,
    table: int = MAIN_TABLE,
    links: Mapping[str, int] = LINKS,
) -> Route:
    """A route as the kernel has it."""
    type_, destination, parts, hops = _parsed(text, family)
    ways = tuple(
        Hop(
            **{key: value for key, value in hop.items() if key != "device"},
            index=links.get(hop.get("device", ""), 0),
        )
        for hop in hops
    )
    on_link = bool(ways) and all(hop.gateway is None for hop in ways)
    usual = Scope.LINK if family is Family.V4 and on_link else Scope.UNIVERSE
    return Route(
        family=family,
        table=table,
        destination=destination,
        type=type_,
        hops=ways,
        source=parts.get("source"),
        metric=parts.get("metric", 1024 if family is Family.V6 else 0),
        scope=parts.get("scope", usual),
        mtu=parts.get("mtu", 0),
        protocol=parts.get("proto", Protocol.BOOT),
        tos=parts.get("tos", 0),
    )


def v4(*texts: str, table: int = MAIN_TABLE) -> RouteSet:
    """A set of IPv4 routes."""
    routes = tuple(wished(text) for text in texts)
    return RouteSet(family=Family.V4, table=table, routes=routes)


def v6(*texts: str, table: int = MAIN_TABLE) -> RouteSet:
    """A set of IPv6 routes."""
    routes = tuple(wished(text, Family.V6) for text in texts)
    return RouteSet(family=Family.V6, table=table, routes=routes)


def wish(*sets: RouteSet, rules: Iterable[RuleSet] = ()) -> RoutesWish:
    return RoutesWish(sets=sets, rules=tuple(rules))


def _parsed(
    text: str, family: Family
) -> tuple[RouteType, IpNetwork, dict[str, Any], list[dict[str, Any]]]:
    words = text.split()
    type_ = _TYPES[words.pop(0)] if words[0] in _TYPES else RouteType.UNICAST
    destination = words.pop(0)
    anywhere = "0.0.0.0/0" if family is Family.V4 else "::/0"
    parts: dict[str, Any] = {}
    hops: list[dict[str, Any]] = [{}]
    while words:
        word = words.pop(0)
        match word:
            case "nexthop":
                hops.append({})
            case "onlink":
                hops[-1]["onlink"] = True
            case _ if word in _PAIRS:
                _pair(word, words.pop(0), parts, hops[-1])
            case _:
                raise AssertionError(f"{word!r} of {text!r}")
    network = ip_network(anywhere if destination == "default" else destination)
    return type_, network, parts, [hop for hop in hops if hop]


def _pair(word: str, value: str, parts: dict[str, Any], hop: dict[str, Any]) -> None:
    match word:
        case "via":
            hop["gateway"] = ip_address(value)
        case "dev":
            hop["device"] = value
        case "weight":
            hop["weight"] = int(value)
        case "src":
            parts["source"] = ip_address(value)
        case "scope":
            parts["scope"] = _SCOPES[value]
        case "proto":
            parts["proto"] = _PROTOCOLS[value]
        case _:
            parts[word] = int(value)
