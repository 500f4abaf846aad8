"""Users and groups by name, in a container's own /etc/passwd and /etc/group (passwd(5)).

Both files are the container's to write: they are looked for without leaving its root, only
regular ones are read, none for longer than a bound, and a line that makes no sense is
passed over as the C library does. It runs in a process that can be given up (`fsworker`):
the root may be on a served file system.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.linux.libc import failure
from agent.linux.openat2 import open_in_root

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 4 << 20
"""Bytes of one file; 40,000 users have less."""

LONGEST_PATH = 4096
"""PATH_MAX (limits.h of the kernel), with the NUL at its end."""

MOST_GROUPS = 65536
"""NGROUPS_MAX (limits.h of the kernel)."""

_HIGHEST_ID = 2**32 - 2
"""The last one means "unchanged" to the kernel."""


class User(NamedTuple):
    name: str
    uid: int
    gid: int
    home: str = ""


class Group(NamedTuple):
    name: str
    gid: int
    members: tuple[str, ...]


class Found(NamedTuple):
    """`missing` is "user" or "group" when there is none of that name; the rest counts else."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    missing: str = ""
    home: str = ""
    """Empty when there is none that a variable can hold."""


def find_account(*, root: str, user: str, group: str | None) -> dict[str, Any]:
    """A user by name or number and, in place of its own groups, one by name or number.

    The fields of `Found`. A number that is in no file stands for itself, with group 0. The
    first line that fits counts. Raises OSError: of the root, EINVAL for what is no regular
    file, EFBIG.
    """
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _find(fd, user, group)._asdict()
    finally:
        os.close(fd)


def find_home(*, root: str, uid: int) -> str:
    """The home directory of the first user with that number; empty when there is none.

    Raises OSError as `find_account` does.
    """
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        users = _users(_lines(fd, "/etc/passwd"))
        return next((each.home for each in users if each.uid == uid), "")
    finally:
        os.close(fd)


def _find(root: int, name: str, group: str | None) -> Found:
    number = number_of(name)
    users = _users(_lines(root, "/etc/passwd"))
    known = next((each for each in users if each.name == name or each.uid == number), None)
    if known is None and number is None:
        return Found(missing="user")
    user = known or User(name="", uid=number or 0, gid=0)
    if group is not None:
        return _with_group(root, user, group)
    groups = (each.gid for each in _groups(_lines(root, "/etc/group")) if user.name in each.members)
    own = tuple(dict.fromkeys(groups))[:MOST_GROUPS] if user.name else ()
    return Found(uid=user.uid, gid=user.gid, groups=own, home=user.home)


def _with_group(root: int, user: User, name: str) -> Found:
    number = number_of(name)
    found = (each.gid for each in _groups(_lines(root, "/etc/group")) if each.name == name)
    gid = next(found, number)
    if gid is None:
        return Found(missing="group")
    return Found(uid=user.uid, gid=gid, home=user.home)


def number_of(text: str) -> int | None:
    """An id as a number; None for a name, and for what the kernel takes for no id."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_HIGHEST_ID))):
        return None
    number = int(text)
    return number if number <= _HIGHEST_ID else None


def _users(lines: Iterator[list[str]]) -> Iterator[User]:
    """name:password:UID:GID:comment:home:shell"""
    for fields in lines:
        if len(fields) >= 4:
            uid, gid = number_of(fields[2]), number_of(fields[3])
            if fields[0] and uid is not None and gid is not None:
                yield User(fields[0], uid, gid, _home(fields))


def _home(fields: list[str]) -> str:
    """The container's own text: what no variable can hold, or is longer than a path, is none."""
    home = fields[5] if len(fields) > 5 else ""
    fits = home.isprintable() and len(home.encode(errors="surrogateescape")) < LONGEST_PATH
    return home if fits else ""


def _groups(lines: Iterator[list[str]]) -> Iterator[Group]:
    """name:password:GID:members"""
    for fields in lines:
        if len(fields) >= 3:
            gid = number_of(fields[2])
            if fields[0] and gid is not None:
                members = fields[3].split(",") if len(fields) > 3 else []
                yield Group(fields[0], gid, tuple(member.strip() for member in members if member))


def _lines(root: int, path: str) -> Iterator[list[str]]:
    for line in _read(root, path).split(b"\n"):
        text = line.decode(errors="surrogateescape").strip()
        if text and not text.startswith("#"):
            yield text.split(":")


def _read(root: int, path: str) -> bytes:
    """All of a regular file in the root; nothing where there is none."""
    try:
        # O_NONBLOCK: a FIFO would be waited for, a terminal or tape might do something.
        fd = open_in_root(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return b""
        raise
    try:
        return _read_regular(fd, path)
    finally:
        os.close(fd)


def _read_regular(fd: int, path: str) -> bytes:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise failure(errno.EINVAL, "read as a regular file", path)
    chunks: list[bytes] = []
    left = LARGEST + 1
    while left and (chunk := os.read(fd, min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    if not left:
        raise failure(errno.EFBIG, "read", path)
    return b"".join(chunks)
