"""Rules as iptables-save prints them, completed so that nothing else is left.

iptables-restore empties only the tables that it is given, and before nf_tables it kept the
policies of chains that have no line. So tables that are there and not given get an empty
section, and chains without a line get their default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# iptables(8), "TABLES".
_CHAINS: Final = {
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "raw": ("PREROUTING", "OUTPUT"),
    "security": ("INPUT", "FORWARD", "OUTPUT"),
}
_LINE_NUMBER = re.compile(r"(?<=\bline )\d+|(?<=\bline: )\d+")


@dataclass(slots=True)
class Completed:
    """Lines for iptables-restore; `origin` is the line of the input that each belongs to."""

    lines: list[bytes] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)

    @property
    def text(self) -> bytes:
        return b"".join(line + b"\n" for line in self.lines)

    def add(self, line: bytes, number: int) -> None:
        self.lines.append(line)
        self.origin.append(number)

    def in_their_words(self, said: str) -> str:
        """The tool's message, with line numbers of the input."""
        return _LINE_NUMBER.sub(self._line, said)

    def _line(self, match: re.Match[str]) -> str:
        number = int(match[0]) - 1
        return str(self.origin[number]) if 0 <= number < len(self.origin) else match[0]


def completed(rules: bytes, tables: Iterable[str]) -> Completed:
    """`rules`, and nothing in those of `tables` that these do not name."""
    result = Completed()
    missing: list[str] = []
    number = 0
    for number, line in enumerate(rules.splitlines(), start=1):
        word = line.strip()
        if word.startswith(b"*"):
            missing = list(_CHAINS.get(_name(word), ()))
        elif word.startswith(b":"):
            missing = [chain for chain in missing if chain != _name(word)]
        elif word == b"COMMIT":
            for default in _defaults(missing):
                result.add(default, number)
            missing = []
        result.add(line, number)
    for table in sorted(set(tables) - tables_of(rules)):
        for line in (f"*{table}".encode(), *_defaults(_CHAINS.get(table, ())), b"COMMIT"):
            result.add(line, number)
    return result


def tables_of(rules: bytes) -> frozenset[str]:
    """Names of the tables that a text has sections for."""
    lines = (line.strip() for line in rules.splitlines())
    return frozenset(_name(line) for line in lines if line.startswith(b"*"))


def _defaults(chains: Iterable[str]) -> list[bytes]:
    return [f":{chain} ACCEPT [0:0]".encode() for chain in chains]


def _name(line: bytes) -> str:
    words = line[1:].split()
    return words[0].decode(errors="replace") if words else ""
