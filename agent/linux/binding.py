"""Bind mounts, with their flags for real: open_tree(2) and mount_setattr(2), else mount(2).

MS_BIND takes no flags: a bind mount asked to be read-only is still writable until it is
remounted. Here the flags are set on the detached copy, before anybody can see it. Flags that
the source's mount has are never cleared: where a user namespace has locked them the kernel
would refuse (EPERM), and elsewhere it would give more than the source does.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from agent.linux import mountplaces
from agent.linux.fscontext import attributes
from agent.linux.libc import failure
from agent.linux.mountapi import MountAttribute
from agent.linux.mounting import MountEntry, MountFlag, UnmountFlag

if TYPE_CHECKING:
    from agent.linux.mountapi import Kernel
    from agent.linux.mountcalls import BindMount

# Without these two no other access time is stricter than the source's own.
_NOT_ADDED = MountFlag.RELATIME | MountFlag.STRICTATIME

# The words of mountinfo for the flags of a mount; "relatime" is the kernel's default.
_WORDS = {
    "ro": MountFlag.RDONLY,
    "nosuid": MountFlag.NOSUID,
    "nodev": MountFlag.NODEV,
    "noexec": MountFlag.NOEXEC,
    "noatime": MountFlag.NOATIME,
    "relatime": MountFlag.RELATIME,
    "nodiratime": MountFlag.NODIRATIME,
    "nosymfollow": MountFlag.NOSYMFOLLOW,
}
_ATIME = MountFlag.NOATIME | MountFlag.RELATIME


def make(kernel: Kernel, call: BindMount, target: str) -> None:
    """Show the source on `target` too; both are directories, or neither is (ENOTDIR).

    What is mounted below a read-only one's source afterwards does not show in it: it would
    be writable there.
    """
    with (
        mountplaces.place(kernel, target) as place,
        mountplaces.location(kernel, call.source) as source,
    ):
        # move_mount(2) says EINVAL here, which means too many other things.
        if kernel.is_directory(source) != kernel.is_directory(place):
            raise failure(errno.ENOTDIR, "mount", target)
        try:
            _attach(kernel, call, source, place)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            _attach_by_mount(kernel, call, source, place, target)


def _attach(kernel: Kernel, call: BindMount, source: int, place: int) -> None:
    copy = kernel.clone_tree(source, recursive=call.recursive)
    with mountplaces.opened(kernel, copy) as tree:
        added = attributes(call.flags & ~_NOT_ADDED)
        if added or call.recursive:
            no_atime = MountAttribute.NOATIME in added
            kernel.set_attributes(
                tree,
                added,
                # The kernel wants all bits of the access time cleared where one is set.
                clear=MountAttribute.ATIME if no_atime else MountAttribute(0),
                propagation=_propagation(call),
                recursive=call.recursive,
            )
        kernel.move_mount(tree, place)


def _propagation(call: BindMount) -> MountFlag:
    # Of a recursive one too, or what is unmounted below it would go from the source as well.
    private = call.recursive or MountFlag.RDONLY in call.flags
    return MountFlag.PRIVATE if private else MountFlag(0)


def _attach_by_mount(kernel: Kernel, call: BindMount, source: int, place: int, target: str) -> None:
    flags = MountFlag.BIND | (MountFlag.REC if call.recursive else MountFlag(0))
    kernel.mount(mountplaces.name(source), mountplaces.name(place), None, flags, "")
    try:
        if attributes(call.flags & ~_NOT_ADDED) or call.recursive:
            _restrict(kernel, call, target)
    except OSError:
        kernel.unmount(target, UnmountFlag.DETACH | UnmountFlag.NOFOLLOW)
        raise


def _restrict(kernel: Kernel, call: BindMount, target: str) -> None:
    """Remount every mount of the tree: a remount says all flags, not only the new ones."""
    for entry in _tree(kernel.mounts(), target):
        with mountplaces.place(kernel, entry.mount_point) as fd:
            if propagation := _propagation(call):
                kernel.mount(None, mountplaces.name(fd), None, propagation, "")
            flags = _stated(entry) | (call.flags & ~_NOT_ADDED)
            flags &= ~MountFlag.RELATIME if MountFlag.NOATIME in flags else ~MountFlag(0)
            remount = MountFlag.REMOUNT | MountFlag.BIND
            kernel.mount(None, mountplaces.name(fd), None, remount | _of_mount(flags), "")


def _tree(mounts: tuple[MountEntry, ...], target: str) -> list[MountEntry]:
    """The topmost mount on `target` and what is mounted below it; parents come first."""
    top = next(entry for entry in reversed(mounts) if entry.mount_point == target)
    found = {top.mount_id: top}
    for entry in mounts:
        if entry.parent_id in found:
            found[entry.mount_id] = entry
    return list(found.values())


def _stated(entry: MountEntry) -> MountFlag:
    flags = MountFlag(0)
    for word in entry.options.split(","):
        flags |= _WORDS.get(word, MountFlag(0))
    return flags if flags & _ATIME else flags | MountFlag.STRICTATIME


def _of_mount(flags: MountFlag) -> MountFlag:
    kept = MountFlag.STRICTATIME
    for flag in _WORDS.values():
        kept |= flag
    return flags & kept
