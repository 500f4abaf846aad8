"""Files of a cgroup as numbers (cgroup-v2.rst).

What is not there, is empty, went between the opening and the reading (ENODEV), or is no
number counts as 0: which files there are depends on the kernel, its command line and the
controllers, and a container that ends takes them all away at any moment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.core.usage import NO_LIMIT, Pressure, Stall
from agent.linux import pseudo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


# The kernel's are 64 bits wide.
_NUMBER = re.compile("[0-9]{1,20}")
_PERCENT = re.compile(r"[0-9]{1,3}\.[0-9]{2}")


def text(path: Path) -> str:
    """The whole file; empty where it can't be read, for whatever reason."""
    try:
        return pseudo.read_text(path)
    except OSError:
        return ""


def number(word: str) -> int:
    """A count, or a limit that may be "max"."""
    word = word.strip()
    if word == "max":
        return NO_LIMIT
    return min(int(word), NO_LIMIT) if _NUMBER.fullmatch(word) else 0


def count(path: Path) -> int:
    """A file of one number, or "max"."""
    return number(text(path))


def table(path: Path) -> Mapping[str, int]:
    """A file of lines `KEY NUMBER`."""
    return Figures(parse_table(text(path)))


class Figures(dict[str, int]):
    """Figures by name; those that are not there are 0."""

    def __missing__(self, _name: str) -> int:
        return 0


def parse_table(content: str) -> dict[str, int]:
    """Lines `KEY NUMBER`."""
    words = (line.split() for line in content.splitlines())
    return {word[0]: number(word[1]) for word in words if len(word) == 2}


def pressure(path: Path) -> Pressure:
    """A file of pressure stall information; the kernel has none of it with psi=0."""
    return parse_pressure(text(path))


def parse_pressure(content: str) -> Pressure:
    """Lines `some avg10=0.12 avg60=0.03 avg300=0.00 total=12345` (psi.rst)."""
    stalls = {}
    for line in content.splitlines():
        kind, *words = line.split() or [""]
        values = dict(word.split("=", 1) for word in words if "=" in word)
        stalls[kind] = _stall(values)
    return Pressure(some=stalls.get("some", Stall()), full=stalls.get("full", Stall()))


def _stall(values: Mapping[str, str]) -> Stall:
    return Stall(
        average_10s=_percent(values.get("avg10", "")),
        average_60s=_percent(values.get("avg60", "")),
        average_300s=_percent(values.get("avg300", "")),
        total_micros=number(values.get("total", "")),
    )


def _percent(word: str) -> float:
    return float(word) if _PERCENT.fullmatch(word) else 0.0
