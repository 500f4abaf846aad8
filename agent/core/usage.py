"""What containers use, as the kernel counts it, and their processes.

The names and units are those of the protocol's messages (containers.proto,
processes.proto), whose comments say what each figure is. What the kernel does not give is
0; a limit that is "max" is `NO_LIMIT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.core.model import ProcessRef

NO_LIMIT = 2**64 - 1
"""What "max" is as a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """How long tasks waited: percent of the last 10, 60, 300 seconds, and microseconds."""

    average_10s: float = 0.0
    average_60s: float = 0.0
    average_300s: float = 0.0
    total_micros: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Pressure stall information (psi.rst): some tasks waited, or all of them at once."""

    some: Stall = Stall()
    full: Stall = Stall()


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuStats:
    """cpu.stat, cpu.max, cpu.weight, cpu.pressure."""

    usage_micros: int = 0
    user_micros: int = 0
    system_micros: int = 0
    periods: int = 0
    throttled_periods: int = 0
    throttled_micros: int = 0
    quota_micros: int = 0
    period_micros: int = 0
    weight: int = 0
    pressure: Pressure = Pressure()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStats:
    """memory.current, memory.stat, memory.events and so on; sizes in bytes."""

    current: int = 0
    peak: int = 0
    limit: int = 0
    swap_current: int = 0
    swap_limit: int = 0
    anon: int = 0
    file: int = 0
    slab: int = 0
    kernel: int = 0
    shmem: int = 0
    inactive_file: int = 0
    page_faults: int = 0
    major_faults: int = 0
    limit_reached: int = 0
    out_of_memory: int = 0
    kills: int = 0
    pressure: Pressure = Pressure()
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IoStats:
    """One device of io.stat; `name` is empty when it is gone."""

    major: int
    minor: int
    name: str = ""
    read_bytes: int = 0
    write_bytes: int = 0
    reads: int = 0
    writes: int = 0
    discarded_bytes: int = 0
    discards: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PidsStats:
    """pids.current, pids.peak, pids.max, pids.events."""

    current: int = 0
    limit: int = 0
    peak: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HugetlbStats:
    """hugetlb.SIZE.current, .max, .events; sizes in bytes."""

    page_bytes: int
    current: int = 0
    limit: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceStats:
    """One line of /proc/PID/net/dev."""

    name: str
    received_bytes: int = 0
    received_packets: int = 0
    receive_errors: int = 0
    receive_drops: int = 0
    sent_bytes: int = 0
    sent_packets: int = 0
    send_errors: int = 0
    send_drops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStats:
    """What a container used until `at`, in seconds of the wall clock."""

    id: str
    at: float
    cpu: CpuStats = CpuStats()
    memory: MemoryStats = MemoryStats()
    io: tuple[IoStats, ...] = ()
    pids: PidsStats = PidsStats()
    hugetlb: tuple[HugetlbStats, ...] = ()
    network: tuple[InterfaceStats, ...] = ()
    io_pressure: Pressure = Pressure()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One process of a container; `started` is in seconds of the wall clock, `terminal` a
    device's number as proc_pid_stat(5) has it (`tty_nr`)."""

    pid: int
    container_pid: int
    parent_pid: int
    process: ProcessRef | None = None
    user_id: int = 0
    name: str = ""
    arguments: tuple[str, ...] = ()
    state: str = ""
    cpu_micros: int = 0
    resident_bytes: int = 0
    threads: int = 0
    started: float = 0.0
    terminal: int = 0
