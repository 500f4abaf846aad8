"""Mounts of a file system: by fsopen(2) and what belongs to it, else by mount(2).

The mount is made detached and put on its target by the last call, so that a failure before
leaves nothing behind, and neither does a worker that is killed. It gets the propagation that
its new parent has, as with mount(2).
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent.linux import mountdata, mountplaces
from agent.linux.mountapi import MountAttribute
from agent.linux.mountcalls import FileRefusal
from agent.linux.mounting import MountFlag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.linux.mountapi import Kernel
    from agent.linux.mountcalls import FsMount, MountOption

_ATTRIBUTES = {
    MountFlag.RDONLY: MountAttribute.RDONLY,
    MountFlag.NOSUID: MountAttribute.NOSUID,
    MountFlag.NODEV: MountAttribute.NODEV,
    MountFlag.NOEXEC: MountAttribute.NOEXEC,
    MountFlag.NODIRATIME: MountAttribute.NODIRATIME,
    MountFlag.NOSYMFOLLOW: MountAttribute.NOSYMFOLLOW,
}

# Flags of the file system, not of the mount, by the words that fsconfig(2) has for them.
# Read-only is both: the mount's alone would leave the disk open for writing.
_SUPER_BLOCK = {
    MountFlag.RDONLY: "ro",
    MountFlag.SYNCHRONOUS: "sync",
    MountFlag.DIRSYNC: "dirsync",
    MountFlag.MANDLOCK: "mand",
    MountFlag.LAZYTIME: "lazytime",
}

# fsconfig(2) has no words for these: a file system would take them for options of its own.
_ONLY_OLD = MountFlag.I_VERSION | MountFlag.SILENT


def make(kernel: Kernel, call: FsMount, target: str) -> None:
    """Mount a file system on `target`."""
    with mountplaces.place(kernel, target, directory=True) as place:
        if _fits(call) and _attached(kernel, call, place):
            return
        data = mountdata.mount_data(call.options, target)
        # Through the descriptor, or the path could lead elsewhere by now.
        kernel.mount(call.source, mountplaces.name(place), call.fs_type, call.flags, data)


@contextmanager
def context(kernel: Kernel, fs_type: str) -> Iterator[int]:
    """A file system that is being configured; an error inside gets what its log says."""
    with mountplaces.opened(kernel, kernel.fsopen(fs_type)) as fd:
        try:
            yield fd
        except OSError as error:
            number = error.errno or errno.EIO
            text, obj = error.strerror or str(error), str(error.filename or "")
            raise FileRefusal(number, text, obj, log=kernel.read_log(fd)) from error


def configure(kernel: Kernel, fd: int, options: Iterable[MountOption], flags: MountFlag) -> None:
    """Hand over options in their order, and flags of the file system."""
    for option in options:
        if option.value is None:
            kernel.set_flag(fd, option.key)
        else:
            kernel.set_string(fd, option.key, option.value)
    for flag, word in _SUPER_BLOCK.items():
        if flag in flags:
            kernel.set_flag(fd, word)


def attach(kernel: Kernel, fd: int, flags: MountFlag, place: int) -> None:
    """Create the configured file system and put its mount on `place`."""
    kernel.create(fd)
    with mountplaces.opened(kernel, kernel.fsmount(fd, attributes(flags))) as mount:
        kernel.move_mount(mount, place)


def attributes(flags: MountFlag) -> MountAttribute:
    """Flags of mount(2) as attributes of the mount; the kernel's own default is relatime."""
    found = MountAttribute(0)
    for flag, attribute in _ATTRIBUTES.items():
        if flag in flags:
            found |= attribute
    # As mount(2) has it: strictatime beats the others.
    if MountFlag.STRICTATIME in flags:
        return found | MountAttribute.STRICTATIME
    return found | MountAttribute.NOATIME if MountFlag.NOATIME in flags else found


def _fits(call: FsMount) -> bool:
    if call.flags & _ONLY_OLD:
        return False
    return mountdata.fits_strings([call.source, *mountdata.strings(call.options)])


def _attached(kernel: Kernel, call: FsMount, place: int) -> bool:
    """False where the kernel has no such calls: then nothing was done."""
    try:
        with context(kernel, call.fs_type) as fd:
            kernel.set_string(fd, "source", call.source)
            configure(kernel, fd, call.options, call.flags)
            attach(kernel, fd, call.flags, place)
    except OSError as error:
        # EPERM is no sign of an old kernel: a filter that forbids the call says it too.
        if error.errno != errno.ENOSYS:
            raise
        return False
    return True
