"""How a process ended, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innkeeper.cli import output, signals
from innkeeper.shim.errors import printable
from innkeeper.v1 import types_pb2

if TYPE_CHECKING:
    from innkeeper.v1.types_pb2 import ExitStatus


def short(status: ExitStatus) -> str:
    """ "exited (3)", "out of memory (137)"."""
    words = {
        types_pb2.END_CAUSE_OUT_OF_MEMORY: "out of memory",
        types_pb2.END_CAUSE_KILLED_BY_AGENT: "killed",
        types_pb2.END_CAUSE_SIGNALLED: "killed",
        types_pb2.END_CAUSE_LOST: "lost",
    }
    return f"{words.get(status.cause, 'killed' if status.signal else 'exited')} ({status.code})"


def long(status: ExitStatus) -> str:
    """Why it ended, as a sentence's end: "exited with 3"."""
    match status.cause:
        case types_pb2.END_CAUSE_OUT_OF_MEMORY:
            return _out_of_memory(status.out_of_memory)
        case types_pb2.END_CAUSE_KILLED_BY_AGENT:
            return f"{_by_signal(status)}{_asked(status)}"
        case types_pb2.END_CAUSE_SANDBOX_GONE:
            return f"{_by_signal(status)}: its sandbox was destroyed"
        case types_pb2.END_CAUSE_LOST:
            return "ended; how is lost"
    return _by_signal(status)


def _asked(status: ExitStatus) -> str:
    """One may also exit by itself, or by another signal, when it was told to end."""
    by_that = status.signal and status.why == f"{signals.name(status.signal)} was asked for"
    if by_that or not status.why:
        return ", which was asked for"
    return f": {printable(status.why)}"


def _by_signal(status: ExitStatus) -> str:
    """Also one that was told to end may have exited by itself."""
    if not status.signal:
        return f"exited with {status.code}"
    core = " (core dumped)" if status.core_dumped else ""
    return f"ended by {signals.name(status.signal)}{core}"


def _out_of_memory(kill: types_pb2.OutOfMemory) -> str:
    victim = f"{printable(kill.victim) or 'it'} (pid {kill.pid})" if kill.pid else "it"
    if not kill.limit_bytes:
        return f"out of memory: the kernel killed {victim}, the guest had none left"
    below = "" if kill.cgroup in ("", "/") else f" of {printable(kill.cgroup)}"
    limit = output.size(kill.limit_bytes)
    return f"out of memory: the kernel killed {victim} at the limit of {limit}{below}"
