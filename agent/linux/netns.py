"""Network namespaces: being in one for a moment, and sysfs as one shows it.

sysfs shows the interfaces of one network namespace: that of whoever made the
super block (Documentation/ABI/testing/sysfs-class-net; fs/sysfs/mount.c). A device
whose interface has moved away has an empty `net` directory in ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING

from agent.linux.libc import check, libc

if TYPE_CHECKING:
    from collections.abc import Iterator

CLONE_NEWNET = 0x40000000

# The same numbers on every machine but alpha (asm-generic/unistd.h); an older libc has
# no wrappers. Since Linux 5.2.
_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_FLAG_CLOEXEC = 1  # FSOPEN_CLOEXEC and FSMOUNT_CLOEXEC
_FSCONFIG_CMD_CREATE = 6
# MOUNT_ATTR_RDONLY | NOSUID | NODEV | NOEXEC
_ATTRIBUTES = 0x1 | 0x2 | 0x4 | 0x8


@contextlib.contextmanager
def entered(namespace: int) -> Iterator[None]:
    """Run the block with this thread in a network namespace, given by a descriptor.

    Raises OSError. A thread that could not come back must not go on: that is an OSError
    from the end of the block, and its process should end.
    """
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        check(libc.setns(namespace, CLONE_NEWNET), "setns", namespace)
        try:
            yield
        finally:
            check(libc.setns(own, CLONE_NEWNET), "setns", "the own network namespace")
    finally:
        os.close(own)


@contextlib.contextmanager
def sysfs(namespace: int) -> Iterator[int]:
    """A directory descriptor of sysfs as a network namespace sees it, while the block runs.

    The mount has no place in any tree, so nobody else sees it. Raises OSError.
    """
    with entered(namespace):
        tree = _detached_sysfs()
    try:
        yield tree
    finally:
        os.close(tree)


def _detached_sysfs() -> int:
    context = _call(_SYS_FSOPEN, "fsopen", b"sysfs", ctypes.c_uint(_FLAG_CLOEXEC))
    try:
        create = ctypes.c_uint(_FSCONFIG_CMD_CREATE)
        _call(_SYS_FSCONFIG, "fsconfig", context, create, None, None, 0)
        flags = ctypes.c_uint(_FLAG_CLOEXEC)
        return _call(_SYS_FSMOUNT, "fsmount", context, flags, ctypes.c_uint(_ATTRIBUTES))
    finally:
        os.close(context)


def _call(number: int, name: str, *arguments: object) -> int:
    return check(int(libc.syscall(ctypes.c_long(number), *arguments)), name, "sysfs")
