"""Planned steps as changes that the kernel takes."""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
from typing import TYPE_CHECKING, Final

from agent.core.netlink import NLM_F_CREATE
from agent.core.network import Family, Hop, Protocol, Route, Scope
from agent.core.rtnl import routes as rtnl
from agent.handlers.network.routegroups import Op
from agent.handlers.network.routetexts import route_text, set_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.core.netlink import Change
    from agent.handlers.network.linknames import LinkNames
    from agent.handlers.network.routegroups import Step

_GONE: Final = frozenset({errno.ESRCH})
_SUPPORT_METRIC: Final = 1


def route_change(step: Step, names: LinkNames) -> Change:
    """A step of a plan."""
    route = step.route
    what = f"{step.op} route {route_text(route, names)} in {set_text(route.family, route.table)}"
    match step.op:
        case Op.ADD:
            return rtnl.added(route, what)
        case Op.PREPEND:
            return dataclasses.replace(rtnl.added(route, what), flags=NLM_F_CREATE)
        case Op.APPEND:
            return rtnl.appended(route, what)
        case Op.REPLACE:
            return rtnl.replaced(route, what)
        case Op.REMOVE:
            return dataclasses.replace(rtnl.removed(route, what), fine=_GONE)


def supports(route: Route) -> Iterator[Route]:
    """Routes on link that make the kernel take a route's gateways, whatever else is there.

    A route may have outlived the one on link that it was made with. To put it back, that
    one is needed for a moment.
    """
    for hop in route.hops:
        if hop.gateway is not None and hop.index and not hop.onlink:
            yield Route(
                family=Family.of(hop.gateway),
                table=route.table,
                destination=ipaddress.ip_network(hop.gateway),
                hops=(Hop(index=hop.index),),
                metric=_SUPPORT_METRIC,
                scope=Scope.LINK if hop.gateway.version == 4 else Scope.UNIVERSE,
                protocol=Protocol.BOOT,
            )


def support_added(route: Route) -> Change:
    """Refused with EEXIST where it is there already."""
    what = f"lead to {route.destination.network_address} for a moment"
    return rtnl.added(route, what)


def support_removed(route: Route) -> Change:
    what = f"lead to {route.destination.network_address} no more"
    return dataclasses.replace(rtnl.removed(route, what), fine=_GONE)
