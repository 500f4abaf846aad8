"""Signals as something to read: blocked, and taken from a signalfd(2)."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from typing import TYPE_CHECKING, NamedTuple

from agent.linux.libc import check, libc

if TYPE_CHECKING:
    from collections.abc import Iterable

_SFD_CLOEXEC = os.O_CLOEXEC
_SFD_NONBLOCK = os.O_NONBLOCK
# sizeof(sigset_t) of glibc and musl: 1024 bits.
_SIGSET_BYTES = 128
# struct signalfd_siginfo: u32 signo, s32 errno, s32 code, u32 pid, u32 uid, ... of 128 bytes.
_SIGINFO = struct.Struct("=IiiII")
_SIGINFO_BYTES = 128


class SignalInfo(NamedTuple):
    """One signal: `pid` and `uid` are the sender's (0 where the kernel sent it)."""

    number: int
    code: int
    pid: int
    uid: int


def block(signals: Iterable[int]) -> None:
    """Keep these signals pending instead of delivered, in this thread and all children.

    A blocked signal is kept even for PID 1, which otherwise loses all that it
    has no handler for.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)


def signalfd(signals: Iterable[int]) -> int:
    """A non-blocking, close-on-exec descriptor to read these (blocked) signals from."""
    mask = ctypes.create_string_buffer(_SIGSET_BYTES)
    check(libc.sigemptyset(mask), "sigemptyset")
    for number in signals:
        check(libc.sigaddset(mask, number), "sigaddset", number)
    return check(libc.signalfd(-1, mask, _SFD_CLOEXEC | _SFD_NONBLOCK), "signalfd")


def read_siginfo(fd: int) -> SignalInfo | None:
    """The next pending signal, or None."""
    try:
        data = os.read(fd, _SIGINFO_BYTES)
    except BlockingIOError:
        return None
    number, _errno, code, pid, uid = _SIGINFO.unpack_from(data)
    return SignalInfo(number, code, pid, uid)
