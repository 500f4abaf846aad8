"""Which interface leads straight to an address: where a gateway is found.

The kernel takes a gateway only where a route on link leads to it, never one that itself
goes through a gateway (fib_check_nh in net/ipv4/fib_semantics.c, ip6_route_check_nh in
net/ipv6/route.c). It looks into the table of the route, then by the rules; here: into
that table, then into the main one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from agent.core.network import MAIN_TABLE, Family, RouteType, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.network import IpAddress, IpNetwork, Route

V = TypeVar("V")


class Prefixes(Generic[V]):
    """Values by prefix, of one family; the longest one that has an address is found in as
    many steps as there are lengths."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._by_length: dict[int, dict[int, V]] = {}

    def add(self, prefix: IpNetwork, value: V) -> None:
        """The first value of a prefix stays."""
        number = int(prefix.network_address)
        self._by_length.setdefault(prefix.prefixlen, {}).setdefault(number, value)

    def longest(self, address: IpAddress) -> tuple[int, V] | None:
        """Length and value."""
        number = int(address)
        for length in sorted(self._by_length, reverse=True):
            away = self._bits - length
            value = self._by_length[length].get(number >> away << away)
            if value is not None:
                return length, value
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The interface, and how long the prefix is that says so."""

    index: int
    length: int


class OnLink:
    """The routes on link among some routes; of several with one prefix the one with the
    lowest metric counts."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._tables: dict[tuple[Family, int], Prefixes[int]] = {}
        self._found: dict[tuple[IpAddress, int], Way | None] = {}
        for route in sorted(filter(_is_on_link, routes), key=lambda route: route.metric):
            table = self._tables.setdefault(
                (route.family, route.table), Prefixes(route.family.bits)
            )
            table.add(route.destination, route.hops[0].index)

    def find(self, gateway: IpAddress, table: int) -> Way | None:
        """The way to a gateway for a route of this table; None where there is none."""
        asked = (gateway, table)
        if asked not in self._found:
            self._found[asked] = self._look(gateway, table) or self._look(gateway, MAIN_TABLE)
        return self._found[asked]

    def _look(self, gateway: IpAddress, table: int) -> Way | None:
        prefixes = self._tables.get((Family.of(gateway), table))
        found = prefixes.longest(gateway) if prefixes is not None else None
        return None if found is None else Way(length=found[0], index=found[1])


def _is_on_link(route: Route) -> bool:
    if route.type is not RouteType.UNICAST or not route.hops:
        return False
    first = route.hops[0]
    scoped = route.family is Family.V6 or route.scope >= Scope.LINK
    return first.gateway is None and bool(first.index) and scoped
