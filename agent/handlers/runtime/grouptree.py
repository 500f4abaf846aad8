"""A cgroup with all those below it, however deep: the container may have made them.

A path of the kernel's has 4096 bytes at most, so a group that is deep enough has none. One
directory is open at a time, entered by its name in the one before and left by `..` (a group
can't be moved), so that neither descriptors nor the stack grow with the depth.
"""

from __future__ import annotations

import contextlib
import errno
import os
from contextlib import closing
from typing import TYPE_CHECKING

from agent.core.errors import Reason, kernel_refused
from agent.handlers.runtime.groupevents import GONE
from agent.linux.libc import failure

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 64 * 1024


def walk(top: Path) -> Generator[int, None, None]:
    """A descriptor of the group and of each below, parents first, good until the next one.

    Whoever does not go on to the end must close the generator. Raises OSError.
    """
    for fd, entering in _steps(top):
        if entering:
            yield fd


def pids(top: Path) -> Generator[int, None, None]:
    """Of all in it and below. Raises OSError."""
    for fd in walk(top):
        for line in _procs(fd).split():
            # 0 is a process of another pid namespace, which can't be here but would mean us to
            # kill(2).
            if (pid := int(line)) > 0:
                yield pid


def remove(top: Path) -> None:
    """Remove it and all below, the deepest first. Raises AgentError STILL_IN_USE."""
    try:
        with closing(_steps(top)) as steps:
            for fd, entering in steps:
                if not entering:
                    _remove_empty(fd)
        with contextlib.suppress(FileNotFoundError):
            top.rmdir()
    except OSError as error:
        raise kernel_refused(
            error, doing=f"remove the cgroup {top}", reason=Reason.STILL_IN_USE
        ) from error


def write(group: int, name: str, text: str) -> None:
    """To a file of a group by the group's descriptor, with one write(2). Raises OSError."""
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=group)
    try:
        if os.write(fd, text.encode("ascii")) != len(text):
            raise failure(errno.EIO, "write", name)
    finally:
        os.close(fd)


def _steps(top: Path) -> Generator[tuple[int, bool], None, None]:
    """Each group when it is entered, and again when all below it have been seen."""
    fd = _open(str(top))
    if fd < 0:
        return
    try:
        yield fd, True
        left = [_below(fd)]
        while left:
            if not left[-1]:
                yield fd, False
                left.pop()
                fd = _replaced(fd, os.open("..", _DIRECTORY, dir_fd=fd)) if left else fd
            elif (inner := _open(left[-1].pop(), fd)) >= 0:
                fd = _replaced(fd, inner)
                yield fd, True
                left.append(_below(fd))
    finally:
        os.close(fd)


def _open(name: str, parent: int | None = None) -> int:
    """-1 when it is gone."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno in GONE:
            return -1
        raise


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new


def _below(group: int) -> list[str]:
    with os.scandir(group) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _remove_empty(group: int) -> None:
    """Those right below, which have none below themselves any more."""
    for name in _below(group):
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=group)


def _procs(group: int) -> str:
    """Nothing where it is gone, nor where the kernel does not tell (EOPNOTSUPP): processes of
    a threaded group are told of its domain, which is above it and asked as well."""
    try:
        fd = os.open("cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=group)
        try:
            return b"".join(iter(lambda: os.read(fd, _CHUNK), b"")).decode("ascii")
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in {*GONE, errno.EOPNOTSUPP}:
            return ""
        raise
