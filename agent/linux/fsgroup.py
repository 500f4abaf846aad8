"""A group that owns a whole tree, as Kubernetes' fsGroup has it.

Every file gets the group and may be read by it, and written unless `read_only`;
directories also hand the group on to what is made in them (set-group-id). Bits that
are there stay. Whoever wrote the tree may have planted links in it and may still be
changing it, so each file is opened by its name in an open directory, never through a
link and never across a mount, and is changed by that descriptor. Device nodes stay as
they are.

The root is changed last: a tree whose root is right was gone through to its end.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from agent.linux.libc import failure
from agent.linux.openat2 import Resolve, open_resolved

_HERE = Resolve.NO_SYMLINKS | Resolve.NO_XDEV
_LOOK = os.O_PATH | os.O_NOFOLLOW
_WALK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK

_DEVICES = (stat.S_IFBLK, stat.S_IFCHR)
# EXDEV: something is mounted on it. The others: it is gone, or became something else.
_PASSED_OVER = {errno.EXDEV, errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class Ownership(NamedTuple):
    """What a tree shall have: the group, and bits by kind of file."""

    gid: int
    file_bits: int
    directory_bits: int

    def bits(self, mode: int) -> int:
        """The bits that a file of this mode must have; a link has none of its own."""
        if stat.S_ISDIR(mode):
            return self.directory_bits
        return 0 if stat.S_ISLNK(mode) else self.file_bits

    def holds(self, status: os.stat_result) -> bool:
        bits = self.bits(status.st_mode)
        return status.st_gid == self.gid and status.st_mode & bits == bits


class _Level(NamedTuple):
    """A directory on the way: its identity, and the directories in it still to be gone into."""

    device: int
    inode: int
    below: list[str]


def apply_fs_group(*, path: str, gid: int, read_only: bool, on_mismatch_only: bool) -> int:
    """Give the tree at `path` to the group; returns how many files were changed.

    With `on_mismatch_only` nothing is done when the root has the group and the bits.
    Memory and descriptors do not grow with the number of files, nor descriptors with
    the depth. Raises OSError with the path of the file as its object: ELOOP for a link
    on the way to `path`, ESTALE when a directory was moved under the walk.
    """
    wanted = Ownership(gid, 0o440, stat.S_ISGID | 0o550)
    if not read_only:
        wanted = Ownership(gid, 0o660, stat.S_ISGID | 0o770)
    root = open_resolved(path, _LOOK, resolve=Resolve.NO_SYMLINKS)
    try:
        status = os.fstat(root)
        if stat.S_ISLNK(status.st_mode):
            raise failure(errno.ELOOP, "open", path)
        if on_mismatch_only and wanted.holds(status):
            return 0
        changed = _Walk(wanted, path).run() if stat.S_ISDIR(status.st_mode) else 0
        return changed + _change(root, wanted, path)
    finally:
        os.close(root)


class _Walk:
    """Goes through one tree with one open directory at a time, back up by `..`."""

    def __init__(self, wanted: Ownership, path: str) -> None:
        self._wanted = wanted
        self._path = path
        self._changed = 0
        self._levels: list[_Level] = []
        self._names: list[str] = []
        self._fd = -1

    def run(self) -> int:
        """Change all below the root; returns the number of files changed."""
        self._fd = open_resolved(self._path, _WALK, resolve=Resolve.NO_SYMLINKS)
        try:
            self._enter()
            while self._levels:
                below = self._levels[-1].below
                if below:
                    self._down(below.pop())
                else:
                    self._up()
        finally:
            os.close(self._fd)
        return self._changed

    def _enter(self) -> None:
        """Change what is in the directory that is open now, and note its directories."""
        status = os.fstat(self._fd)
        below: list[str] = []
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if self._take(entry.name):
                    below.append(entry.name)
        self._levels.append(_Level(status.st_dev, status.st_ino, below))

    def _take(self, name: str) -> bool:
        """Change one file; whether it is a directory to go into."""
        try:
            fd = open_resolved(name, _LOOK, below=self._fd, resolve=_HERE)
        except OSError as error:
            self._pass_over(error, name)
            return False
        try:
            self._changed += _change(fd, self._wanted, self._where(name))
            return stat.S_ISDIR(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def _down(self, name: str) -> None:
        try:
            fd = open_resolved(name, _WALK, below=self._fd, resolve=_HERE)
        except OSError as error:
            self._pass_over(error, name)
            return
        self._move_to(fd)
        self._names.append(name)
        self._enter()

    def _up(self) -> None:
        self._levels.pop()
        if not self._levels:
            return
        parent = open_resolved("..", _WALK, below=self._fd, resolve=_HERE)
        self._move_to(parent)
        status, level = os.fstat(parent), self._levels[-1]
        if (status.st_dev, status.st_ino) != (level.device, level.inode):
            raise failure(errno.ESTALE, "open", self._where(".."))
        self._names.pop()

    def _move_to(self, fd: int) -> None:
        os.close(self._fd)
        self._fd = fd

    def _pass_over(self, error: OSError, name: str) -> None:
        if error.errno not in _PASSED_OVER:
            raise failure(error.errno or errno.EIO, "openat2", self._where(name)) from error

    def _where(self, name: str) -> str:
        return "/".join((self._path, *self._names, name))


def _change(fd: int, wanted: Ownership, path: str) -> int:
    """Group, then bits, as a new group takes set-user-id and set-group-id away; 1 if changed.

    The descriptor is an O_PATH one, which fchown(2) and fchmod(2) refuse, but not by
    its name in proc.
    """
    status = os.fstat(fd)
    if wanted.holds(status) or stat.S_IFMT(status.st_mode) in _DEVICES:
        return 0
    name = f"/proc/self/fd/{fd}"
    try:
        if status.st_gid != wanted.gid:
            os.chown(name, -1, wanted.gid)
        if not stat.S_ISLNK(status.st_mode):
            bits = stat.S_IMODE(status.st_mode) | wanted.bits(status.st_mode)
            os.chmod(name, bits)  # noqa: PTH101 - of a descriptor
    except OSError as error:
        raise failure(error.errno or errno.EIO, "set the group", path) from error
    return 1
