"""Ends of children: shown before they are taken, and told apart from signals."""

from __future__ import annotations

import os
import select
import signal

import pytest

from agent.linux import pidfd

pytestmark = [pytest.mark.unit, pytest.mark.boot]

WITHIN = 10.0


def ended_child(script: str) -> int:
    """A child that has ended and is not reaped."""
    pid = os.posix_spawn("/bin/sh", ["/bin/sh", "-c", script], {})
    fd = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([fd], [], [], WITHIN)
    finally:
        os.close(fd)
    assert ready
    return pid


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [
        ("exit 0", 0, 0),
        ("exit 7", 7, 0),
        ("exit 137", 137, 0),
        ("kill -KILL $$", 137, signal.SIGKILL),
        ("kill -TERM $$", 143, signal.SIGTERM),
    ],
)
def test_codes(script: str, code: int, number: int) -> None:
    """128 plus the signal; a child may also exit with that number by itself."""
    pid = ended_child(script)
    assert pidfd.reap(pid) == pidfd.ChildExit(pid, code, number)


def test_a_peek_takes_nothing_away() -> None:
    pid = ended_child("exit 3")
    assert pidfd.peek_exit() == pidfd.peek_exit() == pidfd.ChildExit(pid, 3, 0)
    assert pidfd.has_children()
    assert pidfd.reap(pid) == pidfd.ChildExit(pid, 3, 0)
    assert pidfd.reap(pid) is None


def test_a_running_child_is_not_reaped() -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "infinity"], {})
    try:
        assert pidfd.reap(pid) is None
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
