"""Waiting for a file to appear in a directory (inotify(7))."""

from __future__ import annotations

import os

from agent.linux.libc import check, libc

_IN_CREATE = 0x100
_IN_MOVED_TO = 0x80
_IN_ONLYDIR = 0x01000000


def watch_arrivals(directory: str) -> int:
    """A non-blocking descriptor, readable after something was created in or moved to `directory`.

    Raises OSError: ENOENT or ENOTDIR when there is no such directory, EMFILE
    when the user has too many instances.
    """
    fd = check(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), "inotify_init1")
    mask = _IN_CREATE | _IN_MOVED_TO | _IN_ONLYDIR
    try:
        check(
            libc.inotify_add_watch(fd, os.fsencode(directory), mask), "inotify_add_watch", directory
        )
    except OSError:
        os.close(fd)
        raise
    return fd


def drain(fd: int) -> None:
    """Forget what was announced; the directory itself says what is there now."""
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return
