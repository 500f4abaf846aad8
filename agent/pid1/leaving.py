"""What is mounted at the end, and in which order it is written out and let go.

sync(2) asks every file system in turn, and one whose server is dead never
answers: the disks behind it would be lost with it. So each has its own turn:
first all disks are written, at once; then they are unmounted, what lies on top
first; file systems that somebody serves come last, and nobody relies on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.linux import mounting

if TYPE_CHECKING:
    from agent.linux.mounting import MountEntry

_NOTHING_TO_LOSE = {
    *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts"),
    *("devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore"),
    *("ramfs", "rootfs", "securityfs", "sysfs", "tmpfs", "tracefs"),
}
# The answers come from another machine, or from a process that was just killed.
_SERVED = {
    *("9p", "afs", "ceph", "cifs", "fuse", "fuseblk", "nfs", "nfs4", "smb3", "virtiofs"),
}
_STACKED = {"overlay"}


class Leaving(NamedTuple):
    """Mount points to write out, to unmount, and to detach.

    `disks` has one of each file system on a disk; all can be written at once.
    `waves` are unmounted one after the other, those in a wave at once; an entry
    is a mount point and the one of `disks` that has its file system (None for an
    overlay, which holds no data of its own). `served` may hang.
    """

    disks: tuple[str, ...]
    waves: tuple[tuple[tuple[str, str | None], ...], ...]
    served: tuple[str, ...]


def plan(text: str) -> Leaving:
    """The order for a mountinfo.

    File systems of the kernel and in memory have nothing to lose; neither has
    one that is mounted read-only, such as the guest's root.
    """
    entries = mounting.parse_mountinfo(text)
    chosen = [entry for entry in reversed(entries) if _may_lose(entry)]
    own = [entry for entry in chosen if not _is_served(entry)]
    disks: dict[tuple[int, int], str] = {}
    for entry in own:
        if entry.fs_type not in _STACKED:
            # The last mounted is the one that nothing covers.
            disks.setdefault(entry.device, entry.mount_point)
    return Leaving(
        disks=tuple(disks.values()),
        waves=_waves(own, _depths(entries), disks),
        served=tuple(entry.mount_point for entry in chosen if _is_served(entry)),
    )


def _may_lose(entry: MountEntry) -> bool:
    read_only = "ro" in entry.super_options.split(",")
    return entry.fs_type not in _NOTHING_TO_LOSE and not read_only


def _is_served(entry: MountEntry) -> bool:
    return entry.fs_type in _SERVED or entry.fs_type.startswith("fuse.")


def _depths(entries: tuple[MountEntry, ...]) -> dict[int, int]:
    """How many mounts each one lies on, by its id."""
    parents = {entry.mount_id: entry.parent_id for entry in entries}
    depths: dict[int, int] = {}
    for start in parents:
        depth, at, seen = 0, start, {start}
        while (at := parents[at]) in parents and at not in seen:
            seen.add(at)
            depth += 1
        depths[start] = depth
    return depths


def _waves(
    own: list[MountEntry], depths: dict[int, int], disks: dict[tuple[int, int], str]
) -> tuple[tuple[tuple[str, str | None], ...], ...]:
    """The deepest first; an overlay before the disks beside it, which it may build on."""
    waves: dict[tuple[int, bool], list[tuple[str, str | None]]] = {}
    for entry in own:
        key = (-depths[entry.mount_id], entry.fs_type not in _STACKED)
        waves.setdefault(key, []).append((entry.mount_point, disks.get(entry.device)))
    return tuple(tuple(waves[key]) for key in sorted(waves))
