"""A copy of a directory in a tmpfs, replaced as a whole when the source changes.

In the manner of Kubernetes' AtomicWriter (pkg/volume/util/atomic_writer.go): a hidden directory
with a time stamp holds the copy, `..data` is a link to it, and the names are links into
`..data`. A new copy is made beside the old one, `..data` is replaced by rename, then names are
put right and the old copy goes. A reader who opens `..data` and then the files in it never sees
some of the old and some of the new. `..signature` is a link to nowhere that says what the copy
was made from, so that a new agent knows it too.

The tmpfs is read-only where it is mounted, so that nobody else writes to it; it is written
through a mount of its own that is attached nowhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from agent.linux import mountplaces, treeremoval, watchedtree
from agent.linux.copyframes import shown
from agent.linux.libc import failure
from agent.linux.mountapi import Kernel, MountAttribute
from agent.linux.mountcalls import Location
from agent.linux.mounting import MountFlag
from agent.linux.openat2 import Resolve, open_resolved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.linux.watchedtree import Entry, Look, Source

_DATA = "..data"
_SIGNATURE = "..signature"
_NEW = "..new"
_HIDDEN = ".."

_TRIES = 5
_CHUNK = 1 << 20
_TOLD = 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# It went, or became something else, between a look and the copy: a change like any other.
_CHANGED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ESTALE, errno.EXDEV, errno.ELOOP}


class Refreshed(NamedTuple):
    """What came of a look: whether there was something new, and what is not in the copy."""

    changed: bool
    entries: int
    left_out: list[str]


def refresh_copy(*, source: dict[str, str | bool], target: str, gid: int | None) -> Refreshed:
    """Bring the copy in the tmpfs on `target` up to date; it is read-only afterwards.

    `gid` is a group that all shall belong to and be readable by, instead of the source's.
    Raises OSError; EAGAIN when the source changed each time while it was copied. The copy
    is as it was then.
    """
    where = Location(**source)  # type: ignore[arg-type]
    with _writable(target) as root:
        # A second one at the same time waits: it was asked for something newer.
        fcntl.flock(root, fcntl.LOCK_EX)
        _sweep(root)
        for _ in range(_TRIES):
            with watchedtree.opened(where) as tree, suppress(_UnsteadyError):
                return _attempt(tree, root, gid)
    raise failure(errno.EAGAIN, "it changes while it is copied", where)


class _UnsteadyError(Exception):
    """The source changed while it was copied."""


@contextmanager
def _writable(target: str) -> Iterator[int]:
    kernel = Kernel()
    if not any(
        entry.mount_point == target and entry.fs_type == "tmpfs" for entry in kernel.mounts()
    ):
        raise failure(errno.ENOTCONN, "its tmpfs is not mounted", target)
    with mountplaces.place(kernel, target) as place:
        with mountplaces.opened(kernel, kernel.clone_tree(place, recursive=False)) as clone:
            _allow(kernel, clone, MountAttribute(0), clear=MountAttribute.RDONLY)
            root = open_resolved(".", _DIRECTORY, below=clone, resolve=Resolve.NO_XDEV)
            with mountplaces.opened(kernel, root):
                yield root
        _allow(kernel, place, MountAttribute.RDONLY, clear=MountAttribute(0))


def _allow(kernel: Kernel, fd: int, added: MountAttribute, *, clear: MountAttribute) -> None:
    kernel.set_attributes(fd, added, clear=clear, propagation=MountFlag(0), recursive=False)


def _attempt(tree: Source, root: int, gid: int | None) -> Refreshed:
    look = tree.look()
    if look.signature == _link(root, _SIGNATURE):
        return _told(look, changed=False)
    _refuse_full(look, root)
    stamp = _stamp()
    os.mkdir(stamp, 0o755, dir_fd=root)
    try:
        _fill(tree, look, root, stamp, gid)
        if tree.look().signature != look.signature:
            raise _UnsteadyError
        _put_link(root, _DATA, stamp)
    except BaseException:
        if _link(root, _DATA) != stamp:
            treeremoval.remove_below(root, stamp)
        raise
    _name(root, look)
    _put_link(root, _SIGNATURE, look.signature)
    _sweep(root)
    return _told(look, changed=True)


def _refuse_full(look: Look, root: int) -> None:
    """Before anything is copied: a file's size costs who writes it nothing, but the copy the
    guest's memory."""
    room = os.fstatvfs(root)
    size = sum(entry.status.st_size for entry in look.entries if not entry.is_directory)
    if size > room.f_bavail * room.f_frsize:
        raise failure(errno.ENOSPC, f"copy {size} bytes", "its tmpfs")


