"""What can be done to a storage while it is mounted: look, grow, trim, freeze, thaw.

Whatever touches its file system runs in a worker with a deadline, and no second call is
made on a file system that has not let go of an earlier one.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final, Protocol

from agent.core.deadlines import Deadline
from agent.core.errors import (
    AgentError,
    Reason,
    invalid,
    kernel_refused,
    timed_out,
    wrong_state,
)
from agent.core.inflight import InFlight
from agent.handlers.storage.freezes import FreezeCalls, Freezes
from agent.handlers.storage.growing import PATIENCE, GrowCalls, Growing, ResizedStorage
from agent.handlers.storage.health import Health, StorageStats, answered, turned_read_only
from agent.handlers.storage.superblocks import MountTable, disk_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from agent.core.fileops import FileSystemSize
    from agent.core.hotplug import HotplugBoard
    from agent.core.model import StorageRequest
    from agent.handlers.storage.records import StorageRecord
    from agent.linux.kmsg import KernelRecord
    from agent.linux.mounting import MountEntry

log = logging.getLogger(__name__)

FREEZE_SECONDS: Final = 30.0
"""How long a freeze lasts when nothing else was asked for."""

FREEZE_LIMIT: Final = 300.0
"""The longest freeze in seconds: workloads that write wait for its end."""


class Storages(Protocol):
    """What is needed of the manager."""

    def record(self, storage_id: str) -> StorageRecord: ...
    def using(self, storage_id: str, who: str) -> AbstractContextManager[None]: ...


class FileCalls(FreezeCalls, GrowCalls, Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def statfs(self, path: str, deadline: Deadline) -> FileSystemSize: ...
    async def trim(self, path: str, mount_id: int, deadline: Deadline) -> int: ...


class Records(Protocol):
    """What is needed of `core.kernel_log.KernelLog`."""

    def records(self, *devices: str) -> tuple[KernelRecord, ...]: ...


class StorageOperations:
    """The operations, by storage id. All raise UNKNOWN_STORAGE."""

    def __init__(
        self,
        *,
        storages: Storages,
        files: FileCalls,
        board: HotplugBoard,
        freezes: Freezes,
        log: Records,
        patience: float = PATIENCE,
    ) -> None:
        self._storages = storages
        self._files = files
        self._tree = board.tree
        self._mounts = MountTable(board.tree.roots)
        self._freezes = freezes
        self._log = log
        self._growing = Growing(files=files, board=board, patience=patience)
        self._looking: InFlight[None, StorageStats] = InFlight("storage")
        self._resizing: InFlight[None, ResizedStorage] = InFlight("storage")
        self._trimming: InFlight[None, int] = InFlight("storage")

    async def restore(self) -> None:
        """Take over the freezes of an earlier agent; after the storages' own `restore`."""
        self._freezes.restore()

    async def close(self) -> None:
        await self._freezes.close()

    async def stats(self, storage_id: str, deadline: Deadline) -> StorageStats:
        """Space and health; a file system that does not answer is STALLED, not an error."""
        record = self._storages.record(storage_id)
        return await self._looking.run(storage_id, None, lambda: self._stats(record, deadline))

    async def resize(self, storage_id: str, deadline: Deadline) -> ResizedStorage:
        """Grow the file system to its disk's size. Raises RESIZE_REFUSED, OPERATION_TIMED_OUT."""
        self._storages.record(storage_id)

        async def work() -> ResizedStorage:
            with self._storages.using(storage_id, "Storages.Resize"):
                entry = await self._writable(storage_id, deadline)
                return await self._growing.run(entry, deadline)

        return await self._resizing.run(storage_id, None, work)

    async def trim(self, storage_id: str, deadline: Deadline) -> int:
        """Bytes given back to the host. Raises KERNEL_REFUSED, OPERATION_TIMED_OUT."""
        self._storages.record(storage_id)

        async def work() -> int:
            with self._storages.using(storage_id, "Storages.Trim"):
                return await self._trim(await self._writable(storage_id, deadline), deadline)

        return await self._trimming.run(storage_id, None, work)

    async def freeze(self, storage_id: str, seconds: float | None, deadline: Deadline) -> None:
        """Stop writes for so many seconds from now; again is longer, or shorter.

        Raises BAD_FIELD for more than FREEZE_LIMIT, WRONG_STATE for a file system that the
        agent itself needs or that somebody else has frozen, KERNEL_REFUSED for one that
        can't be, OPERATION_TIMED_OUT when it does not answer: then it is thawed again.
        """
        wanted = FREEZE_SECONDS if seconds is None else seconds
        if not 0 < wanted <= FREEZE_LIMIT:
            raise invalid(
                f"a freeze of {wanted} s is not above 0 and at most {FREEZE_LIMIT:.0f} s",
                field="timeout_seconds",
            )
        entry = self._mounts.get(self._storages.record(storage_id))
        self._refuse_own(storage_id, entry)
        await self._free(entry, deadline)
        await self._freezes.freeze(
            storage_id,
            entry,
            wanted,
            deadline,
            lambda: self._storages.using(storage_id, "Storages.Freeze"),
        )

    async def thaw(self, storage_id: str, deadline: Deadline) -> None:
        """End a freeze, whoever made it; fine when there is none."""
        entry = self._mounts.find(self._storages.record(storage_id))
        await self._freezes.thaw(storage_id, entry, deadline)

    async def before_unmount(self, storage_id: str, deadline: Deadline) -> None:
        """For the manager: a frozen file system that is unmounted stays frozen, out of reach."""
        if not self._freezes.holds(storage_id):
            return
        try:
            await self._freezes.thaw(storage_id, None, Deadline.after(deadline.left() / 2))
        except AgentError as error:
            if error.reason is not Reason.OPERATION_TIMED_OUT:
                raise
            # It does not answer, and is detached lazily. What thaws it in time goes on.
            log.warning(
                "storage %s may be frozen, and is detached all the same: %s", storage_id, error
            )

    def frozen(self, storage_id: str) -> bool:
        """Whether the storage's file system is frozen now, by itself or by one that shares it."""
        if self._freezes.holds(storage_id):
            return True
        devices = self._freezes.devices
        if not devices:
            return False
        entry = self._mounts.find(self._storages.record(storage_id))
        return entry is not None and entry.device in devices

    async def _stats(self, record: StorageRecord, deadline: Deadline) -> StorageStats:
        entry = self._mounts.find(record)
        if entry is None:
            return StorageStats(health=Health.LOST, detail=_lost(record))
        if not await self._files.settled(entry.mount_point, 0):
            return _stalled("an earlier call on it has not come back from the kernel")
        try:
            size = await self._files.statfs(entry.mount_point, deadline)
        except OSError as error:
            return _stalled(f"statfs: {error.strerror} [{errno.errorcode.get(error.errno or 0)}]")
        except AgentError as error:
            if error.reason is not Reason.OPERATION_TIMED_OUT:
                raise
            return _stalled(error.message)
        why = self._turned_read_only(record.storage.request, entry)
        return answered(size, Health.READ_ONLY if why else Health.GOOD, why or "")

    def _turned_read_only(self, request: StorageRequest, entry: MountEntry) -> str | None:
        disk = disk_of(self._tree, entry)
        if disk is None and entry.source.startswith("/dev/"):
            # Reads may still be answered from memory; the kernel's words were about its name.
            return f"its disk {entry.source} is gone"
        records = self._log.records(disk.name) if disk else ()
        return turned_read_only(request, entry, records)

    async def _trim(self, entry: MountEntry, deadline: Deadline) -> int:
        try:
            return await self._files.trim(entry.mount_point, entry.mount_id, deadline)
        except OSError as error:
            raise kernel_refused(
                error,
                doing=f"trim the {entry.fs_type} on {entry.mount_point}",
                hint=_TRIM_HINTS.get(error.errno or 0),
            ) from error

    async def _writable(self, storage_id: str, deadline: Deadline) -> MountEntry:
        """The mount, which a call that writes may be made on now."""
        entry = self._mounts.get(self._storages.record(storage_id))
        if self.frozen(storage_id):
            raise wrong_state(
                f"storage {storage_id} is frozen", hint="thaw it first", id=storage_id
            )
        await self._free(entry, deadline)
        return entry

    async def _free(self, entry: MountEntry, deadline: Deadline) -> None:
        """Wait until no earlier call on the mount point is left in the kernel."""
        if not await self._files.settled(entry.mount_point, deadline.left()):
            raise timed_out(
                f"an earlier call on {entry.mount_point} has not come back from the kernel",
                object=entry.mount_point,
            )

    def _refuse_own(self, storage_id: str, entry: MountEntry) -> None:
        own = self._mounts.own().get(entry.device)
        if own is not None:
            raise wrong_state(
                f"storage {storage_id} is on the file system that also has {own}: "
                "frozen, the agent could not thaw it again",
                id=storage_id,
            )


_TRIM_HINTS: Final = {
    errno.EOPNOTSUPP: "the disk takes no discards: the host has to offer them (discard=unmap)",
    errno.ENOTTY: "this file system has nothing to trim",
    errno.EROFS: "it is mounted read-only",
}


def _stalled(why: str) -> StorageStats:
    return StorageStats(health=Health.STALLED, detail=why)


def _lost(record: StorageRecord) -> str:
    return f"{record.point.path} was unmounted by someone else, or something lies over it"
