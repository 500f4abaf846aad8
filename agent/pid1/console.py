"""What PID 1 says, and the standard descriptors of all its children.

The kernel may start us without a console (no /dev/console in an initramfs): so
the first thing after devtmpfs is to open one, before anything can fail.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import termios
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    # Where messages go.
    Voice = Callable[[str], None]

_WARNING = "<4>"
_LONGEST = 2000


def boottime() -> float:
    """Seconds since the kernel started, suspended time included (CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Console:
    """PID 1's voice: a line on the console, or in the kernel's log where that is stuck or missing.

    Its descriptor is its own, so that it can be non-blocking: a console that
    nobody drains must not stop PID 1, but children expect blocking output.
    """

    def __init__(self) -> None:
        self._console: int | None = None
        self._kmsg: int | None = None

    def open(self, dev: str) -> None:
        """Find the console below `dev` and make it the output of us and our children."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC
        self._kmsg = _open_first((f"{dev}/kmsg",), flags | os.O_NONBLOCK)
        self._console = _open_first((f"{dev}/console",), flags | os.O_NONBLOCK)
        output = _open_first((f"{dev}/console", f"{dev}/kmsg", f"{dev}/null"), flags)
        if output is not None:
            _place(output, (1, 2))
        # Nothing typed at the console is for us, and no ctrl-C may reach a child.
        silence = _open_first((f"{dev}/null",), os.O_RDONLY | os.O_CLOEXEC)
        if silence is not None:
            _place(silence, (0,))
        _leave_terminal(dev)

    def __call__(self, text: str) -> None:
        """Say it; never raises and never waits."""
        line = text.replace("\n", "\n  ")[:_LONGEST]
        stamped = f"[{boottime():12.6f}] innkeeper: {line}\n".encode(errors="backslashreplace")
        if _put(self._console, stamped):
            return
        plain = f"{_WARNING}innkeeper: {line}".encode(errors="backslashreplace")
        if not _put(self._kmsg, plain):
            _put(2, stamped)


def _open_first(paths: Iterable[str], flags: int) -> int | None:
    for path in paths:
        try:
            fd = os.open(path, flags)
        except OSError:
            continue
        # 0 to 2 may be closed when we start, and are to be overwritten.
        return fd if fd > 2 else _above_standard(fd)
    return None


def _above_standard(fd: int) -> int:
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def _place(fd: int, targets: tuple[int, ...]) -> None:
    for target in targets:
        os.dup2(fd, target)
    os.close(fd)


def _leave_terminal(dev: str) -> None:
    """Give up a controlling terminal that an initrd left us."""
    with contextlib.suppress(OSError):
        fd = os.open(f"{dev}/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, termios.TIOCNOTTY)
        finally:
            os.close(fd)


def _put(fd: int | None, data: bytes) -> bool:
    if fd is None:
        return False
    try:
        os.write(fd, data)
    except OSError:
        return False
    return True
