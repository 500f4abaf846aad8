"""Why a process ended, from the journal, the kernel's log, and what the agent did."""

from __future__ import annotations

import signal

import pytest

from agent.core.life import EndCause, OutOfMemory
from agent.core.pid1 import JournalEntry
from agent.handlers.runtime.ends import (
    DESTROYED,
    REMOVED,
    UNDONE,
    asked,
    explain,
    lost,
    signal_name,
)

pytestmark = [pytest.mark.unit, pytest.mark.containers]

KILL = OutOfMemory(victim="hog", pid=7, limit=1 << 20, cgroup="/")


def entry(number: int = 0, code: int = 0, *, core_dumped: bool = False) -> JournalEntry:
    return JournalEntry(
        sequence=1,
        pid=7,
        cgroup="/pods/s/c",
        code=128 + number if number else code,
        signal=number,
        at=1.5,
        core_dumped=core_dumped,
    )


@pytest.mark.parametrize(
    ("number", "sent", "oom", "cause"),
    [
        (0, "", None, EndCause.EXITED),
        # It had a handler, and went by itself.
        (0, asked(signal.SIGTERM), None, EndCause.EXITED),
        (0, REMOVED, None, EndCause.EXITED),
        (signal.SIGSEGV, "", None, EndCause.SIGNALLED),
        (signal.SIGKILL, "", None, EndCause.SIGNALLED),
        (signal.SIGTERM, asked(signal.SIGTERM), None, EndCause.KILLED_BY_AGENT),
        (signal.SIGHUP, asked(signal.SIGHUP), None, EndCause.KILLED_BY_AGENT),
        # Something else ended it than what was asked for.
        (signal.SIGSEGV, asked(signal.SIGTERM), None, EndCause.SIGNALLED),
        (signal.SIGKILL, asked(signal.SIGTERM), None, EndCause.SIGNALLED),
        (signal.SIGTERM, REMOVED, None, EndCause.KILLED_BY_AGENT),
        (signal.SIGKILL, REMOVED, None, EndCause.KILLED_BY_AGENT),
        (signal.SIGSEGV, REMOVED, None, EndCause.SIGNALLED),
        (signal.SIGKILL, UNDONE, None, EndCause.KILLED_BY_AGENT),
        (signal.SIGKILL, DESTROYED, None, EndCause.SANDBOX_GONE),
        (signal.SIGTERM, DESTROYED, None, EndCause.SANDBOX_GONE),
        (signal.SIGKILL, "", KILL, EndCause.OUT_OF_MEMORY),
        (signal.SIGKILL, asked(signal.SIGTERM), KILL, EndCause.OUT_OF_MEMORY),
        (signal.SIGKILL, REMOVED, KILL, EndCause.OUT_OF_MEMORY),
        # The kernel kills with SIGKILL alone.
        (signal.SIGSEGV, "", KILL, EndCause.SIGNALLED),
        (0, "", KILL, EndCause.EXITED),
    ],
)
def test_the_cause(number: int, sent: str, oom: OutOfMemory | None, cause: EndCause) -> None:
    end = explain(entry(number), sent=sent, oom=oom)
    assert end.cause is cause
    by_agent = cause in (EndCause.KILLED_BY_AGENT, EndCause.SANDBOX_GONE)
    assert end.why == (sent if by_agent else "")
    assert end.out_of_memory == (KILL if cause is EndCause.OUT_OF_MEMORY else None)


def test_an_end_keeps_what_the_journal_says() -> None:
    end = explain(entry(signal.SIGSEGV, core_dumped=True), sent="", oom=None)
    assert (end.code, end.signal, end.at, end.core_dumped) == (139, 11, 1.5, True)
    assert explain(entry(code=42), sent="", oom=None).code == 42


def test_a_lost_end_is_255_without_a_signal() -> None:
    end = lost(2.5)
    assert (end.code, end.signal, end.at, end.cause) == (255, 0, 2.5, EndCause.LOST)


@pytest.mark.parametrize(
    ("number", "name"),
    [(9, "SIGKILL"), (15, "SIGTERM"), (34, "SIGRTMIN"), (37, "SIGRTMIN+3"), (64, "SIGRTMAX")],
)
def test_names_of_signals(number: int, name: str) -> None:
    """As signal(7) has them; glibc's first real-time signal is 34."""
    assert signal_name(number) == name
    assert asked(number) == f"{name} was asked for"
