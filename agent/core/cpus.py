"""Lists of CPUs as the kernel writes and reads them: "0-3,7" (cpuset(7), List format)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)

MOST = 8192
"""NR_CPUS of the largest kernels (CONFIG_MAXSMP); a list that names more is not one."""


def parse_cpus(text: str) -> frozenset[int]:
    """The CPUs in a list; none in an empty one. Raises ValueError for what is not a list."""
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r} is not a list of CPUs: {part!r} is no number or range")
        first = int(match[1])
        last = int(match[2] or match[1])
        if last < first or last >= MOST:
            raise ValueError(
                f"{text!r} is not a list of CPUs: {part!r} is not a range below {MOST}"
            )
        found.update(range(first, last + 1))
    return frozenset(found)


def spell_cpus(cpus: Iterable[int]) -> str:
    """The shortest list, in order; empty for none."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
