"""How far a VM's start has come: what the daemon tells its starter, line by line."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum

from innkeeper.shim.errors import Reason, ShimError


class Phase(StrEnum):
    """In this order; KERNEL and PID1 only when the console says something."""

    BOOTING = "booting"
    """QEMU runs."""
    KERNEL = "kernel"
    """The first line on the console."""
    PID1 = "pid1"
    """The first line of our init."""
    AGENT = "agent"
    """The first answer of the agent: the VM is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step."""

    phase: Phase
    seconds: float
    """Since QEMU's start."""
    text: str
    """One line for people."""


class Reporter:
    """The daemon's end of the pipe. A starter that has left is no error."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def progress(self, step: Progress) -> None:
        self._write(asdict(step))

    def failed(self, error: ShimError) -> None:
        self._write({"failed": error.reason, "message": error.message, "hint": error.hint})

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, record: dict[str, object]) -> None:
        if self._fd >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._fd, json.dumps(record).encode() + b"\n")


def parse(line: bytes) -> Progress:
    """The starter's end: a step; raises what the daemon says that it failed with."""
    record = json.loads(line)
    if "failed" in record:
        raise ShimError(Reason(record["failed"]), record["message"], hint=record["hint"])
    return Progress(phase=Phase(record["phase"]), seconds=record["seconds"], text=record["text"])
