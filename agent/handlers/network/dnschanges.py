"""What an Apply of DNS changed, line by line."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agent.core.network import DnsWish

if TYPE_CHECKING:
    from collections.abc import Iterator


def wish_lines(before: DnsWish | None, after: DnsWish) -> Iterator[str]:
    """`server +192.0.2.53`, `hosts -192.0.2.1 db`: what goes before what comes, kind by kind.

    The order counts: the first server is asked first, the first line with a name is taken.
    """
    had, has = _words(before or DnsWish()), _words(after)
    for kind, old in had.items():
        yield from _kind_lines(kind, old, has[kind])


def _words(wish: DnsWish) -> dict[str, list[str]]:
    return {
        "server": [str(server) for server in wish.servers],
        "search": list(wish.searches),
        "option": list(wish.options),
        "hosts": [f"{entry.address} {' '.join(entry.names)}" for entry in wish.hosts],
    }


def _kind_lines(kind: str, old: list[str], new: list[str]) -> Iterator[str]:
    gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
    yield from (f"{kind} -{word}" for word in gone.elements())
    yield from (f"{kind} +{word}" for word in come.elements())
    if _order(old, new) != _order(new, old):
        yield f"{kind}: another order"


def _order(words: list[str], others: list[str]) -> list[str]:
    """Those that both have, once each: only the first of a kind is ever used."""
    both = set(words) & set(others)
    return [word for word in dict.fromkeys(words) if word in both]
