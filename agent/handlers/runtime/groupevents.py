"""Waiting for a line of a cgroup's `cgroup.events` (cgroup-v2.rst), by the kernel's own notice."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

GONE = {errno.ENOENT, errno.ENODEV}
"""What the kernel says of a file of a group that is gone."""


async def until_told(group: Path, line: str) -> bool:
    """Return once the file has that line; False when the group is gone.

    Has no deadline of its own.
    """
    try:
        fd = os.open(group / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, fd)
        if (lines := _lines(fd)) is None or line in lines:
            return lines is not None
        # The file is always readable to poll; a change shows as POLLPRI, which asyncio
        # can't wait for, but an epoll of our own shows as readable then.
        changes = stack.enter_context(select.epoll())
        changes.register(fd, select.EPOLLPRI)
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(changes.fileno(), changed.set)
        stack.callback(loop.remove_reader, changes.fileno())
        while (lines := _lines(fd)) is not None and line not in lines:
            await changed.wait()
            changed.clear()
        return lines is not None


def _lines(events: int) -> list[str] | None:
    """None when the group is gone. Reading also tells the kernel what we know: only later
    changes are announced."""
    try:
        return os.pread(events, 4096, 0).decode("ascii").split("\n")
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
