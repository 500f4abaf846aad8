"""Single steps in a tree that others may write to: what is there, make, remove.

The way to the last name is opened once, inside its root; the last name is then taken by the
open directory and never followed.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent.linux import mountplaces
from agent.linux.mountapi import Kernel
from agent.linux.mountcalls import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFREG: "file",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "pipe",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFLNK: "link",
}


def kind_of(*, location: dict[str, str | bool]) -> dict[str, str | bool]:
    """What a location leads to, and whether its mount or file system takes no writes.

    Raises OSError for what is not there.
    """
    with mountplaces.location(Kernel(), _location(location)) as fd:
        kind = _KINDS[stat.S_IFMT(os.fstat(fd).st_mode)]
        return {"kind": kind, "read_only": bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)}


def make_directory(*, location: dict[str, str | bool], mode: int) -> None:
    """Make one directory with just these permission bits. Raises OSError, EEXIST too."""
    with parent(_location(location)) as (folder, name):
        os.mkdir(name, 0o700, dir_fd=folder)
        fd = os.open(name, _OWN, dir_fd=folder)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)


def remove_directory(*, location: dict[str, str | bool]) -> None:
    """Remove one empty directory. Raises OSError."""
    with parent(_location(location)) as (folder, name):
        # rmdir(2) says EROFS of what is not there.
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        os.rmdir(name, dir_fd=folder)


@contextmanager
def parent(where: Location) -> Iterator[tuple[int, str]]:
    """The directory that a location lies in, open, and its own name in it."""
    way, _, name = where.path.rstrip("/").rpartition("/")
    above = Location(root=where.root, path=way, links=where.links)
    with mountplaces.location(Kernel(), above) as folder:
        yield folder, name


def _location(members: dict[str, str | bool]) -> Location:
    return Location(**members)  # type: ignore[arg-type]
