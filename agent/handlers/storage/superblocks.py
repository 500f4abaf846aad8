"""Where storages are in the kernel's table of mounts, and which disk is below.

A superblock is what gets frozen, grown or turned read-only; mountinfo's `major:minor`
names it, also where a file system on a disk has a number of its own (btrfs).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Reason, wrong_state
from agent.linux.mounting import MountEntry, parse_mountinfo
from agent.linux.pseudo import read_text

if TYPE_CHECKING:
    from agent.core.roots import Roots
    from agent.core.tree import SysfsTree
    from agent.handlers.storage.records import StorageRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A block device: its name in the kernel, and its directory in sysfs."""

    name: str
    directory: Path


class MountTable:
    """The mounts as they are now; asking touches no file system."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def find(self, record: StorageRecord) -> MountEntry | None:
        """The storage's mount; None when it is gone, or another one lies over it."""
        entry = self._top(self._entries(), record.point.path)
        return entry if entry and entry.mount_id == record.mount_id else None

    def get(self, record: StorageRecord) -> MountEntry:
        """Like `find`; raises WRONG_STATE when it is gone."""
        entry = self.find(record)
        if entry is None:
            raise gone(record)
        return entry

    def reaching(self, device: tuple[int, int]) -> tuple[MountEntry, ...]:
        """Mounts of a superblock that can be reached by their path, the oldest first."""
        entries = self._entries()
        return tuple(
            entry
            for entry in entries
            if entry.device == device and self._top(entries, entry.mount_point) == entry
        )

    def own(self) -> dict[tuple[int, int], str]:
        """The superblocks that the agent itself writes to or runs from, with a path in each."""
        entries = self._entries()
        found: dict[tuple[int, int], str] = {}
        for path in (self._roots.state, self._roots.run, Path("/")):
            places = [str(place) for place in (path, *path.parents)]
            tops = (self._top(entries, place) for place in places)
            if (entry := next((top for top in tops if top), None)) is not None:
                found[entry.device] = str(path)
        return found

    def _entries(self) -> tuple[MountEntry, ...]:
        return parse_mountinfo(read_text(self._roots.proc / "self/mountinfo"))

    @staticmethod
    def _top(entries: tuple[MountEntry, ...], path: str) -> MountEntry | None:
        return next((entry for entry in reversed(entries) if entry.mount_point == path), None)


def disk_of(tree: SysfsTree, entry: MountEntry) -> Disk | None:
    """The block device that a file system is on; None for one that is on none."""
    major, minor = entry.device
    if not major:
        # An anonymous number: the source is a node, or this is no file system on a disk.
        node = tree.real(Path(entry.source)) if entry.source.startswith("/") else None
        numbers = tree.node_numbers(node) if node else None
        if numbers is None or numbers.type != "b":
            return None
        major, minor = numbers.major, numbers.minor
    directory = tree.real(tree.roots.sys / "dev/block" / f"{major}:{minor}")
    return Disk(name=directory.name, directory=directory) if directory else None


def gone(record: StorageRecord) -> AgentError:
    """The refusal for a storage that is not mounted any more."""
    storage_id = record.storage.request.id
    return wrong_state(
        f"storage {storage_id} is not mounted on {record.point.path} any more: "
        "someone unmounted it, or mounted over it",
        reason=Reason.WRONG_STATE,
        hint="detach it, then attach it again",
        id=storage_id,
    )
