"""The reading side of a copy: a file, a link or a tree becomes entries.

What is read may be a container's, which can change it at any moment. So everything is
looked at through a descriptor that only stands for it (O_PATH), and opened through that
same descriptor when it is a regular file or a directory: a fifo that takes a file's
place is never waited for, a device never touched, a link never followed, a mount
never entered.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.linux.copyfolders import own_path
from agent.linux.copyframes import FRAME_BYTES, LONGEST_PATH, Entry, EntryType, Time
from agent.linux.copyrefusal import CopyRefusal, Why
from agent.linux.openat2 import Resolve, open_in_root, open_resolved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.linux.copyoutbox import Outbox

_LOOK = os.O_PATH | os.O_NOFOLLOW
_HERE = Resolve.BENEATH | Resolve.NO_XDEV | Resolve.NO_MAGICLINKS | Resolve.NO_SYMLINKS
_WALK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_BLOCK = 512

_GONE = {
    errno.ENOENT: "it vanished meanwhile",
    errno.ESTALE: "it vanished meanwhile",
    errno.ELOOP: "it changed meanwhile",
    errno.ENOTDIR: "it changed meanwhile",
    errno.EXDEV: "a mount",
    errno.EACCES: "it may not be read",
    errno.EPERM: "it may not be read",
    errno.ENAMETOOLONG: "its path is too long",
}
"""Reasons to leave one entry of a tree out; any other error ends the copy."""

_OTHERS = {
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to read: see CopyOutRequest."""

    root: int
    path: str
    offset: int = 0
    recursive: bool = False
    follow_link: bool = False


