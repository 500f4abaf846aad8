"""The table of storages: attach, count users, detach, and what survives a restart.

A storage enters the table once it is mounted, proved by mountinfo and saved. Its
users are containers; while it has one it is not unmounted. Whatever fails on the
way in is taken back, newest first, so that the request can simply be repeated.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent.core.deadlines import Deadline
from agent.core.errors import (
    AgentError,
    Reason,
    already_exists,
    exhausted,
    invalid,
    not_found,
    wrong_state,
)
from agent.core.inflight import InFlight
from agent.core.model import MountedStorage, StorageRequest
from agent.core.names import check_id
from agent.core.undo import UndoStack
from agent.handlers.storage import CLASSES
from agent.handlers.storage.base import StorageClass, StorageContext
from agent.handlers.storage.mounter import FileCalls, Mounter
from agent.handlers.storage.mountpoints import MountPoint, choose_mount_point, refuse_nested
from agent.handlers.storage.records import Phase, StorageRecord, from_data, to_data

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from agent.core.events import EventLog
    from agent.core.hotplug import HotplugBoard
    from agent.core.state import StateStore
    from agent.handlers.devices.manager import DeviceManager

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 10.0

STORAGE_LIMIT = 1024
"""Storages in the table."""

_KIND = "storages"


class StorageManager:
    """The storages of the sandbox, by id."""

    def __init__(
        self,
        *,
        devices: DeviceManager,
        board: HotplugBoard,
        files: FileCalls,
        state: StateStore,
        events: EventLog,
        default_timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self._roots = board.tree.roots
        self._context = StorageContext(devices=devices, roots=self._roots)
        self._mounter = Mounter(files=files, board=board, roots=self._roots)
        self._state = state
        self._events = events
        self._default_timeout = default_timeout
        self._classes = _by_source(CLASSES)
        self._table: dict[str, StorageRecord] = {}
        # Mount points in use or about to be, with the id of their storage.
        self._points: dict[str, str] = {}
        self._order = 0
        self._leaving: set[str] = set()
        self._attaching: InFlight[StorageRequest, MountedStorage] = InFlight("storage")
        self._detaching: InFlight[None, None] = InFlight("storage")

    def get(self, storage_id: str) -> MountedStorage:
        """Raises UNKNOWN_STORAGE."""
        return self._record(storage_id).storage

    def list(self) -> tuple[MountedStorage, ...]:
        """All storages in the order of their attachment."""
        return tuple(record.storage for record in self._table.values())

    async def attach(self, request: StorageRequest) -> MountedStorage:
        """Mount the storage and enter it in the table.

        The same request again gives the same answer. Raises ID_IN_USE,
        MOUNT_POINT_IN_USE, UNKNOWN_DEVICE, MOUNT_REFUSED, OPERATION_TIMED_OUT; after an
        error nothing is left of the request.
        """
        check_id("storage", request.id)
        known = self._table.get(request.id)
        if known is not None:
            return self._repeated(known, request)
        return await self._attaching.run(request.id, request, lambda: self._attach(request))

    async def detach(self, storage_id: str, timeout: float | None = None) -> None:
        """Unmount the storage and forget it.

        Raises STILL_IN_USE naming its containers, UNMOUNT_REFUSED naming who holds it,
        OPERATION_TIMED_OUT; it is still in the table then, and can be detached again.
        """
        deadline = Deadline.of_request(timeout, self._default_timeout)
        self._record(storage_id)
        await self._detaching.run(storage_id, None, lambda: self._detach(storage_id, deadline))

    async def detach_all(self, timeout: float | None = None) -> tuple[tuple[str, AgentError], ...]:
        """Detach every storage, the newest first; returns those that stay, and why."""
        left: list[tuple[str, AgentError]] = []
        for storage_id in reversed(list(self._table)):
            try:
                await self.detach(storage_id, timeout)
            except AgentError as error:
                log.warning("storage %s stays: %s", storage_id, error)
                left.append((storage_id, error))
        return tuple(left)

    def acquire(self, storage_id: str, container_id: str) -> MountedStorage:
        """Count the container as a user; a container that has it already counts once.

        Raises UNKNOWN_STORAGE, WRONG_STATE while the storage is being detached.
        """
        record = self._record(storage_id)
        if storage_id in self._leaving:
            raise wrong_state(f"storage {storage_id} is being detached", id=storage_id)
        return self._set_users(record, record.storage.users | {container_id})

    def release(self, storage_id: str, container_id: str) -> None:
        """Take the container out of the count; fine when it is not in it."""
        record = self._table.get(storage_id)
        if record is not None and container_id in record.storage.users:
            self._set_users(record, record.storage.users - {container_id})

    def keep_users(self, containers: Collection[str]) -> None:
        """After a restart: drop users that no restored container stands for."""
        for record in list(self._table.values()):
            kept = record.storage.users & frozenset(containers)
            if kept != record.storage.users:
                self._set_users(record, kept)

    async def restore(self) -> None:
        """Take over what an earlier agent saved; after the devices' own `restore`.

        Mounts that are gone are dropped with an event; what a mount that was under way
        left behind is taken back.
        """
        records = [self._read(key, data) for key, data in self._state.load_all(_KIND).items()]
        for record in sorted((r for r in records if r), key=lambda record: record.order):
            self._order = max(self._order, record.order)
            if record.phase is Phase.MOUNTING:
                await self._sweep(record)
            elif self._is_mounted(record):
                self._take_over(record)
            else:
                self._drop(record)

    async def close(self) -> None:
        """Stop what is still waited for."""
        await self._mounter.close()

    async def _attach(self, request: StorageRequest) -> MountedStorage:
        storage_class = self._class_of(request)
        if len(self._table) >= STORAGE_LIMIT:
            raise exhausted(f"{STORAGE_LIMIT} storages are attached", reason=Reason.LIMIT_REACHED)
        deadline = Deadline.of_request(request.timeout, self._default_timeout)
        async with UndoStack(f"attach storage {request.id}") as undo:
            point = self._reserve(request, undo)
            storage_class.hold(self._context, request, request.source)
            undo.push(
                "release what it holds",
                lambda: storage_class.release(self._context, request, request.source),
            )
            plan = storage_class.plan(self._context, request, request.source)
            record = self._write_intent(request, point, undo)
            await self._mounter.make_point(point, deadline, undo)
            entry = await self._mounter.mount(plan, point, deadline, undo)
            record = replace(record, phase=Phase.MOUNTED, mount_id=entry.mount_id)
            self._save(record)
            self._table[request.id] = record
            undo.commit()
        self._events.publish("storage-attached", request.id, {"mount_point": point.path})
        return record.storage

    def _reserve(self, request: StorageRequest, undo: UndoStack) -> MountPoint:
        point = choose_mount_point(self._roots, request.id, request.mount_point)
        other = self._points.get(point.path)
        if other is not None:
            raise already_exists(
                f"the mount point {point.path} belongs to storage {other}",
                reason=Reason.MOUNT_POINT_IN_USE,
                mount_point=point.path,
                id=other,
            )
        refuse_nested(self._roots, point, self._points)
        self._points[point.path] = request.id
        undo.push("free the mount point", lambda: self._points.pop(point.path))
        return point

    def _write_intent(
        self, request: StorageRequest, point: MountPoint, undo: UndoStack
    ) -> StorageRecord:
        self._order += 1
        record = StorageRecord(
            storage=MountedStorage(request=request, mount_point=point.path),
            point=point,
            phase=Phase.MOUNTING,
            order=self._order,
        )
        self._save(record)
        undo.push("forget it", lambda: self._state.delete(_KIND, request.id))
        return record

    async def _detach(self, storage_id: str, deadline: Deadline) -> None:
        # From here to the mark no other task runs: a container comes before or is refused.
        record = self._record(storage_id)
        _refuse_used(record.storage)
        self._leaving.add(storage_id)
        try:
            await self._mounter.unmount(record.point, record.mount_id, deadline)
        finally:
            self._leaving.discard(storage_id)
        self._mounter.remove_point(record.point)
        self._forget(record)
        self._events.publish("storage-detached", storage_id, {"mount_point": record.point.path})

    def _forget(self, record: StorageRecord) -> None:
        request = record.storage.request
        self._table.pop(request.id, None)
        self._points.pop(record.point.path, None)
        self._class_of(request).release(self._context, request, request.source)
        self._state.delete(_KIND, request.id)

    def _take_over(self, record: StorageRecord) -> None:
        request = record.storage.request
        self._table[request.id] = record
        self._points[record.point.path] = request.id
        try:
            self._class_of(request).hold(self._context, request, request.source)
        except AgentError as error:
            # Its device went away under it; it is still mounted and must be detachable.
            log.warning("storage %s: %s", request.id, error)

    async def _sweep(self, record: StorageRecord) -> None:
        try:
            await self._mounter.take_off(record.point)
        except (AgentError, OSError) as error:
            log.warning("a mount that was under way stays on %s: %s", record.point.path, error)
        self._mounter.remove_point(record.point)
        self._state.delete(_KIND, record.storage.request.id)

    def _drop(self, record: StorageRecord) -> None:
        self._mounter.remove_point(record.point)
        self._state.delete(_KIND, record.storage.request.id)
        details = {"mount_point": record.point.path}
        self._events.publish("storage-lost", record.storage.request.id, details)

    def _is_mounted(self, record: StorageRecord) -> bool:
        entry = self._mounter.mounted_at(record.point.path)
        return entry is not None and entry.mount_id == record.mount_id

    def _read(self, key: str, data: dict[str, Any]) -> StorageRecord | None:
        try:
            return from_data(data)
        except (KeyError, TypeError, ValueError) as error:
            log.warning("the saved state of storage %s is of another shape: %r", key, error)
            self._state.delete(_KIND, key)
            return None

    def _class_of(self, request: StorageRequest) -> StorageClass[Any]:
        storage_class = self._classes.get(type(request.source))
        if storage_class is None:
            known = ", ".join(sorted(each.name for each in self._classes.values()))
            kind = type(request.source).__name__
            raise invalid(f"no storage class serves {kind}: known: {known}", field="source")
        return storage_class

    def _record(self, storage_id: str) -> StorageRecord:
        try:
            return self._table[storage_id]
        except KeyError:
            raise not_found(
                f"no storage {storage_id!r} is attached",
                reason=Reason.UNKNOWN_STORAGE,
                hint="Storages.List shows those that are",
                id=storage_id,
            ) from None

    def _set_users(self, record: StorageRecord, users: frozenset[str]) -> MountedStorage:
        changed = replace(record, storage=replace(record.storage, users=users))
        self._save(changed)
        self._table[record.storage.request.id] = changed
        return changed.storage

    def _save(self, record: StorageRecord) -> None:
        self._state.save(_KIND, record.storage.request.id, to_data(record))

    def _repeated(self, known: StorageRecord, request: StorageRequest) -> MountedStorage:
        if known.storage.request != request:
            raise already_exists(
                f"storage {request.id} is attached already, on {known.point.path}",
                reason=Reason.ID_IN_USE,
                hint="detach it first, or choose another id",
                id=request.id,
            )
        if request.id in self._leaving:
            raise wrong_state(f"storage {request.id} is being detached", id=request.id)
        if not self._is_mounted(known):
            raise wrong_state(
                f"storage {request.id} is not mounted any more: someone unmounted it",
                hint="detach it, then attach it again",
                id=request.id,
            )
        return known.storage


def _by_source(classes: Iterable[StorageClass[Any]]) -> dict[type, StorageClass[Any]]:
    table: dict[type, StorageClass[Any]] = {}
    for each in classes:
        if each.source in table:
            raise ValueError(f"two storage classes serve {each.source.__name__}")
        table[each.source] = each
    return table


def _refuse_used(storage: MountedStorage) -> None:
    if storage.users:
        users = ", ".join(sorted(storage.users))
        raise wrong_state(
            f"storage {storage.request.id} is still used by the containers {users}",
            reason=Reason.STILL_IN_USE,
            hint="remove them first",
            id=storage.request.id,
            users=users,
        )
