"""Interfaces of a device that live in another network namespace than ours.

In our sysfs such an interface's directory is not there; the `net` directory of its
device stays, empty. So each other namespace is asked, by a sysfs of its own: the
interface has the same place in it.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from agent.linux import netns, procs, statx
from agent.linux.openat2 import open_in_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.linux.mounting import MountEntry
    from agent.linux.statx import FileFacts

_FUNCTION = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NET_NAMESPACE = re.compile(r"net:\[([0-9]+)\]")
_DEPTH = 8

MOST_NAMESPACES = 1024


class Place(NamedTuple):
    """Where a namespace can be opened: a link in proc, or a mount that a process sees."""

    process: procs.Process
    link: str
    mount_point: str = ""


class Away(NamedTuple):
    """An interface elsewhere; `path` is its directory below /sys, in that namespace."""

    namespace: str
    path: str
    process: procs.Process


class Places:
    """Where namespaces can be opened, by inode number; `found` may hold some of other kinds."""

    def __init__(self, proc: str, people: list[procs.Process]) -> None:
        self.found: dict[int, Place] = {}
        self.device = _namespace_device(proc)
        for process in people:
            self._note(
                procs.namespace(process, "net"), Place(process, f"{process.directory}/ns/net")
            )

    def note_file(self, file: procs.OpenFile, facts: FileFacts) -> None:
        """Anything that somebody has open: a namespace without a process may be kept by it."""
        if facts.device == self.device:
            self.found.setdefault(facts.inode, Place(file.process, file.link))

    def note_mounts(self, process: procs.Process, entries: tuple[MountEntry, ...]) -> None:
        """The same of mounts, as `ip netns add` makes them."""
        for entry in entries:
            if entry.fs_type == "nsfs":
                self._note(
                    entry.root, Place(process, f"{process.directory}/root", entry.mount_point)
                )

    def _note(self, name: str | None, place: Place) -> None:
        match = _NET_NAMESPACE.fullmatch(name or "")
        if match:
            self.found.setdefault(int(match[1]), place)


def interfaces_elsewhere(sys: str, proc: str, device: str, places: Places) -> Iterator[Away]:
    """Interfaces of the device at `device` (a directory of sysfs) in other namespaces."""
    folders = [os.path.relpath(path, sys) for path in _net_directories(device, _DEPTH)]
    if not folders:
        return
    own = _facts(f"{proc}/thread-self/ns/net")
    others = [inode for inode in places.found if own is None or inode != own.inode]
    for inode in others[:MOST_NAMESPACES]:
        # It may be of another kind, or gone by now: its interfaces are then back with us.
        with contextlib.suppress(OSError):
            yield from _look_into(proc, inode, places, folders)


def _net_directories(directory: str, depth: int) -> Iterator[str]:
    """The `net` directories of a device and of what is below it, but not of other functions."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for name in sorted(names):
        if name == "net":
            yield f"{directory}/{name}"
        elif depth and not _FUNCTION.fullmatch(name):
            yield from _net_directories(f"{directory}/{name}", depth - 1)


def _namespace_device(proc: str) -> tuple[int, int] | None:
    """The number of the file system that all namespaces are files of."""
    own = _facts(f"{proc}/thread-self/ns/net")
    return None if own is None else own.device


def _look_into(proc: str, inode: int, places: Places, folders: list[str]) -> Iterator[Away]:
    place = places.found[inode]
    identity = (places.device, inode)
    with _opened(proc, identity, place) as namespace, netns.sysfs(namespace) as root:
        for folder in folders:
            for interface in _listed(root, folder):
                path = procs.clean(f"/{folder}/{interface}")
                yield Away(f"net:[{inode}]", path, place.process)


@contextlib.contextmanager
def _opened(proc: str, identity: tuple[tuple[int, int] | None, int], place: Place) -> Iterator[int]:
    """The namespace with that device and inode; OSError where something else is by now.

    Anybody can put another file into the same place meanwhile: nothing is opened for
    reading before it has shown to be the namespace.
    """
    with contextlib.ExitStack() as stack:
        found = os.open(place.link, os.O_PATH | os.O_CLOEXEC)
        stack.callback(os.close, found)
        if place.mount_point:
            found = open_in_root(found, place.mount_point, os.O_PATH)
            stack.callback(os.close, found)
        link = f"{proc}/self/fd/{found}"
        facts = statx.facts(link)
        if (facts.device, facts.inode) != identity:
            raise FileNotFoundError(f"the namespace is not at {place} any more")
        namespace = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, namespace)
        yield namespace


def _listed(root: int, folder: str) -> list[str]:
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    except OSError:
        return []
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - of a descriptor
    finally:
        os.close(directory)


def _facts(link: str) -> FileFacts | None:
    try:
        return statx.facts(link)
    except OSError:
        return None
