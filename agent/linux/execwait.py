"""Waiting until a process runs its program: the kernel's own events of exec(2).

crun answers `start` when the container's process was told to go on, which is before that
has run the hooks that come first and called exec(2). Which program a process runs is in
/proc; that it changes is told by the process connector (linux/cn_proc.h,
drivers/connector/cn_proc.c) and by nothing else. A kernel without it is asked again and again.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from enum import Enum
from typing import Self

# linux/netlink.h, linux/connector.h, linux/cn_proc.h
_CONNECTOR = 11
_IDX_PROC, _VAL_PROC = 1, 1
_LISTEN, _IGNORE = 1, 2
_NLMSG_DONE = 3
_HEADER = struct.Struct("=IHHII")
_CN_MESSAGE = struct.Struct("=IIIIHH")
_WORD = struct.Struct("=I")
# what, cpu, time; then the process's own numbers.
_EVENT = struct.Struct("=IIQII")
_EVENT_AT = _HEADER.size + _CN_MESSAGE.size
_GROUP = 1

_LOOK_AGAIN = 0.02
"""Seconds between looks where no events can be had."""


class Turn(Enum):
    """What a process did; the values are the kernel's."""

    EXEC = 0x2
    EXIT = 0x80000000


class ExecEvents:
    """Tells of every exec and every end in the guest; close it soon."""

    def __init__(self) -> None:
        """Raises OSError where the kernel has no process connector."""
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _CONNECTOR
        )
        try:
            self._socket.settimeout(0)
            self._socket.bind((0, _GROUP))
            self._ask(_LISTEN)
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Kernels before 6.6 count those who listen, and don't notice who leaves.
        with contextlib.suppress(OSError):
            self._ask(_IGNORE)
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def first_turn(self, pid: int) -> Turn | None:
        """Read all that is there; what the process did first, if anything."""
        first: Turn | None = None
        while True:
            try:
                message, (sender, _) = self._socket.recvfrom(1 << 12)
            except BlockingIOError:
                return first
            except OSError:
                # ENOBUFS: some are lost. What is so now shows in /proc.
                continue
            if sender == 0 and first is None:
                first = turn_of(message, pid)

    def _ask(self, operation: int) -> None:
        data = _CN_MESSAGE.pack(_IDX_PROC, _VAL_PROC, 0, 0, _WORD.size, 0) + _WORD.pack(operation)
        header = _HEADER.pack(_HEADER.size + len(data), _NLMSG_DONE, 0, 0, 0)
        self._socket.send(header + data)


def turn_of(message: bytes, pid: int) -> Turn | None:
    """What a message of the connector says of a process."""
    if len(message) < _EVENT_AT + _EVENT.size:
        return None
    what, _, _, thread, process = _EVENT.unpack_from(message, _EVENT_AT)
    if process != pid:
        return None
    if what == Turn.EXEC.value:
        return Turn.EXEC
    # A thread's end is none of the process's.
    return Turn.EXIT if what == Turn.EXIT.value and thread == process else None


def wait_for_exec(pid: int, limit: float, *, runtime: int, proc: str = "/proc") -> bool:
    """Wait until the process runs another program than the process `runtime` does.

    False when it ended before that, or when `limit` seconds were not enough. Of one that is
    gone when we come nobody knows any more; it counts as one that ran its program.
    """
    until = time.monotonic() + limit
    program = _program(runtime, proc)
    with contextlib.ExitStack() as stack:
        events = _events(stack)
        while _program(pid, proc) == program:
            left = until - time.monotonic()
            if left <= 0:
                return False
            turn = _next_turn(events, pid, left)
            if turn is not None:
                return turn is Turn.EXEC
    return True


def _program(pid: int, proc: str) -> tuple[int, int] | None:
    """None for one that has ended: also a zombie has no program any more."""
    try:
        found = os.stat(f"{proc}/{pid}/exe")
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _events(stack: contextlib.ExitStack) -> ExecEvents | None:
    try:
        return stack.enter_context(ExecEvents())
    except OSError:
        return None


def _next_turn(events: ExecEvents | None, pid: int, left: float) -> Turn | None:
    if events is None:
        time.sleep(min(left, _LOOK_AGAIN))
        return None
    select.select([events], [], [], left)
    return events.first_turn(pid)
