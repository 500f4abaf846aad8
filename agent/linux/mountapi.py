"""The kernel's mount calls as one object: fsopen(2) and its family, and mount(2).

Every call that making a mount needs goes through a `Kernel`, so that a test can count the
calls and let any of them fail. The manual pages are fsopen(2), fsconfig(2), fsmount(2),
move_mount(2), open_tree(2), mount_setattr(2); the numbers are those of <linux/mount.h>.
An error carries the name of the call; whoever calls knows the object.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import TYPE_CHECKING

from agent.linux import mounting, openat2
from agent.linux.libc import check, failure, libc

if TYPE_CHECKING:
    from agent.linux.mounting import MountFlag, UnmountFlag
    from agent.linux.openat2 import Resolve

# One message of the context's log is one read; the kernel keeps the last eight.
_LOG_LINES = 8
_LOG_SIZE = 4096


class _Number(IntEnum):
    """System calls without a wrapper in libc; the same on every machine but alpha."""

    OPEN_TREE = 428
    MOVE_MOUNT = 429
    FSOPEN = 430
    FSCONFIG = 431
    FSMOUNT = 432
    MOUNT_SETATTR = 442


class _Set(IntEnum):
    """FSCONFIG_* of fsconfig(2)."""

    FLAG = 0
    STRING = 1
    CREATE = 6


_CLOEXEC = 1  # FSOPEN_CLOEXEC and FSMOUNT_CLOEXEC
_OPEN_TREE_CLONE = 1
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_MOVE_MOUNT_F_EMPTY_PATH = 0x04
_MOVE_MOUNT_T_EMPTY_PATH = 0x40


class MountAttribute(IntFlag):
    """MOUNT_ATTR_* of mount_setattr(2)."""

    RDONLY = 0x01
    NOSUID = 0x02
    NODEV = 0x04
    NOEXEC = 0x08
    NOATIME = 0x10
    STRICTATIME = 0x20
    ATIME = 0x70
    NODIRATIME = 0x80
    NOSYMFOLLOW = 0x200000


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class Kernel:
    """The calls, one method each. Descriptors are close-on-exec."""

    def open_path(
        self, path: str, *, below: int | None = None, resolve: Resolve, directory: bool = False
    ) -> int:
        """O_PATH of `path`, from the directory `below` when that is given.

        With `directory` anything else is ENOTDIR.
        """
        flags = os.O_PATH | (os.O_DIRECTORY if directory else 0)
        return openat2.open_resolved(path, flags, below=below, resolve=resolve)

    def is_directory(self, fd: int) -> bool:
        return stat.S_ISDIR(os.fstat(fd).st_mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def fsopen(self, fs_type: str) -> int:
        return _call("fsopen", _Number.FSOPEN, _text(fs_type, "fsopen"), _CLOEXEC)

    def set_string(self, context: int, key: str, value: str) -> None:
        name = f"fsconfig({key})"
        data = _text(value, name)
        _call(name, _Number.FSCONFIG, context, _Set.STRING, _text(key, name), data, 0)

    def set_flag(self, context: int, key: str) -> None:
        name = f"fsconfig({key})"
        _call(name, _Number.FSCONFIG, context, _Set.FLAG, _text(key, name), None, 0)

    def create(self, context: int) -> None:
        """Make or find the file system: this opens the disk or asks the server."""
        _call("fsconfig(create)", _Number.FSCONFIG, context, _Set.CREATE, None, None, 0)

    def read_log(self, context: int) -> tuple[str, ...]:
        """What the file system said, oldest first, without the letter for its level."""
        lines = []
        for _ in range(_LOG_LINES):
            try:
                line = os.read(context, _LOG_SIZE).decode(errors="replace").strip()
            except OSError:
                # ENODATA: that was all.
                break
            lines.append(line[2:] if line[1:2] == " " else line)
        return tuple(lines)

    def fsmount(self, context: int, attributes: MountAttribute) -> int:
        return _call("fsmount", _Number.FSMOUNT, context, _CLOEXEC, attributes)

    def clone_tree(self, fd: int, *, recursive: bool) -> int:
        """A detached bind mount of what the descriptor is."""
        flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH
        flags |= _AT_RECURSIVE if recursive else 0
        return _call("open_tree", _Number.OPEN_TREE, fd, b"", flags)

    def set_attributes(
        self,
        fd: int,
        attributes: MountAttribute,
        *,
        clear: MountAttribute,
        propagation: MountFlag,
        recursive: bool,
    ) -> None:
        change = _MountAttr(attributes, clear, propagation, 0)
        flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
        size = ctypes.sizeof(change)
        number = _Number.MOUNT_SETATTR
        _call("mount_setattr", number, fd, b"", flags, ctypes.byref(change), size)

    def move_mount(self, fd: int, target: int) -> None:
        """Put a detached mount on what `target` is open on."""
        flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
        _call("move_mount", _Number.MOVE_MOUNT, fd, b"", target, b"", flags)

    def mount(
        self, source: str | None, target: str, fs_type: str | None, flags: MountFlag, data: str
    ) -> None:
        mounting.mount(source, target, fs_type, flags, data)

    def unmount(self, target: str, flags: UnmountFlag) -> None:
        mounting.unmount(target, flags)

    def mounts(self) -> tuple[mounting.MountEntry, ...]:
        """The mounts of this process's namespace, each after the one that it is on."""
        text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        return mounting.parse_mountinfo(text)

    def fchdir(self, fd: int) -> None:
        os.fchdir(fd)


def _call(name: str, number: int, *arguments: object) -> int:
    # Variadic: an integer that is not made a long has no upper half.
    longs = [
        ctypes.c_long(int(argument)) if isinstance(argument, int) else argument
        for argument in arguments
    ]
    return check(int(libc.syscall(ctypes.c_long(number), *longs)), name)


def _text(text: str, call: str) -> bytes:
    data = os.fsencode(text)
    if b"\0" in data:
        # C would take the text up to the NUL.
        raise failure(errno.EINVAL, call)
    return data
