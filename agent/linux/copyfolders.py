"""Directories below the start of a copy, by descriptor.

The start itself is looked up as a process in that root would do it, links and all. Below
it nothing may be a link: whoever can write there may put one in at any moment, so
every directory is opened with RESOLVE_NO_SYMLINKS, and then used by its descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.linux.copyrefusal import CopyRefusal, Why
from agent.linux.openat2 import Resolve, open_in_root, open_resolved

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT_OPEN = 64
"""Directories kept open: a tree comes in order, so this is more than the depth of most."""

_BELOW = Resolve.BENEATH | Resolve.NO_SYMLINKS | Resolve.NO_MAGICLINKS
_DIRECTORY = os.O_PATH | os.O_DIRECTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a copy starts: a path below a root, and the mode of directories to be made."""

    root: int
    path: str
    directory_mode: int = 0o755


def split(path: str) -> tuple[str, str]:
    """The directory's path and the name."""
    folder, _, name = path.rpartition("/")
    return folder, name


def open_below(folder: int, path: str, flags: int) -> int:
    """Open without any link on the way, the last name included; ELOOP for one."""
    return open_resolved(path, flags, below=folder, resolve=_BELOW)


def own_path(fd: int) -> str:
    """A path to what a descriptor stands for, whatever its names are by now."""
    return f"/proc/self/fd/{fd}"


def set_mode(fd: int, mode: int) -> None:
    """fchmod(2), which takes no descriptor of O_PATH."""
    os.chmod(own_path(fd), mode)  # noqa: PTH101 - of a descriptor


class Folders:
    """The directories of one copy; `path` is below the start, "" is the start."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._open: OrderedDict[str, int] = OrderedDict()
        self._kept = ExitStack()
        self._top = -1
        self._beside = -1
        self.made_top = False
        """Whether the start was missing."""

    def close(self) -> None:
        self._kept.close()
        while self._open:
            os.close(self._open.popitem()[1])

    def of(self, path: str) -> int:
        """A descriptor of the directory, made where it is missing; ours, not the caller's.

        It is good until the next call.
        """
        if not path:
            return self.top()
        known = self._open.get(path)
        if known is not None:
            self._open.move_to_end(path)
            return known
        return self._keep(path, self._open_or_make(path))

    def find(self, path: str) -> int:
        """The directory if it is there, still or already; -1 otherwise. Ours, as with `of`."""
        known = self._open.get(path) if path else self.top()
        if known is not None:
            return known
        try:
            return self._keep(path, open_below(self.top(), path, _DIRECTORY))
        except (FileNotFoundError, NotADirectoryError):
            return -1
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return -1

    def top(self) -> int:
        """The start itself."""
        if self._top < 0:
            fd, self.made_top = open_or_make(self._start, self._start.path)
            self._top = self._enter(fd)
        return self._top

    def beside(self) -> tuple[int, str]:
        """The start's own directory, and the start's name in it."""
        folder, name = split(self._start.path)
        if not name:
            raise CopyRefusal(Why.BAD, "the root itself can't be replaced", "")
        if self._beside < 0:
            self._beside = self._enter(open_or_make(self._start, folder)[0])
        return self._beside, name

    def place(self, path: str) -> tuple[int, str]:
        """The directory and the name of an entry."""
        if not path:
            return self.beside()
        folder, name = split(path)
        return self.of(folder), name

    def take(self, path: str, fd: int) -> None:
        """Keep a descriptor that the caller has opened."""
        old = self._open.pop(path, None)
        if old is not None:
            os.close(old)
        self._keep(path, fd)

    def _enter(self, fd: int) -> int:
        self._kept.callback(os.close, fd)
        return fd

    def _keep(self, path: str, fd: int) -> int:
        self._open[path] = fd
        if len(self._open) > KEPT_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return fd

    def _open_or_make(self, path: str) -> int:
        fd, known = _deepest(path, lambda here: open_below(self.top(), here or ".", _DIRECTORY))
        for name in _names_below(path, known):
            above = fd
            try:
                fd = _make(above, name, self._start.directory_mode)
            finally:
                os.close(above)
        return fd


def open_or_make(start: Start, path: str) -> tuple[int, bool]:
    """A directory of the root as a process there would see it, and whether it is new."""

    def opened(here: str) -> int:
        return open_in_root(start.root, here or ".", _DIRECTORY)

    (fd, known), new = _deepest(path, opened), False
    for name in _names_below(path, known):
        known, above = f"{known}/{name}".lstrip("/"), fd
        try:
            fd, new = _make(above, name, start.directory_mode), True
        except FileExistsError:
            # A link that leads nowhere; or somebody else made it, and then it can be opened.
            fd, new = opened(known), False
        finally:
            os.close(above)
    return fd, new


def _deepest(path: str, opened: Callable[[str], int]) -> tuple[int, str]:
    """The deepest directory on the way that is there, and its path.

    One at a time, not by recursion: a path may have two thousand names.
    """
    while True:
        try:
            return opened(path), path
        except FileNotFoundError:
            if not path:
                raise
            path = split(path)[0]


def _names_below(path: str, known: str) -> list[str]:
    """The names that lead from `known` to `path`."""
    rest = path[len(known) :].lstrip("/")
    return rest.split("/") if rest else []


def _make(folder: int, name: str, mode: int) -> int:
    os.mkdir(name, mode & 0o777, dir_fd=folder)
    made = open_below(folder, name, _DIRECTORY)  # ENOTDIR or ELOOP when it was swapped
    # mkdir(2) leaves out set-id bits, and takes the group's from the directory above.
    if stat.S_IMODE(os.fstat(made).st_mode) != mode:
        set_mode(made, mode)
    return made


def make_or_open(folder: int, name: str) -> tuple[int, bool]:
    """A directory, readable, and whether it is new (then only its owner may look into it).

    ENOTDIR for what is no directory, ELOOP for a link.
    """
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
        made = True
    except FileExistsError:
        made = False
    return open_below(folder, name, os.O_RDONLY | os.O_DIRECTORY), made