class TreeReader:
    """Reads one copy. Raises CopyRefusal, and OSError with the kernel's errno."""

    def __init__(self, question: Question, outbox: Outbox) -> None:
        self._question = question
        self._out = outbox
        self._ways: list[tuple[str, int]] = []

    def read(self) -> None:
        question = self._question
        flags = os.O_PATH if question.follow_link else _LOOK
        fd = open_in_root(question.root, question.path or ".", flags)
        try:
            self._top(fd)
        finally:
            os.close(fd)

    def _top(self, fd: int) -> None:
        found = os.fstat(fd)
        if (what := _other(found)) is not None:
            raise CopyRefusal(Why.TYPE, f"it is {what}", "")
        if self._question.offset and not stat.S_ISREG(found.st_mode):
            raise CopyRefusal(Why.BAD, "only a regular file can be read from an offset", "")
        if self._question.offset > found.st_size:
            text = f"the offset {self._question.offset} is beyond its {found.st_size} bytes"
            raise CopyRefusal(Why.RANGE, text, "")
        self._entry("", fd, found)
        if stat.S_ISDIR(found.st_mode) and self._question.recursive:
            self._walk(os.open(own_path(fd), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def _walk(self, top: int) -> None:
        """Depth first; each level keeps one directory open. Closes `top`."""
        levels = [(top, "", self._level(top, ""))]
        try:
            while levels:
                folder, path, names = levels[-1]
                name = next(names, None)
                if name is None:
                    os.close(levels.pop()[0])
                    continue
                below = f"{path}/{name}" if path else name
                inner = self._enter(folder, name, below)
                if inner >= 0:
                    levels.append((inner, below, self._level(inner, below)))
        finally:
            for folder, _, _ in levels:
                os.close(folder)

    def _level(self, folder: int, path: str) -> Iterator[str]:
        """Tell all that is directly in a directory; the names of the directories in it,
        which are told when they are entered."""
        with os.scandir(folder) as found:
            names = [entry.name for entry in found]
        names.sort()
        return iter([name for name in names if self._one(folder, path, name)])

    def _one(self, folder: int, path: str, name: str) -> bool:
        """Tell of one name; True for a directory, of which nothing is told yet."""
        below = f"{path}/{name}" if path else name
        if (why := _unspeakable(below)) is not None:
            self._out.leave_out(below, why)
            return False
        try:
            fd = open_resolved(name, _LOOK, below=folder, resolve=_HERE)
        except OSError as error:
            self._leave_out(below, error)
            return False
        try:
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode):
                return True
            self._tell(below, fd, found)
        finally:
            os.close(fd)
        return False

    def _tell(self, path: str, fd: int, found: os.stat_result) -> None:
        if (what := _other(found)) is not None:
            self._out.leave_out(path, what)
            return
        try:
            self._entry(path, fd, found)
        except _NotBegun as error:
            self._leave_out(path, error.error)

    def _enter(self, folder: int, name: str, path: str) -> int:
        """Tell of a directory and open it; -1 when it is left out."""
        try:
            fd = open_resolved(name, _WALK, below=folder, resolve=_HERE)
        except OSError as error:
            self._leave_out(path, error)
            return -1
        self._out.part(_entry_of(path, EntryType.DIRECTORY, os.fstat(fd)))
        return fd

    def _entry(self, path: str, fd: int, found: os.stat_result) -> None:
        if stat.S_ISDIR(found.st_mode):
            self._out.part(_entry_of(path, EntryType.DIRECTORY, found))
        elif stat.S_ISLNK(found.st_mode):
            self._link(path, fd, found)
        else:
            self._file(path, fd, found)

    def _link(self, path: str, fd: int, found: os.stat_result) -> None:
        target = os.readlink("", dir_fd=fd)
        if (why := _unspeakable(target)) is not None:
            self._out.leave_out(path, f"a link, and of its target: {why}")
            return
        self._out.part(_entry_of(path, EntryType.LINK, found)._replace(target=target))

    def _file(self, path: str, fd: int, found: os.stat_result) -> None:
        try:
            opened = os.open(own_path(fd), _READ)
        except OSError as error:
            raise _NotBegun(error) from error
        try:
            self._out.part(_entry_of(path, EntryType.FILE, found))
            whole = self._content(opened, found, self._question.offset)
            after = os.fstat(opened)
        finally:
            os.close(opened)
        same = after.st_size == found.st_size and after.st_mtime_ns == found.st_mtime_ns
        if not (whole and same):
            self._out.leave_out(path, "it changed while it was read")

    def _content(self, fd: int, found: os.stat_result, at: int) -> bool:
        """All bytes from `at` to the size that was told; False when some are not there any
        more, which are zeros then."""
        size = found.st_size
        while at < size:
            start, end = _next_data(fd, found, at)
            self._out.hole(start - at)
            at = start
            while at < end:
                data = os.pread(fd, min(end - at, FRAME_BYTES), at)
                if not data:
                    self._out.hole(size - at)
                    return False
                self._out.data(data)
                at += len(data)
        return True

    def _leave_out(self, path: str, error: OSError) -> None:
        why = _GONE.get(error.errno or 0)
        if why is None or not path:
            raise error
        self._out.leave_out(path, why)


class _NotBegun(Exception):  # noqa: N818 - it carries one
    """A file could not be opened, and nothing of it is told yet."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def _next_data(fd: int, found: os.stat_result, at: int) -> tuple[int, int]:
    """Where the next bytes begin and end that are no hole."""
    size = found.st_size
    if found.st_blocks * _BLOCK >= size:
        return at, size
    try:
        start = os.lseek(fd, at, os.SEEK_DATA)
        return min(start, size), min(os.lseek(fd, start, os.SEEK_HOLE), size)
    except OSError as error:
        # ENXIO: only a hole follows. EINVAL: it can't tell (lseek(2)).
        return (size, size) if error.errno == errno.ENXIO else (at, size)


def _entry_of(path: str, kind: EntryType, found: os.stat_result) -> Entry:
    seconds, nanoseconds = divmod(found.st_mtime_ns, 1_000_000_000)
    size = found.st_size if kind is EntryType.FILE else 0
    mode = stat.S_IMODE(found.st_mode)
    times = Time(seconds, nanoseconds)
    return Entry(path, kind, mode, found.st_uid, found.st_gid, size, times)


def _other(found: os.stat_result) -> str | None:
    return _OTHERS.get(stat.S_IFMT(found.st_mode))


def _unspeakable(text: str) -> str | None:
    """Why the protocol can't carry this path."""
    if text.isascii():
        return None if len(text) <= LONGEST_PATH else "its path is too long"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "it is not in UTF-8"
    return None if size <= LONGEST_PATH else "its path is too long"
