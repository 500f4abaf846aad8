"""What containers use, from the kernel's counters: percent and rates out of two readings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.cli import output, records
from innkeeper.shim.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innkeeper.v1.containers_pb2 import ContainerStats

TOTALS = ("ID", "CPU %", "MEMORY", "LIMIT", "MEM %", "PIDS", "NET IN", "NET OUT", "READ", "WRITTEN")
RATES = (
    "ID",
    "CPU %",
    "MEMORY",
    "LIMIT",
    "MEM %",
    "PIDS",
    "NET IN/S",
    "NET OUT/S",
    "READ/S",
    "WRITTEN/S",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Bytes through interfaces and block devices."""

    received: float
    sent: float
    read: float
    written: float

    @classmethod
    def of(cls, stats: ContainerStats) -> Flow:
        return cls(
            received=sum(each.received_bytes for each in stats.network),
            sent=sum(each.sent_bytes for each in stats.network),
            read=sum(each.read_bytes for each in stats.io),
            written=sum(each.write_bytes for each in stats.io),
        )

    def since(self, before: Flow, seconds: float) -> Flow:
        """Per second. Counters that went back (an interface that went) stand still."""
        if seconds <= 0:
            return Flow(received=0, sent=0, read=0, written=0)
        return Flow(
            received=max(0, self.received - before.received) / seconds,
            sent=max(0, self.sent - before.sent) / seconds,
            read=max(0, self.read - before.read) / seconds,
            written=max(0, self.written - before.written) / seconds,
        )

    def cells(self) -> list[str]:
        return [
            output.size(round(each)) for each in (self.received, self.sent, self.read, self.written)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Two readings of a container's counters, the first perhaps missing."""

    now: ContainerStats
    before: ContainerStats | None = None

    @property
    def seconds(self) -> float:
        """Between the two; 0 for one alone."""
        if self.before is None:
            return 0
        return (self.now.at_unix_micros - self.before.at_unix_micros) / 1e6

    @property
    def cpu_percent(self) -> float | None:
        """Of one CPU, between the two readings; two that are busy are 200."""
        if self.before is None or self.seconds <= 0:
            return None
        used = self.now.cpu.usage_micros - self.before.cpu.usage_micros
        return max(0, used) / self.seconds / 1e4

    @property
    def memory(self) -> int:
        """Bytes that are not the kernel's to take back at once: as docker counts."""
        memory = self.now.memory
        return max(0, memory.current - memory.inactive_file)

    @property
    def memory_limit(self) -> int | None:
        limit = self.now.memory.limit
        return None if limit in (0, records.UNLIMITED) else limit

    @property
    def memory_percent(self) -> float | None:
        return None if self.memory_limit is None else 100 * self.memory / self.memory_limit

    @property
    def rates(self) -> Flow:
        flow = Flow.of(self.now)
        before = Flow.of(self.before) if self.before is not None else flow
        return flow.since(before, self.seconds)

    def row(self, *, rates: bool) -> list[str]:
        """For `RATES` or `TOTALS`."""
        pids, limit = self.now.pids.current, self.now.pids.limit
        return [
            printable(self.now.id),
            percent(self.cpu_percent),
            output.size(self.memory),
            output.size(self.memory_limit) if self.memory_limit is not None else "-",
            percent(self.memory_percent),
            str(pids) if limit in (0, records.UNLIMITED) else f"{pids} / {limit}",
            *(self.rates if rates else Flow.of(self.now)).cells(),
        ]

    def record(self) -> dict[str, object]:
        """For scripts: all that the guest says, and what follows from two readings."""
        worked_out = {
            "cpu_percent": _rounded(self.cpu_percent),
            "memory_used_bytes": self.memory,
            "memory_percent": _rounded(self.memory_percent),
        }
        return {**records.record(self.now), **worked_out}


class Readings:
    """The last two readings of each container."""

    def __init__(self) -> None:
        self._readings: dict[str, Reading] = {}

    def take(self, stats: ContainerStats) -> Reading:
        former = self._readings.get(stats.id)
        reading = Reading(now=stats, before=former.now if former is not None else None)
        self._readings[stats.id] = reading
        return reading

    def of(self, ids: Iterable[str]) -> list[Reading]:
        """In the order of the ids; those without one are left out."""
        return [self._readings[each] for each in ids if each in self._readings]


def percent(value: float | None) -> str:
    """ "12.5"; "-" when it is not known."""
    return "-" if value is None else f"{value:.1f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
