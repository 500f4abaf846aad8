"""Unix sockets at paths below a root, for a process that does nothing else meanwhile.

A path is walked by descriptors and never leaves its root, whatever links a container has
made there. connect(2) and bind(2) take no descriptor: the first is given the one that was
found by its name in /proc (proc(5)), the second a plain name in the working directory. So
all of this wants a process of its own: `agent.linux.socketworker`.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from typing import NamedTuple

from agent.linux.libc import failure
from agent.linux.openat2 import open_in_root

BACKLOG = 128

NAME_BYTES = 107
"""The longest name of a socket: sun_path has 108 bytes, with a NUL (unix(7))."""

_FOLDER = os.O_PATH | os.O_DIRECTORY
_KIND = socket.SOCK_STREAM | socket.SOCK_CLOEXEC


class Identity(NamedTuple):
    """Which file a socket is."""

    device: int
    inode: int


def connect(root: int, path: str, seconds: float) -> socket.socket:
    """A connection to the socket at `path`; waits so long for room in its queue.

    Raises OSError: ECONNREFUSED for a socket nobody listens on and for no socket at all.
    """
    target = open_in_root(root, path, os.O_PATH)
    try:
        return _connected(target, path, seconds)
    finally:
        os.close(target)


def listen(root: int, path: str) -> tuple[socket.socket, Identity]:
    """A listening socket at `path`, for whoever can reach its directory.

    A socket that nobody listens on is replaced. Raises OSError EADDRINUSE for anything
    else that is there, ENAMETOOLONG.
    """
    folder, name = os.path.split(path)
    if len(os.fsencode(name)) > NAME_BYTES or name in ("", ".", ".."):
        raise failure(errno.ENAMETOOLONG if len(name) > 2 else errno.EISDIR, "bind", path)
    directory = open_in_root(root, folder, _FOLDER)
    sock = socket.socket(socket.AF_UNIX, _KIND)
    try:
        _bind(sock, directory, name, path)
        sock.listen(BACKLOG)
        return sock, _identity(os.stat(name, dir_fd=directory, follow_symlinks=False))
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(directory)


def remove(root: int, path: str, identity: Identity) -> None:
    """Remove the socket at `path` if it is still that one (the socket must be open still,
    or its inode may be another's by now). Raises OSError."""
    folder, name = os.path.split(path)
    directory = open_in_root(root, folder, _FOLDER)
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISSOCK(found.st_mode) and _identity(found) == identity:
            os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)


def _connected(target: int, path: str, seconds: float) -> socket.socket:
    if not stat.S_ISSOCK(os.fstat(target).st_mode):
        raise failure(errno.ECONNREFUSED, "connect (it is no socket)", path)
    sock = socket.socket(socket.AF_UNIX, _KIND)
    try:
        # Nothing tells when a full queue has room again; a blocking connect waits as long
        # as SO_SNDTIMEO says (unix(7), socket(7)).
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6) or 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        sock.connect(f"/proc/self/fd/{target}")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))
    except OSError as error:
        sock.close()
        raise failure(error.errno or errno.EIO, "connect", path) from None
    return sock


def _bind(sock: socket.socket, directory: int, name: str, path: str) -> None:
    os.fchdir(directory)
    before = os.umask(0o111)
    try:
        try:
            sock.bind(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _remove_stale(directory, name, path)
            sock.bind(name)
    except OSError as error:
        raise failure(error.errno or errno.EIO, "bind", path) from None
    finally:
        os.umask(before)
        os.chdir("/")


def _remove_stale(directory: int, name: str, path: str) -> None:
    """Raises EADDRINUSE for all but a socket that refuses."""
    target = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        found = os.fstat(target)
        if not stat.S_ISSOCK(found.st_mode) or not _refuses(target):
            raise failure(errno.EADDRINUSE, "bind", path)
        now = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if _identity(now) != _identity(found):
            raise failure(errno.EADDRINUSE, "bind", path)
        os.unlink(name, dir_fd=directory)
    finally:
        os.close(target)


def _refuses(target: int) -> bool:
    with socket.socket(socket.AF_UNIX, _KIND | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(f"/proc/self/fd/{target}") == errno.ECONNREFUSED


def _identity(found: os.stat_result) -> Identity:
    return Identity(found.st_dev, found.st_ino)