def _told(look: Look, *, changed: bool) -> Refreshed:
    return Refreshed(changed, len(look.entries), [shown(text) for text in look.left_out[:_TOLD]])


def _fill(tree: Source, look: Look, root: int, stamp: str, gid: int | None) -> None:
    folder = os.open(stamp, _DIRECTORY, dir_fd=root)
    try:
        for entry in look.entries:
            _copy(tree, entry, folder, gid)
    finally:
        os.close(folder)


def _copy(tree: Source, entry: Entry, folder: int, gid: int | None) -> None:
    if entry.is_directory:
        if entry.path:
            os.mkdir(entry.path, 0o700, dir_fd=folder)
        fd = os.open(entry.path or ".", _DIRECTORY, dir_fd=folder)
    else:
        fd = os.open(entry.path, _WRITE, 0o600, dir_fd=folder)
    try:
        if not entry.is_directory:
            _copy_content(tree, entry, fd)
        _own(fd, entry.status, gid)
    finally:
        os.close(fd)


def _copy_content(tree: Source, entry: Entry, target: int) -> None:
    try:
        with tree.reading(entry) as fd:
            copied = 0
            while data := os.read(fd, _CHUNK):
                copied += len(data)
                # Who goes on writing could make it as long as there is memory; a pseudo file
                # has no size.
                if copied > max(entry.status.st_size, _CHUNK):
                    raise _UnsteadyError
                _write_all(target, data)
    except OSError as error:
        if error.errno in _CHANGED:
            raise _UnsteadyError from error
        raise


def _write_all(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]


def _own(fd: int, status: os.stat_result, gid: int | None) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if gid is not None:
        mode |= (stat.S_ISGID | 0o550) if stat.S_ISDIR(status.st_mode) else 0o440
    os.fchown(fd, status.st_uid, status.st_gid if gid is None else gid)
    # After the owner: a change of it takes set-user-id bits away.
    os.fchmod(fd, mode)
    os.utime(fd, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _name(root: int, look: Look) -> None:
    wanted = {entry.path for entry in look.entries if entry.path and "/" not in entry.path}
    for name in sorted(wanted):
        if _link(root, name) != f"{_DATA}/{name}":
            _put_link(root, name, f"{_DATA}/{name}")
    for name in os.listdir(root):
        if name not in wanted and not name.startswith(_HIDDEN):
            os.unlink(name, dir_fd=root)


def _put_link(root: int, name: str, text: str) -> None:
    """Make or replace a link; a reader finds the old or the new one."""
    with suppress(FileNotFoundError):
        os.unlink(_NEW, dir_fd=root)
    os.symlink(text, _NEW, dir_fd=root)
    os.rename(_NEW, name, src_dir_fd=root, dst_dir_fd=root)


def _link(root: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=root)
    except OSError:
        return None


def _sweep(root: int) -> None:
    """Remove copies that are not used: the one before, or one that was cut off."""
    used = {_link(root, _DATA), _DATA, _SIGNATURE, _NEW}
    for name in os.listdir(root):
        if name.startswith(_HIDDEN) and name not in used:
            # What is mounted in the guest on a directory of it keeps that one.
            treeremoval.remove_below(root, name)


def _stamp() -> str:
    now = time.strftime("%Y_%m_%d_%H_%M_%S", time.gmtime())
    return f"{_HIDDEN}{now}.{secrets.randbelow(10**9):09d}"
