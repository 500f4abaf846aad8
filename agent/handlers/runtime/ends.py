"""Why a process ended.

What the agent did to a process is a text for people, which the process's record keeps
(`sent`). It is the cause only when the signal that ended the process is one that it stands
for: one that was asked to terminate and then ran out of memory died of that, and one that
handled SIGTERM and exited did so by itself.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from agent.core.life import EndCause
from agent.core.model import ProcessExit

if TYPE_CHECKING:
    from agent.core.life import OutOfMemory
    from agent.core.pid1 import JournalEntry

REMOVED: Final = "its container was removed"
"""`sent` of processes whose container is being removed."""

DESTROYED: Final = "the sandbox was destroyed"
"""`sent` of processes that Sandbox.Destroy ends."""

UNDONE: Final = "what it was made for failed"
"""`sent` of processes that are ended because their creation did not come to its end."""

LOST_CODE: Final = 255
"""The status of a process whose own was lost (types.proto)."""

_ENDINGS = frozenset((signal.SIGTERM, signal.SIGKILL))
"""What the agent ends processes with unless it was asked for another signal."""

_ASKED = " was asked for"


def asked(number: int) -> str:
    """`sent` for a signal that the host asked for: "SIGTERM was asked for"."""
    return f"{signal_name(number)}{_ASKED}"


def signal_name(number: int) -> str:
    """ "SIGTERM"; those without a name of their own as kill(1) calls them, "SIGRTMIN+3"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        # The two below are the C library's own (nptl(7)).
        above = number - signal.SIGRTMIN
        return f"SIGRTMIN+{above}" if above > 0 else f"signal {number}"


def explain(entry: JournalEntry, *, sent: str, oom: OutOfMemory | None) -> ProcessExit:
    """The end that the journal tells, and its cause.

    `sent` is what the agent did to the process by the signal that ended it, or did last:
    `asked`, `REMOVED`, `DESTROYED`, `UNDONE`, or empty. `oom` is what the kernel's log says
    of it (`OomWatch.kill_of`).
    """
    cause = _cause(entry, sent, oom)
    by_agent = cause in (EndCause.KILLED_BY_AGENT, EndCause.SANDBOX_GONE)
    return ProcessExit(
        code=entry.code,
        signal=entry.signal,
        at=entry.at,
        core_dumped=entry.core_dumped,
        cause=cause,
        why=sent if by_agent else "",
        out_of_memory=oom if cause is EndCause.OUT_OF_MEMORY else None,
    )


def lost(at: float = 0.0) -> ProcessExit:
    """The end of a process that is gone without an entry in the journal."""
    return ProcessExit(code=LOST_CODE, at=at, cause=EndCause.LOST)


def _cause(entry: JournalEntry, sent: str, oom: OutOfMemory | None) -> EndCause:
    if not entry.signal:
        return EndCause.EXITED
    # The kernel's own word on it goes before what we may have sent at the same time.
    if oom is not None and entry.signal == signal.SIGKILL:
        return EndCause.OUT_OF_MEMORY
    if not _stands_for(sent, entry.signal):
        return EndCause.SIGNALLED
    return EndCause.SANDBOX_GONE if sent == DESTROYED else EndCause.KILLED_BY_AGENT


def _stands_for(sent: str, number: int) -> bool:
    """Whether what the agent did sends that signal."""
    if sent.endswith(_ASKED):
        return sent == asked(number)
    return bool(sent) and number in _ENDINGS
