"""One mapping, key by key: what it has must be asked for, or it is an error.

A key that nobody asked for is told with its line and the nearest key that there is.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from innkeeper.netplan.tree import Items, NetplanError, Table, Text

if TYPE_CHECKING:
    from innkeeper.netplan.tree import Node

# YAML 1.1's, in the three spellings that it has for each.
_YES = frozenset({"y", "yes", "true", "on"})
_NO = frozenset({"n", "no", "false", "off"})

_DURATION = re.compile(r"(?P<number>[0-9]{1,9})(?P<unit>ms|s)?")
_NUMBER = re.compile(r"[0-9]{1,10}|0x[0-9a-fA-F]{1,8}")


class Fields:
    """The keys of a mapping; `what` is what they are of, in errors."""

    def __init__(self, node: Node, what: str) -> None:
        if isinstance(node, Text) and not node.text:
            node = Table(line=node.line, entries={}, lines={})
        if not isinstance(node, Table):
            raise NetplanError(node.line, f"{what}: keys are wanted here, as in `key: value`")
        self.line = node.line
        self.what = what
        self._entries = node.entries
        self._lines = node.lines
        self._known: set[str] = set()

    def has(self, name: str) -> bool:
        self._known.add(name)
        return name in self._entries

    def line_of(self, name: str) -> int:
        return self._lines.get(name, self.line)

    def node(self, name: str) -> Node | None:
        return self._entries[name] if self.has(name) else None

    def items(self) -> tuple[tuple[str, Node], ...]:
        """All of them, whose names are the file's own."""
        self._known |= self._entries.keys()
        return tuple(self._entries.items())

    def text(self, name: str) -> str:
        """Empty when it is not there."""
        node = self.node(name)
        if node is None:
            return ""
        if not isinstance(node, Text) or not node.text:
            raise self.wrong(name, "one value is wanted here")
        return node.text

    def flag(self, name: str) -> bool | None:
        text = self.text(name).lower()
        if not text:
            return None
        if text not in _YES | _NO:
            raise self.wrong(name, f"{text!r} is neither true nor false")
        return text in _YES

    def number(self, name: str, range_: range) -> int | None:
        """Decimal, or hexadecimal after 0x."""
        text = self.text(name)
        if not text:
            return None
        if not _NUMBER.fullmatch(text) or int(text, 0 if "x" in text else 10) not in range_:
            raise self.wrong(name, f"{text!r}: {range_.start} to {range_.stop - 1} is possible")
        return int(text, 0 if "x" in text else 10)

    def milliseconds(self, name: str, unit: str) -> int | None:
        """`unit`: that of a bare number, "s" or "ms"."""
        text = self.text(name)
        if not text:
            return None
        match = _DURATION.fullmatch(text)
        if match is None:
            raise self.wrong(name, f"{text!r}: write a number, with ms or s behind it or without")
        return int(match["number"]) * (1000 if (match["unit"] or unit) == "s" else 1)

    def choice(self, name: str, choices: frozenset[str]) -> str:
        text = self.text(name)
        if text and text not in choices:
            raise self.wrong(name, f"{text!r} is none of {', '.join(sorted(choices))}")
        return text

    def texts(self, name: str) -> tuple[Text, ...]:
        """A sequence of values."""
        found = []
        for node in self.sequence(name):
            if not isinstance(node, Text) or not node.text:
                raise NetplanError(node.line, f"{self.what}: {name}: plain values are wanted here")
            found.append(node)
        return tuple(found)

    def sequence(self, name: str) -> tuple[Node, ...]:
        node = self.node(name)
        if node is None or (isinstance(node, Text) and not node.text):
            return ()
        if not isinstance(node, Items):
            raise self.wrong(name, "a list is wanted here, as in [a, b]")
        return node.items

    def fields(self, name: str) -> Fields | None:
        """A mapping below this one."""
        node = self.node(name)
        return None if node is None else Fields(node, f"{self.what}: {name}")

    def ignore(self, *names: str) -> None:
        """Keys that say nothing that a guest's kernel could be told."""
        self._known |= set(names)

    def refuse(self, why: str, *names: str, hint: str = "") -> None:
        """Keys that netplan has and nobody here can honour."""
        for name in names:
            if self.has(name):
                raise self.wrong(name, why, hint)

    def wrong(self, name: str, why: str, hint: str = "") -> NetplanError:
        return NetplanError(self.line_of(name), f"{self.what}: {name}: {why}", hint=hint)

    def finish(self) -> None:
        """Raises NetplanError for the first key that nobody asked for."""
        for name in self._entries:
            if name not in self._known:
                near = difflib.get_close_matches(name, self._known, n=1)
                hint = (
                    f"is {near[0]} meant?" if near else f"it has {', '.join(sorted(self._known))}"
                )
                raise NetplanError(self.line_of(name), f"{self.what}: no key {name!r}", hint=hint)
