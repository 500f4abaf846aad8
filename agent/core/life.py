"""Words of a process's life: how its output is kept, why it ended, what it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WINDOW = 1 << 20
"""Bytes of one stream that may wait for their reader, unless a request says otherwise."""


class WhenFull(StrEnum):
    """What happens to a stream whose buffer is full."""

    WAIT = "wait"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """A log of a process's output: `files` of at most `max_bytes` each."""

    max_bytes: int = 10 << 20
    files: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How a process's output is kept; `window` are bytes of each stream."""

    window: int = WINDOW
    when_full: WhenFull = WhenFull.WAIT
    log: LogOptions | None = None


USUAL_STREAMS = StreamOptions()
"""What a process has that nobody said anything of."""


class Until(StrEnum):
    """When a reader of output has had enough: at what was written until the process ended,
    or at the streams' own ends."""

    EXIT = "exit"
    END = "end"


class EndCause(StrEnum):
    """Why a process ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED_BY_AGENT = "killed_by_agent"
    SANDBOX_GONE = "sandbox_gone"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """A kill of the kernel's: `limit` in bytes and `cgroup` below the container's own; 0 and
    empty when the guest as a whole had no memory left."""

    victim: str
    pid: int
    limit: int = 0
    cgroup: str = ""


class PressureResource(StrEnum):
    """The names of the kernel's files (psi.rst)."""

    CPU = "cpu"
    MEMORY = "memory"
    IO = "io"


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureThreshold:
    """Some (or, with `full`, all) tasks stalled for `stall` of `window` microseconds."""

    resource: PressureResource
    full: bool = False
    stall: int
    window: int
