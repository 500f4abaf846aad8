"""Storages.Resize: a file system grows to the size that its disk has got.

The host has made the disk bigger. virtio disks tell that by themselves (the event of
the new size may still be on its way), SCSI and NVMe disks are asked to look.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from agent.core.errors import AgentError, Reason, kernel_refused, wrong_state
from agent.core.fileops import Growth
from agent.handlers.storage.superblocks import Disk, disk_of
from agent.linux.fsctl import GROWING

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.deadlines import Deadline
    from agent.core.hotplug import HotplugBoard, Watch
    from agent.linux.fsctl import Grown
    from agent.linux.mounting import MountEntry

PATIENCE: Final = 2.0
"""Seconds that the news of a disk's new size may take when the disk seems to be as before."""

_SECTOR: Final = 512
_SMALLEST_BTRFS: Final = 256 << 20  # btrfs_ioctl_resize

# Below the `device` of a disk, by the subsystem of that: SCSI asks the disk for its size
# (scsi_sysfs.c), an NVMe controller all its namespaces (nvme's sysfs.c).
_LOOKS: Final = {
    "scsi": "rescan",
    "nvme": "rescan_controller",
    "nvme-subsystem": "nvme*/rescan_controller",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedStorage:
    """Bytes of the file system before and now, as statfs counts them, and of its disk."""

    before: int
    size: int
    device_size: int


class GrowCalls(Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def grow(self, wish: Growth, deadline: Deadline) -> Grown: ...


class Growing:
    """Grows file systems."""

    def __init__(self, *, files: GrowCalls, board: HotplugBoard, patience: float) -> None:
        self._files = files
        self._board = board
        self._tree = board.tree
        self._patience = patience

    async def run(self, entry: MountEntry, deadline: Deadline) -> ResizedStorage:
        """Raises RESIZE_REFUSED; a file system that is as big as its disk stays as it is."""
        disk = self._disk(entry)
        with self._board.watch((self._tree.devpath(disk.directory),)) as watch:
            await self._look(disk, deadline)
            size = self._size(disk)
            grown = await self._grow(entry, disk, size, deadline)
            if grown["size"] == grown["before"]:
                _refuse_fixed(entry, disk)
                before, size = size, await self._news(disk, size, watch, deadline)
                if size != before:
                    grown = await self._grow(entry, disk, size, deadline)
        return ResizedStorage(before=grown["before"], size=grown["size"], device_size=size)

    def _disk(self, entry: MountEntry) -> Disk:
        if entry.fs_type not in GROWING:
            known = ", ".join(sorted(GROWING))
            raise _refused(entry, f"{entry.fs_type} can't grow: {known} can")
        if "ro" in (*entry.options.split(","), *entry.super_options.split(",")):
            raise _refused(entry, "it is mounted read-only")
        disk = disk_of(self._tree, entry)
        if disk is None:
            raise _refused(entry, f"{entry.source} is no block device of this guest")
        return disk

    async def _look(self, disk: Disk, deadline: Deadline) -> None:
        """Have the driver ask its hardware for the size; most tell it by themselves."""
        for path in self._orders(disk):
            try:
                await self._board.write(path, "1\n", deadline)
            except OSError as error:
                doing = f"ask for the size of {disk.name}"
                raise kernel_refused(error, doing=doing, reason=Reason.RESIZE_REFUSED) from error

    def _orders(self, disk: Disk) -> list[Path]:
        device = disk.directory / "device"
        subsystem = self._tree.link_name(device / "subsystem")
        pattern = _LOOKS.get(subsystem or "")
        return sorted(device.glob(pattern)) if pattern else []

    async def _news(self, disk: Disk, known: int, watch: Watch, deadline: Deadline) -> int:
        """The disk's size once it is another one, or when the patience is at its end."""
        until = deadline.earlier(self._patience)
        while True:
            watch.reset()
            size = self._size(disk)
            if size != known or not await watch.news(until):
                return size

    async def _grow(
        self, entry: MountEntry, disk: Disk, device_size: int, deadline: Deadline
    ) -> Grown:
        wish = Growth(
            path=entry.mount_point,
            mount_id=entry.mount_id,
            fs_type=entry.fs_type,
            device_size=device_size,
        )
        try:
            return await self._files.grow(wish, deadline)
        except OSError as error:
            raise kernel_refused(
                error,
                doing=f"grow the {entry.fs_type} on {entry.mount_point} to the {device_size} bytes "
                f"of {disk.name}",
                reason=Reason.RESIZE_REFUSED,
                hint=self._hint(entry, disk, device_size),
            ) from error

    def _hint(self, entry: MountEntry, disk: Disk, device_size: int) -> str | None:
        if entry.fs_type == "btrfs" and device_size < _SMALLEST_BTRFS:
            return f"btrfs takes no new size below {_SMALLEST_BTRFS} bytes"
        # The errno alone says little: the file systems tell the reason there.
        lines = self._tree.log.lines((disk.name,))
        return f"the kernel's log: {lines[-1]}" if lines else None

    def _size(self, disk: Disk) -> int:
        return int(self._tree.text(disk.directory / "size") or 0) * _SECTOR


def _refuse_fixed(entry: MountEntry, disk: Disk) -> None:
    """For a file system that fills what does not grow with the disk below it."""
    if (disk.directory / "partition").exists():
        raise _refused(
            entry,
            f"it is on the partition {disk.name}, which does not grow with its disk",
            hint="make the partition bigger in the disk's table, then attach it again",
        )
    if (disk.directory / "dm").is_dir():
        raise _refused(
            entry,
            f"it is on the mapped device {disk.name}, which keeps the size it was made with",
            hint="detach the storage and attach it again, then resize it",
        )


def _refused(entry: MountEntry, why: str, hint: str | None = None) -> AgentError:
    return wrong_state(
        f"the file system on {entry.mount_point} can't be resized: {why}",
        reason=Reason.RESIZE_REFUSED,
        hint=hint,
        mount_point=entry.mount_point,
        fs_type=entry.fs_type,
    )
