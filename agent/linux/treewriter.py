"""The writing side of a copy: entries become files, directories and links.

A file has no name until it is whole (O_TMPFILE), or a temporary one where the file
system can't do that. Owner comes before mode, since chown(2) takes set-id bits away.
An existing name is never opened: a new file takes its place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.linux.copyfolders import Folders, Start, make_or_open, own_path, set_mode
from agent.linux.copyframes import EntryType
from agent.linux.copyrefusal import CopyRefusal, Why
from agent.linux.copytarget import Rules, Target

if TYPE_CHECKING:
    from agent.linux.copyframes import Entry, Part
    from agent.linux.copyslate import Slate

TIMES_KEPT = 16 << 10
"""Directories whose times wait for the end; those that the copy has left go first."""


@dataclass(slots=True, kw_only=True)
class Written:
    """What a copy has written; `size` is bytes of files, holes included."""

    size: int = 0
    files: int = 0
    directories: int = 0
    links: int = 0


class TreeWriter:
    """Writes one copy. Raises CopyRefusal, and OSError with the kernel's errno."""

    def __init__(self, start: Start, slate: Slate, *, only_new: bool) -> None:
        self.written = Written()
        self.entry: Entry | None = None
        self._folders = Folders(start)
        self._slate = slate
        prefix = f".innkeeper-{os.urandom(8).hex()}-"
        self._rules = Rules(folders=self._folders, slate=slate, only_new=only_new, prefix=prefix)
        self._file: _NewFile | None = None
        self._times: dict[str, int] = {}

    def part(self, part: Part) -> None:
        """The next part in order."""
        if part.entry is not None:
            self._begin(part.entry)
        if part.hole or part.data:
            self._current().add(part.hole, part.data)
        if self._file is not None and self._file.complete:
            self._file.publish()
            self.written.files += 1
            self.written.size += self._file.entry.size
            self._file = None
        self._slate.beat()

    def finish(self) -> None:
        """All has come: nothing may be half done."""
        self._refuse_unfinished("the copy ends")
        for path in list(self._times):
            self._set_time(path)

    def close(self) -> None:
        """Leave nothing of a file that did not become whole."""
        if self._file is not None:
            self._file.abandon()
        self._folders.close()

    def _begin(self, entry: Entry) -> None:
        self._refuse_unfinished(f"{entry.path!r} begins")
        self.entry = entry
        match entry.type:
            case EntryType.FILE:
                self._file = _NewFile(entry, self._rules)
            case EntryType.DIRECTORY:
                self._directory(entry)
                self.written.directories += 1
            case EntryType.LINK:
                self._make_link(entry)
                self.written.links += 1

    def _current(self) -> _NewFile:
        if self._file is None:
            path = self.entry.path if self.entry else ""
            raise CopyRefusal(Why.BAD, "there are bytes beyond the size of the file", path)
        return self._file

    def _refuse_unfinished(self, what: str) -> None:
        if self._file is not None:
            entry = self._file.entry
            text = f"{what} after {self._file.offset} of {entry.size} bytes"
            raise CopyRefusal(Why.BAD, text, entry.path)

    def _make_link(self, entry: Entry) -> None:
        target = Target(entry, self._rules)
        try:
            target.link()
        finally:
            target.abandon()

    def _directory(self, entry: Entry) -> None:
        if entry.path:
            folder, made = make_or_open(*self._folders.place(entry.path))
            self._folders.take(entry.path, folder)
        else:
            folder = self._folders.top()
            made = self._folders.made_top
        if self._rules.only_new and not made:
            return
        os.chown(own_path(folder), entry.uid, entry.gid)
        set_mode(folder, entry.mode)
        if entry.modified is not None:
            self._times[entry.path] = entry.modified.in_ns
            if len(self._times) > TIMES_KEPT:
                self._settle_left(entry.path)

    def _settle_left(self, path: str) -> None:
        """Set the times of directories that are neither `path` nor above it."""
        here = f"{path}/"
        for done in [each for each in self._times if each and not here.startswith(f"{each}/")]:
            self._set_time(done)

    def _set_time(self, path: str) -> None:
        when = self._times.pop(path)
        folder = self._folders.find(path)
        if folder >= 0:
            os.utime(own_path(folder), ns=(when, when))
        self._slate.beat()


class _NewFile:
    """A regular file that nobody sees yet."""

    def __init__(self, entry: Entry, rules: Rules) -> None:
        self.entry = entry
        self.offset = 0
        self._written = 0
        self._target = Target(entry, rules)
        self._fd = self._target.open()

    @property
    def complete(self) -> bool:
        return self.offset == self.entry.size

    def add(self, hole: int, data: memoryview | bytes) -> None:
        if self.offset + hole + len(data) > self.entry.size:
            text = f"there are more bytes than its size of {self.entry.size}"
            raise CopyRefusal(Why.BAD, text, self.entry.path)
        self.offset += hole
        view = memoryview(data)
        while view:
            count = os.pwrite(self._fd, view, self.offset)
            view = view[count:]
            self.offset += count
            self._written = self.offset

    def publish(self) -> None:
        """Give the whole file its name."""
        entry = self.entry
        if self._written < entry.size:
            os.ftruncate(self._fd, entry.size)
        os.fchown(self._fd, entry.uid, entry.gid)
        os.fchmod(self._fd, entry.mode)
        if entry.modified is not None:
            os.utime(self._fd, ns=(entry.modified.in_ns, entry.modified.in_ns))
        # Network file systems tell of a full disk when a file is closed.
        os.close(os.dup(self._fd))
        fd, self._fd = self._fd, -1
        self._target.publish(fd)

    def abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._target.abandon()
