"""Figures: samples of one quantity, and what is said of them."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """All samples of one quantity, in the order in which they were taken."""

    name: str
    unit: str
    samples: tuple[float, ...]
    what: str
    """What exactly was measured, in one line."""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Distance of the quartiles, 0 for fewer than two samples."""
        if len(self.samples) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return third - first

    def to_json(self) -> dict[str, object]:
        return {
            "median": _rounded(self.median),
            "min": _rounded(min(self.samples)),
            "max": _rounded(max(self.samples)),
            "spread": _rounded(self.spread),
            "samples": [_rounded(sample) for sample in self.samples],
            "unit": self.unit,
            "what": self.what,
        }

    def to_row(self) -> tuple[str, ...]:
        """Name, median, spread, min, max, number of samples, unit."""
        spread = _shown(self.spread) if len(self.samples) > 1 else "-"
        extremes = (_shown(min(self.samples)), _shown(max(self.samples)))
        count = str(len(self.samples))
        return (self.name, _shown(self.median), spread, *extremes, count, self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of one quantity."""

    name: str
    value: float
    unit: str
    what: str


def milliseconds(name: str, seconds: float, what: str) -> Sample:
    return Sample(name=name, value=seconds * 1000, unit="ms", what=what)


def gather(samples: Iterable[Sample]) -> tuple[Figure, ...]:
    """One figure for each name, in the order in which the names first came."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    return tuple(
        Figure(
            name=name,
            unit=found[0].unit,
            what=found[0].what,
            samples=tuple(sample.value for sample in found),
        )
        for name, found in by_name.items()
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all are not above (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _shown(value: float) -> str:
    """Four figures, and never an exponent."""
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def _rounded(value: float) -> float:
    """Four decimals: below a microsecond nothing here means anything."""
    return round(value, 4)
