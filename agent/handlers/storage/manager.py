"""The table of storages: attach, count users, detach, and what survives a restart.

A storage enters the table once it is mounted, proved by mountinfo and saved. While a
container, another storage or a visitor uses it, it is not unmounted. Whatever fails on
the way in is taken back, newest first, so that the request can simply be repeated.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, already_exists, invalid, not_found, wrong_state
from agent.core.inflight import InFlight
from agent.core.model import Detached, MountedStorage, StorageRequest
from agent.core.names import check_id
from agent.handlers.storage import CLASSES, claimed
from agent.handlers.storage.attaching import Attaching
from agent.handlers.storage.base import ServiceSetting, StorageClass, Tools
from agent.handlers.storage.classes import ClassTable
from agent.handlers.storage.graph import StorageGraph
from agent.handlers.storage.leftovers import Leftovers
from agent.handlers.storage.mounter import Mounter
from agent.handlers.storage.pieces import PieceKind
from agent.handlers.storage.records import Phase, StorageRecord, from_data, to_data
from agent.handlers.storage.services import Services
from agent.handlers.storage.taking import take_back_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from contextlib import AbstractContextManager

    from agent.core.events import EventLog
    from agent.core.fileops import FileWorkers
    from agent.core.hotplug import HotplugBoard
    from agent.core.state import StateStore
    from agent.handlers.devices.manager import DeviceManager

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 10.0

_KIND = "storages"
# What is taken back after the unmount is not the request's time any more.
_CLEAR_SECONDS = 10.0


class StorageManager:
    """The storages of the sandbox, by id."""

    def __init__(
        self,
        *,
        devices: DeviceManager,
        board: HotplugBoard,
        files: FileWorkers,
        state: StateStore,
        events: EventLog,
        default_timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self._tools = Tools(devices=devices, roots=board.tree.roots, files=files, board=board)
        self._mounter = Mounter(files=files, board=board, roots=self._tools.roots)
        self._state = state
        self._events = events
        self._default_timeout = default_timeout
        self._classes = ClassTable(CLASSES)
        self._services = Services()
        self._leftovers = Leftovers(self._tools, state)
        self._table: dict[str, StorageRecord] = {}
        # Mount points in use or about to be, with the id of their storage.
        self._points: dict[str, str] = {}
        self._order = 0
        self._graph = StorageGraph()
        self._leaving: set[str] = set()
        self._attaching: InFlight[StorageRequest, MountedStorage] = InFlight("storage")
        self._detaching: InFlight[None, Detached] = InFlight("storage")
        self.before_unmount: list[Callable[[str, Deadline], Awaitable[None]]] = []

    def get(self, storage_id: str) -> MountedStorage:
        """Raises UNKNOWN_STORAGE."""
        return self._shown(self.record(storage_id))

    def list(self) -> tuple[MountedStorage, ...]:
        """All storages in the order of their attachment."""
        return tuple(self._shown(record) for record in self._table.values())

    def record(self, storage_id: str) -> StorageRecord:
        """With the mount's own data; raises UNKNOWN_STORAGE."""
        try:
            return self._table[storage_id]
        except KeyError:
            raise not_found(
                f"no storage {storage_id!r} is attached",
                reason=Reason.UNKNOWN_STORAGE,
                hint="Storages.List shows those that are",
                id=storage_id,
            ) from None

    async def attach(self, request: StorageRequest) -> MountedStorage:
        """Mount the storage and enter it in the table.

        The same request again gives the same answer. Raises ID_IN_USE,
        MOUNT_POINT_IN_USE, UNKNOWN_DEVICE, UNKNOWN_STORAGE, MOUNT_REFUSED,
        OPERATION_TIMED_OUT and its class's own; after an error nothing is left of the
        request.
        """
        check_id("storage", request.id)
        known = self._table.get(request.id)
        if known is not None:
            return self._repeated(known, request)
        return await self._attaching.run(request.id, request, lambda: self._attach(request))

    async def detach(self, storage_id: str, timeout: float | None = None) -> Detached:
        """Unmount the storage and forget it.

        Raises STILL_IN_USE naming its containers and the storages that build on it,
        UNMOUNT_REFUSED naming who holds it; it is still in the table then, and can be
        detached again.
        """
        deadline = Deadline.of_request(timeout, self._default_timeout)
        self.record(storage_id)
        return await self._detaching.run(
            storage_id, None, lambda: self._detach(storage_id, deadline)
        )

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

    async def refresh(self, storage_id: str, timeout: float | None = None) -> bool:
        """Bring a watched storage up to date now; whether anything changed."""
        record = self.record(storage_id)
        deadline = Deadline.of_request(timeout, self._default_timeout)
        with self.using(storage_id, "Storages.Refresh"):
            return await self._services.fill(record.storage.request.id, deadline)

    async def awaited(self, storage_id: str, timeout: float | None = None) -> None:
        """Wait while the storage is being attached; fine when it is not.

        Raises what the attachment raises, OPERATION_TIMED_OUT.
        """
        deadline = Deadline.of_request(timeout, self._default_timeout)
        await self._attaching.over(storage_id, deadline)

    def using(self, storage_id: str, who: str) -> AbstractContextManager[None]:
        """`who` works in the storage within the block: until then it can't be detached.

        Raises UNKNOWN_STORAGE, WRONG_STATE while the storage is being detached or is lost.
        """
        record = self.record(storage_id)
        self._refuse_leaving(record)
        self._refuse_lost(record)
        return self._graph.visit(storage_id, who)

    def acquire(self, storage_id: str, container_id: str) -> MountedStorage:
        """Count the container as a user; a container that has it already counts once.

        Raises UNKNOWN_STORAGE, WRONG_STATE while the storage is being detached or is lost.
        """
        record = self.record(storage_id)
        self._refuse_leaving(record)
        self._refuse_lost(record)
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
        saved = self._state.load_all(_KIND).items()
        records = [record for key, data in saved if (record := self._read(key, data))]
        gone: list[StorageRecord] = []
        for record in sorted(records, key=lambda record: record.order):
            self._order = max(self._order, record.order)
            if record.phase is Phase.MOUNTED and self.is_mounted(record):
                self._take_over(record)
            else:
                gone.append(record)
        # What builds on others is newer than they are.
        for record in reversed(gone):
            await self._sweep(record)
        await self._leftovers.clear_all(Deadline.after(_CLEAR_SECONDS))

    async def close(self) -> None:
        """Stop what is still waited for."""
        await self._services.close()
        await self._mounter.close()

    def is_mounted(self, record: StorageRecord) -> bool:
        """Whether its mount is still the topmost one at its mount point."""
        entry = self._mounter.mounted_at(record.point.path)
        return entry is not None and entry.mount_id == record.mount_id

    async def _attach(self, request: StorageRequest) -> MountedStorage:
        await self._take_off_earlier(request.id)
        self._order += 1
        attaching = Attaching(
            tools=self._tools,
            mounter=self._mounter,
            storage_class=self._classes.of(request.source),
            order=self._order,
            save=self._save,
            forget=lambda: self._state.delete(_KIND, request.id),
            leftovers=self._leftovers,
            host=self,
            default_timeout=self._default_timeout,
        )
        record = await attaching.run(request)
        return self._shown(record)

    async def base(self, storage_id: str, builder: str, deadline: Deadline) -> str:
        """The mount point of a storage that `builder` builds on from now on."""
        if self._graph.rests_on(storage_id, builder):
            raise invalid(
                f"storage {builder} can't build on {storage_id}, which builds on it",
                field="source",
                id=builder,
            )
        # Before the wait: two that wait for each other are refused then.
        self._graph.build(builder, [storage_id])
        await self._attaching.over(storage_id, deadline)
        record = self.record(storage_id)
        self._refuse_leaving(record)
        self._refuse_lost(record)
        return record.point.path

    def unbuild(self, builder: str) -> None:
        """`builder` builds on nothing any more."""
        self._graph.leave(builder)

    @property
    def points(self) -> dict[str, str]:
        """Mount points in use, with the id of their storage; who reserves one adds it."""
        return self._points

    def full(self, limit: int) -> bool:
        return len(self._table) >= limit

    async def enter(self, record: StorageRecord, deadline: Deadline) -> None:
        """A storage that is mounted: fill it, and put it in the table."""
        request = record.storage.request
        service = self._service(record)
        await self._services.start(request.id, service, deadline)
        try:
            self._save(record)
        except BaseException:
            await self._services.stop(request.id)
            raise
        self._table[request.id] = record
        details = {"mount_point": record.point.path}
        self._events.publish("storage-attached", request.id, details)

    def _service(self, record: StorageRecord) -> Any:
        request = record.storage.request
        storage_class = self._classes.of(request.source)
        bases = storage_class.storages(request.source)
        found = {base: self._table[base].point.path for base in bases if base in self._table}
        setting = ServiceSetting(
            tools=self._tools,
            request=request,
            mount_point=record.point.path,
            locations=found,
            told=lambda details: self._refreshed(request.id, details),
        )
        return storage_class.service(setting, request.source)

    def _refreshed(self, storage_id: str, details: Mapping[str, str]) -> None:
        self._events.publish("storage-refreshed", storage_id, details)

    async def _detach(self, storage_id: str, deadline: Deadline) -> Detached:
        # From here to the mark no other task runs: a user comes before or is refused.
        record = self.record(storage_id)
        self._refuse_used(record)
        self._leaving.add(storage_id)
        try:
            lazily = await self._unmount(record, deadline)
        finally:
            self._leaving.discard(storage_id)
        left = await self._clear(record, lazily=lazily)
        self._forget(record)
        details = {"mount_point": record.point.path}
        self._events.publish("storage-detached", storage_id, details)
        return Detached(lazily=lazily, left=left)

    async def _unmount(self, record: StorageRecord, deadline: Deadline) -> bool:
        storage_id = record.storage.request.id
        service = self._services.running(storage_id)
        await self._services.stop(storage_id)
        try:
            for hook in self.before_unmount:
                await hook(storage_id, deadline)
            request = record.storage.request
            recursive = self._classes.of(request.source).recursive(request)
            return await self._mounter.unmount(
                record.point, record.mount_id, deadline, recursive=recursive
            )
        except BaseException:
            self._services.resume(storage_id, service)
            raise

    async def _clear(self, record: StorageRecord, *, lazily: bool = False) -> tuple[str, ...]:
        """Everything but the mount; what stays, a line each."""
        deadline = Deadline.after(_CLEAR_SECONDS)
        left = await take_back_all(self._tools, record.pieces, deadline, lazily=lazily)
        if left:
            self._leftovers.keep(record.storage.request.id, [each.piece for each in left])
        why = self._mounter.remove_point(record.point)
        return (*map(str, left), *([why] if why else ()))

    def _forget(self, record: StorageRecord) -> None:
        request = record.storage.request
        self._table.pop(request.id, None)
        self._points.pop(record.point.path, None)
        self._graph.leave(request.id)
        for device in self._classes.of(request.source).devices(request.source):
            self._tools.devices.release(device, holder(request))
        self._state.delete(_KIND, request.id)

    def _take_over(self, record: StorageRecord) -> None:
        request = record.storage.request
        storage_class = self._classes.of(request.source)
        self._table[request.id] = record
        self._points[record.point.path] = request.id
        self._graph.build(request.id, storage_class.storages(request.source))
        try:
            self._hold_again(record, storage_class)
        except AgentError as error:
            # Its device went away under it; it is still mounted and must be detachable.
            log.warning("storage %s: %s", request.id, error)
        self._services.resume(request.id, self._service(record))

    def _hold_again(self, record: StorageRecord, storage_class: StorageClass[Any]) -> None:
        request = record.storage.request
        for device in storage_class.devices(request.source):
            self._tools.devices.hold(device, holder(request))
        for piece in record.pieces:
            if piece.kind is PieceKind.DEVICE:
                claimed.hold_again(self._tools, piece)

    async def _take_off_earlier(self, storage_id: str) -> None:
        """A mount that an attempt could not take back: it is still written down.

        When it can't be now either, its mount point is still in use for the next attempt.
        """
        data = self._state.load(_KIND, storage_id)
        record = self._read(storage_id, data) if data is not None else None
        if record is None:
            return
        with contextlib.suppress(AgentError, OSError):
            await self._mounter.take_off(record.point)
            self._mounter.remove_point(record.point)
            self._state.delete(_KIND, storage_id)

    async def _sweep(self, record: StorageRecord) -> None:
        """Take back a storage that is not mounted, or was in the middle of it."""
        request = record.storage.request
        if record.phase is Phase.MOUNTING:
            with contextlib.suppress(AgentError, OSError):
                await self._mounter.take_off(record.point)
        left = await self._clear(record)
        self._state.delete(_KIND, request.id)
        if record.phase is Phase.MOUNTED:
            details = {"mount_point": record.point.path, "left": "; ".join(left)}
            self._events.publish("storage-lost", request.id, details)

    def _read(self, key: str, data: dict[str, Any]) -> StorageRecord | None:
        try:
            return from_data(data)
        except (AgentError, KeyError, TypeError, ValueError) as error:
            log.warning("the saved state of storage %s is of another shape: %r", key, error)
            self._state.delete(_KIND, key)
            return None

    def _shown(self, record: StorageRecord) -> MountedStorage:
        builders = self._graph.builders(record.storage.request.id)
        return replace(record.storage, used_by=builders)

    def _set_users(self, record: StorageRecord, users: frozenset[str]) -> MountedStorage:
        changed = replace(record, storage=replace(record.storage, users=users))
        self._save(changed)
        self._table[record.storage.request.id] = changed
        return self._shown(changed)

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
        self._refuse_leaving(known)
        self._refuse_lost(known)
        return self._shown(known)

    def _refuse_leaving(self, record: StorageRecord) -> None:
        storage_id = record.storage.request.id
        if storage_id in self._leaving:
            raise wrong_state(f"storage {storage_id} is being detached", id=storage_id)

    def _refuse_lost(self, record: StorageRecord) -> None:
        """Without its mount, what lies below the mount point would be taken for it."""
        storage_id = record.storage.request.id
        if not self.is_mounted(record):
            raise wrong_state(
                f"storage {storage_id} is not mounted any more: someone unmounted it",
                hint="detach it, then attach it again",
                id=storage_id,
            )

    def _refuse_used(self, record: StorageRecord) -> None:
        storage = record.storage
        storage_id = storage.request.id
        groups = {
            "containers": sorted(storage.users),
            "storages": sorted(self._graph.builders(storage_id)),
            "work": list(self._graph.visitors(storage_id)),
        }
        used = {name: ", ".join(users) for name, users in groups.items() if users}
        if used:
            texts = [f"the {name} {users}" for name, users in used.items()]
            raise wrong_state(
                f"storage {storage_id} is still used by {' and '.join(texts)}",
                reason=Reason.STILL_IN_USE,
                hint="remove them first",
                id=storage_id,
                users=", ".join(used.values()),
            )


def holder(request: StorageRequest) -> str:
    """How a storage is named among the users of a device."""
    return f"storage {request.id}"
