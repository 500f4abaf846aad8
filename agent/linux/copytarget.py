"""The name that an entry of a copy gets, and how it gets it all at once."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.linux.copyfolders import own_path, split
from agent.linux.copyrefusal import CopyRefusal, Why
from agent.linux.copyslate import Leftover
from agent.linux.renaming import rename_new

if TYPE_CHECKING:
    from agent.linux.copyfolders import Folders
    from agent.linux.copyframes import Entry
    from agent.linux.copyslate import Slate

HIDDEN = 0o600
"""The mode of a file that is not whole."""

# What file systems and old kernels say that know no O_TMPFILE (open(2)).
_NO_UNNAMED = {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What all targets of a copy have in common."""

    folders: Folders
    slate: Slate
    only_new: bool = False
    prefix: str
    """Of temporary names; nobody else uses it."""


class Target:
    """One entry's name in its directory, until the next target is asked for."""

    def __init__(self, entry: Entry, rules: Rules) -> None:
        self._entry = entry
        self._rules = rules
        self._folder, self._name = rules.folders.place(entry.path)
        self._temporary = ""

    def open(self) -> int:
        """A new file to write, without a name where that is possible."""
        try:
            return os.open(
                ".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, HIDDEN, dir_fd=self._folder
            )
        except OSError as error:
            if error.errno not in _NO_UNNAMED:
                raise
        self._choose()
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self._temporary, flags, HIDDEN, dir_fd=self._folder)
        except OSError:
            self.abandon()
            raise

    def publish(self, fd: int) -> None:
        """Give the file its name; closes `fd`."""
        try:
            if not self._temporary and self._link(fd, self._name):
                return
            if not self._temporary:
                self._refuse_existing()
                self._choose()
                self._link(fd, self._temporary)
        finally:
            os.close(fd)
        self._take_place()

    def link(self) -> None:
        """Make the entry's symbolic link."""
        entry = self._entry
        self._choose()
        os.symlink(entry.target, self._temporary, dir_fd=self._folder)
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._temporary, flags, dir_fd=self._folder)
        try:
            os.chown(own_path(fd), entry.uid, entry.gid)
            if entry.modified is not None:
                os.utime(own_path(fd), ns=(entry.modified.in_ns, entry.modified.in_ns))
        finally:
            os.close(fd)
        self._take_place()

    def abandon(self) -> None:
        """Leave no temporary name."""
        if self._temporary:
            with suppress(FileNotFoundError):
                os.unlink(self._temporary, dir_fd=self._folder)
            self._rules.slate.clear()
            self._temporary = ""

    def _choose(self) -> None:
        """A temporary name, noted before it is used."""
        self._temporary = f"{self._rules.prefix}{self._rules.slate.done:x}"
        beside = not self._entry.path
        folder = split(self._entry.path)[0]
        self._rules.slate.note(Leftover(folder, self._temporary, beside))

    def _link(self, fd: int, name: str) -> bool:
        try:
            os.link(own_path(fd), name, dst_dir_fd=self._folder, follow_symlinks=True)
        except FileExistsError:
            return False
        return True

    def _take_place(self) -> None:
        try:
            if self._rules.only_new:
                rename_new(self._temporary, self._name, self._folder)
            else:
                os.rename(
                    self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder
                )
        except FileExistsError:
            self._refuse_existing()
            raise
        self._rules.slate.clear()
        self._temporary = ""

    def _refuse_existing(self) -> None:
        if self._rules.only_new:
            text = "something of that name is there, and only new ones were asked for"
            raise CopyRefusal(Why.EXISTS, text, self._entry.path)
