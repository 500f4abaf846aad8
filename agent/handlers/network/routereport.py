"""What a request changed, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.handlers.network.reportlines import LINES
from agent.handlers.network.routetexts import route_text, rule_text, set_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.core.network import Route
    from agent.handlers.network.linknames import LinkNames
    from agent.handlers.network.rules import HeldRule


def route_lines(
    before: Iterable[Route], after: Iterable[Route], names: LinkNames
) -> tuple[list[str], int]:
    """`v4 table 254: +default via 192.0.2.1 dev eth0`; what a route was comes before what
    it is. LINES of them at most, and how many more there are, which nobody reads."""
    had, has = dict.fromkeys(before), dict.fromkeys(after)
    changed = [(False, route) for route in had if route not in has]
    changed += [(True, route) for route in has if route not in had]
    changed.sort(key=_place)
    lines = [
        f"{set_text(route.family, route.table)}: {'+' if new else '-'}{route_text(route, names)}"
        for new, route in changed[:LINES]
    ]
    return lines, len(changed) - len(lines)


def _place(change: tuple[bool, Route]) -> tuple[int, ...]:
    new, route = change
    network = route.destination
    address = int(network.network_address)
    return (route.family, route.table, address, network.prefixlen, route.metric, new)


def rule_lines(before: Sequence[HeldRule], after: Sequence[HeldRule]) -> Iterator[str]:
    """`v4 rule 100: +from 192.0.2.0/24 lookup 100`."""
    gone = [("-", held) for held in before if held not in after]
    new = [("+", held) for held in after if held not in before]
    for sign, held in sorted((*gone, *new), key=lambda line: line[1].rule.priority):
        rule = held.rule
        yield f"{rule.family.word} rule {rule.priority}: {sign}{rule_text(rule)}"
