"""Blocked signals are kept and can be read, with their sender."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from agent.linux import signals

pytestmark = [pytest.mark.unit, pytest.mark.boot]

CHOSEN = (signal.SIGUSR1, signal.SIGRTMAX)


@pytest.fixture
def blocked() -> Iterator[int]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    signals.block(CHOSEN)
    fd = signals.signalfd(CHOSEN)
    yield fd
    while signals.read_siginfo(fd) is not None:
        pass
    os.close(fd)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_nothing_pending_reads_as_none(blocked: int) -> None:
    assert signals.read_siginfo(blocked) is None


def test_pending_signals_come_with_their_sender(blocked: int) -> None:
    for number in CHOSEN:
        os.kill(os.getpid(), number)
    infos = [signals.read_siginfo(blocked) for _ in CHOSEN]
    assert [info and info.number for info in infos] == list(CHOSEN)
    assert {(info.pid, info.uid) for info in infos if info} == {(os.getpid(), os.getuid())}


def test_children_started_by_exec_do_not_get_the_descriptor(blocked: int) -> None:
    assert not os.get_inheritable(blocked)
