"""A worker of file-system calls one of whose system calls fails.

It runs as a process of its own, in the place of `agent.linux.fsworker`: the functions by which
that one reaches the kernel are wrapped and counted while it answers a request. Which call shall
fail, and how, is in a page of memory that the test shares with its workers (`Script`), so that
a count goes on from one worker to the next.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import io
import mmap
import os
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any

from agent.linux import fsworker
from agent.linux.libc import libc

REPOSITORY = Path(__file__).parents[2]
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    "import tests.privileged.failing_worker as w; w.main(sys.argv[2])"
)

_OS = (
    *("open", "mkdir", "rmdir", "unlink", "rename", "replace", "symlink", "readlink", "scandir"),
    *("listdir", "read", "write", "fsync", "chown", "fchown", "chmod", "fchmod", "utime", "fstat"),
    *("mknod", "statvfs", "fchdir"),
)
_LIBC = ("mount", "umount2", "syscall")
_CONTROL = ("ioctl", "flock")


class How(IntEnum):
    """What becomes of the call: refused by the kernel, or its worker or the whole agent killed,
    before the call or after it."""

    REFUSE = 0
    KILL = 1
    DONE_KILL = 2
    KILL_AGENT = 3
    DONE_KILL_AGENT = 4


def argv(script: Path) -> tuple[str, ...]:
    """For `agent.core.fileops.FileWorkers`."""
    return (sys.executable, "-IBS", "-c", _BOOT, str(REPOSITORY), str(script))


class Script:
    """Shared by file: how many calls there were, and which of them fails (from 1, 0 for none)."""

    _FORM = struct.Struct("4i")

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def close(self) -> None:
        self._page.close()

    def arm(self, at: int, how: How = How.REFUSE, number: int = 0) -> None:
        self._FORM.pack_into(self._page, 0, 0, at, how, number)

    @property
    def struck(self) -> bool:
        count, at, _, _ = self._FORM.unpack_from(self._page)
        return bool(0 < at <= count)

    def next(self) -> tuple[How, int] | None:
        """Count a call; how it shall end."""
        count, at, how, number = self._FORM.unpack_from(self._page)
        self._FORM.pack_into(self._page, 0, count + 1, at, how, number)
        return (How(how), number) if count + 1 == at else None


def main(path: str) -> None:
    Wrapped(Script(Path(path))).install()
    fsworker.main()


class Wrapped:
    """The functions by which calls reach the kernel; counted within `answer`."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._answering = False

    def install(self) -> None:
        for module, names in ((os, _OS), (fcntl, _CONTROL)):
            for name in names:
                setattr(module, name, self._wrap(name, getattr(module, name), _raise))
        for name in _LIBC:
            setattr(libc, name, self._wrap(name, getattr(libc, name), _fail))
        # pathlib knows it by the one name, others by the other.
        io.open = builtins.open = self._wrap("open", io.open, _raise)
        real = fsworker.answer

        def answer(request: Any) -> Any:
            self._answering = True
            try:
                return real(request)
            finally:
                self._answering = False

        fsworker.answer = answer

    def _wrap(
        self, name: str, real: Callable[..., Any], refuse: Callable[[str, int], Any]
    ) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            fault = self._script.next() if self._answering else None
            if fault is None:
                return real(*arguments, **more)
            how, number = fault
            if how is How.REFUSE:
                return refuse(name, number)
            if how in (How.DONE_KILL, How.DONE_KILL_AGENT):
                # One that the kernel refuses is over, too.
                with suppress(OSError):
                    real(*arguments, **more)
            whom = os.getpid() if how in (How.KILL, How.DONE_KILL) else os.getppid()
            os.kill(whom, signal.SIGKILL)
            # The agent's death ends its worker too.
            signal.pause()
            return None

        return call


def _raise(name: str, number: int) -> None:
    raise OSError(number, f"{name}: {os.strerror(number)}")


def _fail(_name: str, number: int) -> int:
    ctypes.set_errno(number)
    return -1
