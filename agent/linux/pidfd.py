"""How children end, and who gets them.

`peek_exit` shows a zombie without taking it away, so that its files in /proc
can still be read; `reap` takes it. There must be one reaper per process: a
second one steals statuses, and then a failed child reads as a success.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from agent.linux.libc import check, libc

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class ChildExit(NamedTuple):
    """A child that has ended: `code` is its status, or 128 plus the signal that ended it."""

    pid: int
    code: int
    signal: int
    core_dumped: bool = False


def peek_exit() -> ChildExit | None:
    """Some child that has ended and is not reaped yet, or None.

    The same one is shown again until `reap` takes it.
    """
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None
    return None if info is None else _child_exit(info)


def has_children() -> bool:
    """Whether this process has any child, running or not yet reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def reap(pid: int) -> ChildExit | None:
    """Take the zombie `pid` away; None when it has not ended or is no child of ours."""
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    return None if info is None else _child_exit(info)


def set_child_subreaper() -> None:
    """Orphans among our descendants become our children (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    check(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def set_parent_death_signal(signal: int) -> None:
    """Get `signal` when the thread that made us ends (prctl(2), PR_SET_PDEATHSIG).

    It is cleared by fork. A parent that is gone already sends nothing: check getppid after.
    """
    check(libc.prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def _child_exit(info: os.waitid_result) -> ChildExit:
    if info.si_code == os.CLD_EXITED:
        return ChildExit(info.si_pid, info.si_status, 0)
    dumped = info.si_code == os.CLD_DUMPED
    return ChildExit(info.si_pid, 128 + info.si_status, info.si_status, dumped)
