"""The routes and rules that are there at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.network import Family, RoutesState
from agent.core.rtnl import links as rtnl_links
from agent.core.rtnl import routes as rtnl_routes
from agent.handlers.network.linknames import LinkNames
from agent.handlers.network.rules import HeldRule, held_rules

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink
    from agent.core.network import Route
    from agent.handlers.network.routetargets import SetKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Routes as the kernel lists them: those of one key in the order that counts."""

    routes: tuple[Route, ...]
    rules: Mapping[Family, list[HeldRule]]
    names: LinkNames

    def within(self, tables: Collection[SetKey]) -> tuple[Route, ...]:
        return tuple(route for route in self.routes if (route.family, route.table) in tables)

    def state(self, *, changed: tuple[str, ...] = ()) -> RoutesState:
        """By family and table; rules by family."""
        return RoutesState(
            routes=tuple(sorted(self.routes, key=lambda route: (route.family, route.table))),
            rules=tuple(held.rule for family in sorted(self.rules) for held in self.rules[family]),
            names=self.names.names,
            changed=changed,
        )


async def look(
    netlink: Netlink,
    tables: Collection[SetKey],
    families: Collection[Family],
    deadline: Deadline,
) -> Snapshot:
    """The routes of these tables (0: all of the family) and the rules of these families."""
    routes: list[Route] = []
    for family, table in sorted(tables):
        routes += await rtnl_routes.all_routes(netlink, deadline, family=family, table=table)
    rules = {family: await held_rules(netlink, family, deadline) for family in sorted(families)}
    names = LinkNames(await rtnl_links.all_links(netlink, deadline))
    return Snapshot(routes=tuple(routes), rules=rules, names=names)
