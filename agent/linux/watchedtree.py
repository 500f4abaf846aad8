"""The visible tree of a source that is copied again when it changes.

Kubernetes writes such directories so that a reader sees all of the old or all of the new:
hidden directories `..2026_11_29_...`, a link `..data` to the newest of them, and names that are
links into `..data`. Names that begin with `..` are therefore not seen at the top, and links are
followed, but only to what lies inside the source: whoever writes to it could otherwise have
any file of the guest copied.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from agent.linux import mountplaces
from agent.linux.libc import failure
from agent.linux.mountapi import Kernel
from agent.linux.openat2 import Resolve, open_resolved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.linux.mountcalls import Location

ENTRIES_MOST = 16384
"""Names in a source. Links to directories are followed, so thirty directories with two links
each would be a thousand million, and the memory for them is the guest's."""

_INSIDE = Resolve.BENEATH | Resolve.NO_MAGICLINKS
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK
# O_NONBLOCK: it may have become a pipe meanwhile.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY

_LEFT_OUT = {
    errno.EXDEV: "leads outside",
    errno.ELOOP: "leads in a circle",
    errno.ENOENT: "leads nowhere",
}


class Entry(NamedTuple):
    """A file or directory by its path in the copy, "" for the source itself."""

    path: str
    status: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


class Look(NamedTuple):
    """The tree at one time; parents come before what is in them.

    `signature` changes when a name, size, time, mode, owner or inode does; `left_out` says of
    names why they are not seen.
    """

    signature: str
    entries: list[Entry]
    left_out: list[str]


@contextmanager
def opened(where: Location) -> Iterator[Source]:
    """Raises OSError for what is not there, or is neither a directory nor a regular file."""
    with mountplaces.location(Kernel(), where) as fd:
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise OSError(errno.EINVAL, "neither a directory nor a regular file", str(where))
        name = "" if stat.S_ISDIR(mode) else str(where).rpartition("/")[2]
        yield Source(fd, name)


class Source:
    """An open source; `single` is the name of one that is a file."""

    def __init__(self, fd: int, single: str) -> None:
        self._fd = fd
        self._single = single

    def look(self) -> Look:
        """Raises OSError when something can't be read; EFBIG for more than ENTRIES_MOST names."""
        left_out: list[str] = []
        entries: list[Entry] = []
        for entry in self._walk(left_out):
            entries.append(entry)
            self._refuse_big(len(entries) + len(left_out))
        digest = hashlib.sha256()
        for entry in entries:
            digest.update(_line(entry))
        for text in left_out:
            digest.update(text.encode(errors="surrogateescape") + b"\0\0")
        return Look(digest.hexdigest(), entries, left_out)

    @contextmanager
    def reading(self, entry: Entry) -> Iterator[int]:
        """The content of a file. Raises OSError."""
        if self._single:
            fd = os.open(mountplaces.name(self._fd), _READ | os.O_CLOEXEC)
        else:
            fd = open_resolved(entry.path, _READ, below=self._fd, resolve=_INSIDE)
        try:
            yield fd
        finally:
            os.close(fd)

    def _walk(self, left_out: list[str]) -> Iterator[Entry]:
        root = os.fstat(self._fd)
        if self._single:
            yield Entry(self._single, root)
            return
        yield Entry("", root)
        pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", (_identity(root),))]
        while pending:
            folder, above = pending.pop()
            for entry in self._entries(folder, left_out):
                if not entry.is_directory:
                    yield entry
                elif _identity(entry.status) in above:
                    left_out.append(f"{entry.path} leads in a circle")
                else:
                    yield entry
                    pending.append((entry.path, (*above, _identity(entry.status))))

    def _refuse_big(self, names: int) -> None:
        if names > ENTRIES_MOST:
            raise failure(errno.EFBIG, "look", mountplaces.name(self._fd))

    def _entries(self, folder: str, left_out: list[str]) -> Iterator[Entry]:
        names = self._names(folder)
        # None of them may become an entry.
        self._refuse_big(len(names) + len(left_out))
        for name in names:
            path = f"{folder}/{name}" if folder else name
            try:
                status = self._status(path)
            except OSError as error:
                if error.errno not in _LEFT_OUT:
                    raise
                left_out.append(f"{path} {_LEFT_OUT[error.errno or 0]}")
                continue
            if stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
                yield Entry(path, status)
            else:
                left_out.append(f"{path} is neither a directory nor a regular file")

    def _names(self, folder: str) -> list[str]:
        fd = open_resolved(folder or ".", _LIST, below=self._fd, resolve=_INSIDE)
        try:
            names = sorted(os.listdir(fd))  # noqa: PTH208 - of a descriptor
        finally:
            os.close(fd)
        return [name for name in names if folder or not name.startswith("..")]

    def _status(self, path: str) -> os.stat_result:
        fd = open_resolved(path, os.O_PATH, below=self._fd, resolve=_INSIDE)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _line(entry: Entry) -> bytes:
    status = entry.status
    # Size and time of a directory are its file system's affair; its names are seen anyway.
    content = () if entry.is_directory else (status.st_size, status.st_mtime_ns)
    told = (status.st_mode, status.st_uid, status.st_gid, status.st_ino, *content)
    return os.fsencode(entry.path) + b"\0" + repr(told).encode() + b"\0"
