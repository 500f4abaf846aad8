"""Removing a directory with all that is in it, never through a link and never across a mount.

Others may write to the tree meanwhile. One directory is open at a time, entered by its name
in the one before and left by `..`, so that neither memory nor descriptors grow with the
depth. What can't be removed is told, and everything else goes.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import NamedTuple

from agent.linux.copyframes import shown
from agent.linux.libc import failure
from agent.linux.mountcalls import Location
from agent.linux.openat2 import Resolve, open_resolved
from agent.linux.placing import parent

TOLD = 8
"""Entries that are named among those which stay."""

LONGEST = 1000
"""Characters of such a name."""

_WALK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
_HERE = Resolve.NO_SYMLINKS | Resolve.NO_XDEV


class _Level(NamedTuple):
    """A directory on the way: its identity, its name, and the directories still in it."""

    device: int
    inode: int
    name: str
    below: list[str]


def remove_tree(*, location: dict[str, str | bool]) -> list[str]:
    """Remove the tree; says of the first few entries that stay why they do.

    A tree that is not there is removed already. Raises OSError when it can't be entered.
    """
    where = Location(**location)  # type: ignore[arg-type]
    with suppress(FileNotFoundError), parent(where) as (folder, name):
        return remove_below(folder, name)
    return []


def remove_below(folder: int, name: str) -> list[str]:
    """As `remove_tree`, by its name in an open directory. Raises FileNotFoundError."""
    removal = _Removal(folder, name)
    removal.run()
    return removal.told()


class _Removal:
    def __init__(self, folder: int, name: str) -> None:
        self._folder = folder
        self._name = name
        self._left: list[str] = []
        self._count = 0
        self._levels: list[_Level] = []
        self._fd = -1

    def told(self) -> list[str]:
        more = self._count - len(self._left)
        return [*self._left, f"{more} more"] if more else self._left

    def run(self) -> None:
        self._fd = open_resolved(self._name, _WALK, below=self._folder, resolve=_HERE)
        try:
            self._enter(self._name)
            while self._levels:
                below = self._levels[-1].below
                if below:
                    self._down(below.pop())
                else:
                    self._up()
        finally:
            os.close(self._fd)

    def _enter(self, name: str) -> None:
        """Remove the files of the directory that is open now, and note its directories."""
        status = os.fstat(self._fd)
        with os.scandir(self._fd) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        level = _Level(status.st_dev, status.st_ino, name, [])
        self._levels.append(level)
        for entry, is_directory in found:
            if is_directory:
                level.below.append(entry)
            else:
                self._remove(entry)

    def _remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return
        except OSError as error:
            self._stays(error, name)

    def _down(self, name: str) -> None:
        try:
            fd = open_resolved(name, _WALK, below=self._fd, resolve=_HERE)
        except FileNotFoundError:
            return
        except OSError as error:
            self._stays(error, name)
            return
        self._move_to(fd)
        self._enter(name)

    def _up(self) -> None:
        done = self._levels.pop()
        if self._levels:
            self._move_to(open_resolved("..", _WALK, below=self._fd, resolve=_HERE))
            status, level = os.fstat(self._fd), self._levels[-1]
            if (status.st_dev, status.st_ino) != (level.device, level.inode):
                # What is open now may be any directory: nothing in it is ours to remove.
                raise failure(errno.ESTALE, "open", self._where(done.name))
        folder = self._fd if self._levels else self._folder
        try:
            os.rmdir(done.name, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            # What it is not empty of was told before.
            if error.errno != errno.ENOTEMPTY or not self._count:
                self._stays(error, done.name)

    def _move_to(self, fd: int) -> None:
        os.close(self._fd)
        self._fd = fd

    def _stays(self, error: OSError, name: str) -> None:
        self._count += 1
        if len(self._left) < TOLD:
            mounted = error.errno in (errno.EXDEV, errno.EBUSY)
            why = "something is mounted on it" if mounted else error.strerror
            # Names are whoever's who made them: no text at all, or as long as the tree is deep.
            self._left.append(f"{shown(self._where(name))[:LONGEST]}: {why}")

    def _where(self, name: str) -> str:
        return "/".join([*(level.name for level in self._levels), name])
