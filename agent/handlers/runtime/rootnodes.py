"""Device nodes in a container's root, made and removed by a process of its own.

A path in a container is the container's to bend: a link, a mount, a directory that is
another one a moment later. So nothing here is a path of the guest: each name is looked
up from a descriptor of the container's root, as its own processes would see it. And it
may be a file system whose server never answers: the process that does this can be
given up (nodes.py).

    input     {"root_fd", "guest_dev", "remove": [NODE, ...], "make": [NODE, ...]}
    output    {"made": [PATH, ...]} | {"errno", "call", "object"}

What fails has changed nothing.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.linux.libc import failure
from agent.linux.openat2 import open_in_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DIRECTORY = os.O_PATH | os.O_DIRECTORY
_FOLDER_MODE = 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A device node: `type` is "b" or "c", `mode` without the type."""

    path: str
    type: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0] or "/"

    @property
    def format(self) -> int:
        return stat.S_IFBLK if self.type == "b" else stat.S_IFCHR

    def is_at(self, found: os.stat_result) -> bool:
        number = os.makedev(self.major, self.minor)
        return stat.S_IFMT(found.st_mode) == self.format and found.st_rdev == number


def main() -> None:
    request = json.loads(sys.stdin.read())
    # The node has its mode from the first moment: to change it later is to change
    # what may be something else by then.
    os.umask(0)
    try:
        answer: dict[str, Any] = {"made": change(request)}
    except OSError as error:
        answer = {
            "errno": error.errno or errno.EIO,
            "call": (error.strerror or "").partition(":")[0],
            "object": str(error.filename or ""),
        }
    sys.stdout.write(json.dumps(answer))


def change(request: dict[str, Any]) -> list[str]:
    """Remove nodes, then make others; returns the paths of those that were not there yet."""
    root = Root(request["root_fd"], request["guest_dev"])
    undo: list[Callable[[], object]] = []
    made = []
    try:
        for node in (Node(**each) for each in request["remove"]):
            root.remove(node, undo)
        for node in (Node(**each) for each in request["make"]):
            if root.make(node, undo):
                made.append(node.path)
    except OSError:
        for step in reversed(undo):
            with suppress(OSError):
                step()
        raise
    return made


class Root:
    """A container's root by its descriptor; `guest_dev` is the number of the file system
    that is the guest's own /dev, which a container may have been given to see."""

    def __init__(self, root_fd: int, guest_dev: int) -> None:
        self._root = root_fd
        self._guest_dev = guest_dev

    def make(self, node: Node, undo: list[Callable[[], object]]) -> bool:
        """False when that very node is there already."""
        with self._folder(node, undo) as folder:
            name = node.name
            if (found := _look(folder, name)) is not None:
                if not node.is_at(found):
                    raise failure(errno.EEXIST, "mknod", node.path)
                return False
            if os.fstat(folder).st_dev == self._guest_dev:
                raise failure(errno.EXDEV, "mknod", node.path)
            self._make(folder, name, node)
            undo.append(lambda: self.remove(node, []))
        return True

    def remove(self, node: Node, undo: list[Callable[[], object]]) -> None:
        """What is another node by now, or the guest's own, stays."""
        try:
            folder = open_in_root(self._root, node.folder, _DIRECTORY)
        except FileNotFoundError:
            return
        with ExitStack() as stack:
            stack.callback(os.close, folder)
            name = node.name
            found = _look(folder, name)
            guests = os.fstat(folder).st_dev == self._guest_dev
            if found is None or guests or not node.is_at(found):
                return
            _call("unlink", node.path, lambda: os.unlink(name, dir_fd=folder))
            undo.append(lambda: self.make(node, []))

    def _make(self, folder: int, name: str, node: Node) -> None:
        number = os.makedev(node.major, node.minor)
        mode = node.format | node.mode
        _call("mknod", node.path, lambda: os.mknod(name, mode, number, dir_fd=folder))
        try:
            _give(folder, name, node)
        except OSError:
            os.unlink(name, dir_fd=folder)
            raise

    @contextmanager
    def _folder(self, node: Node, undo: list[Callable[[], object]]) -> Iterator[int]:
        """The directory that the node goes to; made where it is missing."""
        names = [name for name in node.folder.split("/") if name]
        with ExitStack() as stack:
            folder = open_in_root(self._root, "/", _DIRECTORY)
            stack.callback(os.close, folder)
            for count, name in enumerate(names, 1):
                folder = self._enter(folder, "/" + "/".join(names[:count]), name, undo)
                stack.callback(os.close, folder)
            yield folder

    def _enter(self, above: int, path: str, name: str, undo: list[Callable[[], object]]) -> int:
        with suppress(FileNotFoundError):
            return open_in_root(self._root, path, _DIRECTORY)
        _call("mkdir", path, lambda: os.mkdir(name, _FOLDER_MODE, dir_fd=above))
        undo.append(lambda: self._remove_folder(path))
        return open_in_root(self._root, path, _DIRECTORY)

    def _remove_folder(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        above = open_in_root(self._root, parent or "/", _DIRECTORY)
        try:
            os.rmdir(name, dir_fd=above)
        finally:
            os.close(above)


def _look(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _give(folder: int, name: str, node: Node) -> None:
    """By a descriptor of what was looked at: the name may be another file's by now."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not node.is_at(os.fstat(fd)):
            raise failure(errno.ESTALE, "mknod", node.path)
        _call("chown", node.path, lambda: os.chown(f"/proc/self/fd/{fd}", node.uid, node.gid))
    finally:
        os.close(fd)


def _call(name: str, path: str, step: Callable[[], object]) -> None:
    try:
        step()
    except OSError as error:
        raise failure(error.errno or errno.EIO, name, path) from error


if __name__ == "__main__":
    main()
