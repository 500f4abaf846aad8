"""Links of a container's root that lead to directories which are not there.

Images have `/var/run` as a link to `/run` and may lack `/run` itself, since an
empty directory is easily lost on the way. A runtime that is to mount something
on `/var/run/secrets` makes what the path names, but not what a link names, and
fails.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.linux.libc import failure

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_LINKS = 40
"""MAXSYMLINKS (include/linux/namei.h)."""

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_link_targets(root: str, paths: Iterable[str]) -> None:
    """Make the directories in `root` that links on these paths lead to and that are missing.

    Links are followed as by a process with its root there. What can't be made
    (a read-only root, links in a circle) is left to the runtime, which says why.
    """
    for path in paths:
        with suppress(OSError):
            _follow(root, path)


def _follow(root: str, path: str) -> None:
    folders = [os.open(root, _DIRECTORY)]
    try:
        _walk(folders, path)
    finally:
        for folder in folders:
            os.close(folder)


def _walk(folders: list[int], path: str) -> None:
    """One name at a time from the descriptor before it, so that nothing that changes
    meanwhile leads out. `folders` are those from the root to where the walk is."""
    ahead = _names(path, from_link=False)
    links = 0
    while ahead:
        name, from_link = ahead.pop()
        if name == "..":
            _leave(folders, 1 if len(folders) > 1 else 0)
        elif (target := _link(folders[-1], name)) is not None:
            links += 1
            if links > _MOST_LINKS:
                raise failure(errno.ELOOP, "readlink", path)
            if target.startswith("/"):
                _leave(folders, len(folders) - 1)
            ahead += _names(target, from_link=True)
        else:
            folders.append(_enter(folders[-1], name, make=from_link))


def _names(path: str, *, from_link: bool) -> list[tuple[str, bool]]:
    """The last one first, to be popped."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    return [(name, from_link) for name in reversed(names)]


def _leave(folders: list[int], count: int) -> None:
    for _ in range(count):
        os.close(folders.pop())


def _link(folder: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        # EINVAL: it is no link.
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _enter(folder: int, name: str, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=folder)
    return os.open(name, _DIRECTORY, dir_fd=folder)
