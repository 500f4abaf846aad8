"""Where the mounts of a container go: targets in its root, made before the runtime mounts.

Every path is walked one name at a time, from the descriptor before it, as the kernel
walks for a process whose root directory is there: absolute links and ".." stay inside,
and nothing that changes meanwhile leads out. The walk goes through what earlier mounts of
the same container will show, so a link in a storage is followed too.

The runtime would make most of this by itself, but not all: it makes what a path names,
not always what a link names (`/var/run` to `/run` in an image that lost its empty
`/run`), takes a relative link to a file for one that starts at the root, and gives
directories a mode of 01755.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent.linux.libc import failure

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_LINKS = 40
"""MAXSYMLINKS (include/linux/namei.h)."""

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC

# The runtime refuses links on the way to these, and has its own way to make their targets.
_PLAIN = ("proc", "sysfs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMount:
    """One mount of a container: `source` is what a bind mount shows, None for others."""

    destination: str
    fs_type: str = ""
    source: str | None = None


@dataclass(frozen=True, slots=True)
class _Spot:
    """A place of the walk: its descriptor, its name, and whether it is the root's own."""

    fd: int
    name: str
    own: bool


def make_targets(root: str, mounts: Iterable[dict[str, Any]]) -> None:
    """Make what is missing of the targets of these mounts (ContainerMounts), in their order.

    Directories get mode 0755; where a file is bound, an empty file 0644. What would lie in
    another mount is left to the runtime. Raises OSError with the destination as its object:
    ELOOP (links in a circle, or more than 40), EXDEV (a link leads into a /proc), EROFS (it
    is missing, and the root is read-only), ENOTDIR, EBUSY (it leads to the root itself).
    """
    with ExitStack() as stack:
        # A source whose server hangs must not be waited for with the root held open, which
        # then could not be unmounted.
        shown = [_Shown.of(ContainerMount(**each), stack) for each in mounts]
        top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, top)
        tree = _Tree(top)
        for each in shown:
            try:
                _place(tree, each)
            except OSError as error:
                destination = each.mount.destination
                raise failure(error.errno or errno.EIO, "make_targets", destination) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """A mount and what it shows: `fd` is a bind mount's source, None for others.

    `missing`: the source is not there. Whoever mounts says so, with its name.
    """

    mount: ContainerMount
    fd: int | None = None
    folder: bool = True
    missing: bool = False

    @classmethod
    def of(cls, mount: ContainerMount, stack: ExitStack) -> _Shown:
        if mount.source is None:
            return cls(mount=mount)
        try:
            fd = os.open(mount.source, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return cls(mount=mount, missing=True)
        stack.callback(os.close, fd)
        return cls(mount=mount, fd=fd, folder=stat.S_ISDIR(os.fstat(fd).st_mode))


class _Tree:
    """The root, and what is mounted in it by then, by the names on the way there."""

    def __init__(self, top: int) -> None:
        self.top = top
        self.mounted: dict[tuple[str, ...], _Shown] = {}
        self._proc = os.stat("/proc").st_dev

    def is_proc(self, fd: int) -> bool:
        return os.fstat(fd).st_dev == self._proc


def _place(tree: _Tree, shown: _Shown) -> None:
    if shown.missing:
        return
    plain = shown.mount.fs_type in _PLAIN
    with ExitStack() as stack:
        walk = _Walk(tree=tree, folder=shown.folder, plain=plain, stack=stack)
        names = walk.go(shown.mount.destination)
    if names is not None:
        tree.mounted[names] = shown


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One path, to a directory or (`folder` False) to something else; `plain`: without links.

    `spots` are the places from the root to where the walk is, `ahead` the names still to
    go, the last one first, and `links` those that were followed.
    """

    tree: _Tree
    folder: bool
    plain: bool
    stack: ExitStack
    spots: list[_Spot] = field(default_factory=list)
    ahead: list[str] = field(default_factory=list)
    links: int = 0

    def go(self, path: str) -> tuple[str, ...] | None:
        """The names that lead there without links; None where only the runtime can see."""
        self._push(path)
        while self.ahead:
            name = self.ahead.pop()
            if name == "..":
                del self.spots[-1:]
            elif (link := self._link(name)) is not None:
                self._follow(link)
            elif not self._enter(name):
                return None
        if not self.spots:
            raise failure(errno.EBUSY, "mount", path)
        return self._names()

    def _push(self, path: str) -> None:
        names = [name for name in path.split("/") if name not in ("", ".")]
        self.ahead += reversed(names)

    def _names(self, *more: str) -> tuple[str, ...]:
        return (*(spot.name for spot in self.spots), *more)

    def _here(self) -> _Spot:
        return self.spots[-1] if self.spots else _Spot(self.tree.top, "", own=True)

    def _link(self, name: str) -> str | None:
        if self._names(name) in self.tree.mounted:
            return None
        try:
            return os.readlink(name, dir_fd=self._here().fd)
        except OSError as error:
            # EINVAL: it is no link.
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def _follow(self, link: str) -> None:
        self.links += 1
        if self.plain:
            raise failure(errno.ENOTDIR, "open", link)
        if self.links > _MOST_LINKS:
            raise failure(errno.ELOOP, "readlink", link)
        if link.startswith("/"):
            self.spots.clear()
        self._push(link)

    def _enter(self, name: str) -> bool:
        """False where only the runtime can see."""
        shown = self.tree.mounted.get(self._names(name))
        spot: _Spot | None
        if shown is None:
            spot = self._spot(name)
        elif shown.fd is not None:
            spot = _Spot(shown.fd, name, own=False)
        elif self.links and shown.mount.fs_type == "proc":
            raise failure(errno.EXDEV, "open", name)
        else:
            spot = None
        if spot is None:
            return False
        self._check(spot)
        self.spots.append(spot)
        return True

    def _spot(self, name: str) -> _Spot | None:
        here = self._here()
        try:
            return self._opened(name, here)
        except FileNotFoundError:
            if not here.own:
                return None
        # Another container with the same root may be as far at this very moment.
        with suppress(FileExistsError):
            self._make(name, here.fd)
        return self._opened(name, here)

    def _opened(self, name: str, here: _Spot) -> _Spot:
        fd = os.open(name, _LOOK, dir_fd=here.fd)
        self.stack.callback(os.close, fd)
        return _Spot(fd, name, own=here.own)

    def _make(self, name: str, folder: int) -> None:
        if self._wants_folder():
            os.mkdir(name, 0o755, dir_fd=folder)
        else:
            os.close(os.open(name, _NEW_FILE, 0o644, dir_fd=folder))

    def _check(self, spot: _Spot) -> None:
        kind = os.fstat(spot.fd).st_mode
        if stat.S_ISLNK(kind):
            # It was none a moment ago.
            raise failure(errno.ELOOP, "open", spot.name)
        if self.links and self.tree.is_proc(spot.fd):
            raise failure(errno.EXDEV, "open", spot.name)
        if stat.S_ISDIR(kind) != self._wants_folder():
            raise failure(errno.ENOTDIR, "open", spot.name)

    def _wants_folder(self) -> bool:
        return bool(self.ahead) or self.folder
