"""Interfaces by the names that requests use: their own and their alternative ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.errors import Reason, not_found

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.core.network import Link

_NAMED = 40
"""How many names an error lists."""


class LinkNames:
    """The interfaces at one moment."""

    def __init__(self, links: Iterable[Link]) -> None:
        self.links: Mapping[int, Link] = {link.index: link for link in links}
        self.names: Mapping[int, str] = {index: link.name for index, link in self.links.items()}
        self._indexes = {
            name: link.index for link in self.links.values() for name in (*link.altnames, link.name)
        }

    def index(self, name: str, *, of: str) -> int:
        """The number of a name; `of` says what it was asked for.

        Raises NOT_FOUND UNKNOWN_INTERFACE.
        """
        index = self._indexes.get(name)
        if index is None:
            raise self._unknown(name, of)
        return index

    def name(self, index: int) -> str:
        """The name of a number, which may be of an interface that went meanwhile."""
        return self.names.get(index, f"if{index}")

    def _unknown(self, name: str, of: str) -> Exception:
        there = sorted(self.names.values())
        listed = ", ".join(there[:_NAMED]) + (", ..." if len(there) > _NAMED else "")
        return not_found(
            f"{of}: there is no interface {name!r}; there are {listed or 'none'}",
            reason=Reason.UNKNOWN_INTERFACE,
            hint="attach it or make it first (ApplyInterface), or use another name",
            interface=name,
        )
