"""Routes and rules in words, as `ip` writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.network import Family, RouteType, RuleAction, Scope

if TYPE_CHECKING:
    from agent.core.network import Hop, IpNetwork, Route, Rule
    from agent.handlers.network.linknames import LinkNames

_ALL_BITS = 0xFFFFFFFF


def route_text(route: Route, names: LinkNames) -> str:
    """`default via 192.0.2.1 dev eth0 metric 100`, `blackhole 198.51.100.0/24`."""
    words = [] if route.type is RouteType.UNICAST else [route.type.name.lower()]
    words.append(destination_text(route.destination))
    if route.from_ is not None and route.from_.prefixlen:
        words.append(f"from {route.from_}")
    words += _hops(route, names)
    words += _details(route)
    return " ".join(words)


def set_text(family: Family, table: int) -> str:
    """`v4 table 254`: how errors and `changed` call a set."""
    return f"{family.word} table {table}"


def destination_text(network: IpNetwork) -> str:
    """`default`, one address without its prefix, or a prefix."""
    if not network.prefixlen:
        return "default"
    if network.prefixlen == network.max_prefixlen:
        return str(network.network_address)
    return str(network)


def rule_text(rule: Rule) -> str:
    """`from 192.0.2.0/24 fwmark 0x1 lookup 100`."""
    words = ["not"] if rule.invert else []
    words.append(f"from {destination_text(rule.source) if rule.source else 'all'}")
    words += [f"to {destination_text(rule.destination)}"] if rule.destination else []
    words += [f"iif {rule.incoming}"] if rule.incoming else []
    words += [f"oif {rule.outgoing}"] if rule.outgoing else []
    if rule.mark is not None:
        mask = f"/{rule.mark_mask:#x}" if rule.mark_mask != _ALL_BITS else ""
        words.append(f"fwmark {rule.mark:#x}{mask}")
    words += [f"ipproto {rule.ip_protocol}"] if rule.ip_protocol else []
    words += ["(and more)"] if rule.others else []
    words.append(_action(rule))
    if rule.suppress_prefix_length is not None:
        words.append(f"suppress_prefixlength {rule.suppress_prefix_length}")
    return " ".join(words)


def _action(rule: Rule) -> str:
    if rule.action is RuleAction.TABLE:
        return f"lookup {rule.table}" if rule.table else "lookup elsewhere"
    return rule.action.name.lower()


def _hops(route: Route, names: LinkNames) -> list[str]:
    if route.type is not RouteType.UNICAST:
        return []
    if len(route.hops) == 1:
        return [_hop(route.hops[0], names)]
    return [f"nexthop {_hop(hop, names)} weight {hop.weight}" for hop in route.hops]


def _hop(hop: Hop, names: LinkNames) -> str:
    words = [f"via {hop.gateway}"] if hop.gateway is not None else []
    words += [f"dev {names.name(hop.index)}"] if hop.index else []
    words += ["onlink"] if hop.onlink else []
    return " ".join(words)


def _details(route: Route) -> list[str]:
    words = [f"tos {route.tos}"] if route.tos else []
    words += [f"src {route.source}"] if route.source is not None else []
    words += [f"metric {route.metric}"] if route.metric else []
    words += [f"mtu {route.mtu}"] if route.mtu else []
    if route.family is Family.V4 and route.scope != _usual_scope(route):
        words.append(f"scope {_scope(route.scope)}")
    return words


def _usual_scope(route: Route) -> Scope:
    gone_on = any(hop.gateway is not None for hop in route.hops)
    return Scope.UNIVERSE if gone_on or not route.hops else Scope.LINK


def _scope(number: int) -> str:
    try:
        return Scope(number).word
    except ValueError:
        return str(number)
