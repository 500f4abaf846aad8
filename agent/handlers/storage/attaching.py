"""One attachment, step by step; a step that fails takes back those before it.

reserve the mount point      refused when another storage has it, or it lies in one
hold devices and bases       bases are the storages that it builds on
write the intent             from here on a crash leaves nothing unknown
prepare                      the class makes its pieces, each written down before
mount, fs_group              proved by mountinfo
enter                        filled, saved, in the table
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, already_exists, exhausted, kernel_refused
from agent.core.model import FsGroupPolicy, MountedStorage
from agent.core.undo import UndoStack
from agent.handlers.storage.job import Job, Ledger
from agent.handlers.storage.mountpoints import MountPoint, choose_mount_point, refuse_nested
from agent.handlers.storage.records import Phase, StorageRecord
from agent.handlers.storage.taking import take_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.core.model import StorageRequest
    from agent.handlers.storage.base import StorageClass, Tools
    from agent.handlers.storage.leftovers import Leftovers
    from agent.handlers.storage.mounter import Mounter
    from agent.handlers.storage.pieces import Piece
    from agent.linux.mounting import MountEntry

log = logging.getLogger(__name__)

STORAGE_LIMIT = 1024
"""Storages in the table."""

# Taking a piece back is not the request's time any more.
_UNDO_SECONDS = 10.0


class Host(Protocol):
    """What is needed of the manager."""

    @property
    def points(self) -> dict[str, str]: ...
    def full(self, limit: int) -> bool: ...
    async def base(self, storage_id: str, builder: str, deadline: Deadline) -> str: ...
    def unbuild(self, builder: str) -> None: ...
    async def enter(self, record: StorageRecord, deadline: Deadline) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attaching:
    """`order` counts attachments; `save` and `forget` write and drop the record."""

    tools: Tools
    mounter: Mounter
    storage_class: StorageClass[Any]
    order: int
    save: Callable[[StorageRecord], None]
    forget: Callable[[], None]
    leftovers: Leftovers
    host: Host
    default_timeout: float

    async def run(self, request: StorageRequest) -> StorageRecord:
        """The record of the mounted storage, which is in the table by then."""
        if self.host.full(STORAGE_LIMIT):
            raise exhausted(f"{STORAGE_LIMIT} storages are attached", reason=Reason.LIMIT_REACHED)
        deadline = Deadline.of_request(request.timeout, self.default_timeout)
        async with UndoStack(f"attach storage {request.id}") as undo:
            await self.leftovers.clear(request.id, deadline)
            point = self._reserve(request, undo)
            locations = await self._hold(request, deadline, undo)
            intent = _Intent(self._write_intent(request, point, undo), self.save)
            job = self._job(request, deadline, undo, intent, locations)
            entry = await self._mount(job, point)
            await self._own(job, point)
            record = _mounted(intent.record, entry)
            await self.host.enter(record, deadline)
            undo.commit()
        return record

    def _reserve(self, request: StorageRequest, undo: UndoStack) -> MountPoint:
        points = self.host.points
        point = choose_mount_point(self.tools.roots, request.id, request.mount_point)
        other = points.get(point.path)
        if other is not None:
            raise already_exists(
                f"the mount point {point.path} belongs to storage {other}",
                reason=Reason.MOUNT_POINT_IN_USE,
                mount_point=point.path,
                id=other,
            )
        refuse_nested(self.tools.roots, point, points)
        points[point.path] = request.id
        undo.push("free the mount point", lambda: points.pop(point.path))
        return point

    async def _hold(
        self, request: StorageRequest, deadline: Deadline, undo: UndoStack
    ) -> dict[str, str]:
        """Devices and bases; returns the mount points of these."""
        devices, user = self.tools.devices, f"storage {request.id}"
        for device in self.storage_class.devices(request.source):
            devices.hold(device, user)
            undo.push(f"release device {device}", partial(devices.release, device, user))
        undo.push("release what it builds on", lambda: self.host.unbuild(request.id))
        bases = self.storage_class.storages(request.source)
        return {base: await self.host.base(base, request.id, deadline) for base in bases}

    def _write_intent(
        self, request: StorageRequest, point: MountPoint, undo: UndoStack
    ) -> StorageRecord:
        record = StorageRecord(
            storage=MountedStorage(request=request, mount_point=point.path),
            point=point,
            phase=Phase.MOUNTING,
            order=self.order,
        )
        self.save(record)
        undo.push("forget it", lambda: self._forget(record, undo))
        return record

    def _forget(self, record: StorageRecord, undo: UndoStack) -> None:
        """A mount that could not be taken back stays written down, as pieces do in `leftovers`."""
        if undo.failures:
            self.save(record)
        else:
            self.forget()

    def _job(
        self,
        request: StorageRequest,
        deadline: Deadline,
        undo: UndoStack,
        intent: _Intent,
        locations: dict[str, str],
    ) -> Job[Any]:
        async def give_back(piece: Piece) -> None:
            try:
                await take_back(self.tools, piece, Deadline.after(_UNDO_SECONDS))
            except (AgentError, OSError):
                self.leftovers.keep(request.id, [piece])
                raise

        return Job(
            request=request,
            source=request.source,
            deadline=deadline,
            tools=self.tools,
            undo=undo,
            ledger=Ledger(note=intent.note, take_back=give_back),
            locations=locations,
        )

    async def _mount(self, job: Job[Any], point: MountPoint) -> MountEntry:
        plan = await self.storage_class.prepare(job)
        await self.mounter.make_point(point, plan, job.deadline, job.undo)
        return await self.mounter.mount(plan, point, job.deadline, job.undo)

    async def _own(self, job: Job[Any], point: MountPoint) -> None:
        group = job.request.fs_group
        if group is None:
            return
        try:
            await self.tools.files.apply_fs_group(
                point.path,
                group.gid,
                job.deadline,
                read_only=job.request.read_only,
                on_mismatch_only=group.policy is FsGroupPolicy.ON_ROOT_MISMATCH,
            )
        except OSError as error:
            if error.errno == errno.EROFS and job.request.read_only:
                # Nobody can write there anyhow; whether the group can read is the image's matter.
                log.warning("%s stays as it is: it is read-only", point.path)
                return
            doing = f"give {point.path} to the group {group.gid}"
            raise kernel_refused(error, doing=doing, reason=Reason.MOUNT_REFUSED) from error


class _Intent:
    """The record of an attachment under way, saved at each change."""

    def __init__(self, record: StorageRecord, save: Callable[[StorageRecord], None]) -> None:
        self.record = record
        self._save = save

    def note(self, piece: Piece) -> None:
        self.record = replace(self.record, pieces=(*self.record.pieces, piece))
        self._save(self.record)


def _mounted(record: StorageRecord, entry: MountEntry) -> StorageRecord:
    return replace(
        record,
        storage=replace(record.storage, fs_type=entry.fs_type, origin=entry.source),
        phase=Phase.MOUNTED,
        mount_id=entry.mount_id,
        pieces=tuple(piece for piece in record.pieces if piece.lasts),
    )
