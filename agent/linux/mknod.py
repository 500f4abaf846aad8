"""Character devices' nodes and links to them, where neither devtmpfs nor udev makes them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from agent.linux.libc import failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def make_char_node(
    path: Path, *, numbers: tuple[int, int], mode: int, uid: int = 0, gid: int = 0
) -> None:
    """A node with these numbers and this owner; directories on the way are made.

    What had the name before is replaced, unless it is a directory. Until the owner is set
    nobody else can open the node, and the umask has no say in its mode. Raises OSError that
    names the call and the path; then there is no node.
    """
    with _named("mkdir", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    remove(path)
    with _named("mknod", path):
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(*numbers))
    try:
        with _named("chown", path):
            os.chown(path, uid, gid, follow_symlinks=False)
        with _named("chmod", path):
            path.chmod(mode)
    except OSError:
        remove(path)
        raise


def make_link(path: Path, target: str) -> None:
    """A symbolic link, in place of what had the name before; raises like `make_char_node`."""
    with _named("mkdir", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    remove(path)
    with _named("symlink", path):
        path.symlink_to(target)


def remove(path: Path) -> None:
    """Remove a node or link, which may be gone already; raises OSError with call and path."""
    with _named("unlink", path):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(call: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise failure(error.errno or errno.EIO, call, path) from error
