"""Containers: create, start, remove, list, and what is taken over after a restart.

Operations on one container take turns (turns.py). A container enters the table
when it is created, and leaves it when nothing of it is left. Exits come from
the journal only, at any time, whatever operation is going on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, already_exists, wrong_state
from agent.core.model import ContainerState, ContainerStatus, RootPath, RootStorage
from agent.core.names import check_id
from agent.core.turns import Turns
from agent.core.undo import UndoStack
from agent.handlers.runtime import etcfiles, interfaces, update
from agent.handlers.runtime import spec as oci
from agent.handlers.runtime.bundle import check_root_directory
from agent.handlers.runtime.grants import Granted, User, grant_device
from agent.handlers.runtime.labels import drop_labels
from agent.handlers.runtime.launch import launch
from agent.handlers.runtime.mountflags import flags_at
from agent.handlers.runtime.process import Process
from agent.handlers.runtime.records import ContainerRecord, Phase, ProcessRecord, fingerprint
from agent.handlers.runtime.restore import restore
from agent.handlers.runtime.retention import Retention
from agent.handlers.runtime.runtime import CreateCall, RuntimeState, Stdio
from agent.handlers.runtime.sources import pin_sources
from agent.handlers.runtime.spec_devices import guest_path, plan_devices, put_devices
from agent.handlers.runtime.spec_env import translate_env
from agent.handlers.runtime.spec_network import wanted_interfaces
from agent.handlers.runtime.spec_process import has_terminal
from agent.handlers.runtime.table import Container, ContainerTable
from agent.handlers.runtime.teardown import holder, push_teardown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.core.model import ContainerRequest, ContainerUpdate, MountedStorage, StorageMount
    from agent.core.network import DnsState
    from agent.handlers.runtime.context import RuntimeContext

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 30.0
"""Seconds for one operation that brings no timeout (containers.proto)."""

_ROLLBACK_TIMEOUT = 15.0
"""Seconds for taking a failed create back, whatever its own deadline was."""


class Containers:
    """The containers of the sandbox, by id."""

    def __init__(self, context: RuntimeContext) -> None:
        self.table = ContainerTable()
        self.turns = Turns()
        self.retention = Retention(self.table, self.turns)
        self._context = context
        self._visitors: list[Callable[[str], Awaitable[None]]] = []

    def before_removal(self, leave: Callable[[str], Awaitable[None]]) -> None:
        """Have `leave` told of each container whose removal begins: it lets go of its files."""
        self._visitors.append(leave)

    def get(self, container_id: str) -> ContainerStatus:
        """Raises UNKNOWN_CONTAINER."""
        return self.table.container(container_id).status

    def list(self) -> tuple[ContainerStatus, ...]:
        return tuple(container.status for container in self.table.all())

    async def create(self, request: ContainerRequest) -> ContainerStatus:
        """Make a container up to where its process would start.

        The same request again is answered with the container's status. Raises
        BAD_ID, BAD_SPEC, BAD_FIELD before anything is done; ID_IN_USE,
        UNKNOWN_STORAGE, UNKNOWN_DEVICE, RUNTIME_REFUSED and others with nothing
        left behind.
        """
        check_id("container", request.id)
        spec = oci.parse_spec(request.spec)
        wanted_interfaces(spec, request.interfaces)
        deadline = Deadline.of_request(request.timeout, DEFAULT_TIMEOUT)
        return await self.turns.take(request.id, lambda: self._create(request, spec, deadline))

    async def start(self, container_id: str) -> ContainerStatus:
        """Let the container's process run; a second time is answered with its status.

        Raises UNKNOWN_CONTAINER, WRONG_STATE, RUNTIME_REFUSED.
        """
        self.table.container(container_id)
        deadline = Deadline.after(DEFAULT_TIMEOUT)
        return await self.turns.take(container_id, lambda: self._start(container_id, deadline))

    async def update(self, change: ContainerUpdate) -> ContainerStatus:
        """Change limits, device grants and exclusive CPUs, all of it or nothing.

        Raises BAD_SPEC, BAD_FIELD, UNKNOWN_CONTAINER, UNKNOWN_DEVICE, WRONG_STATE (it has
        ended, or a new node can't be made in it), CPUS_EXHAUSTED, RUNTIME_REFUSED.
        """
        check_id("container", change.id)
        resources = oci.parse_resources(change.resources) if change.resources else None
        deadline = Deadline.of_request(change.timeout, DEFAULT_TIMEOUT)
        container = self.table.container(change.id)
        work = partial(self._update, change, resources, deadline)
        return await self.turns.take(container.id, work)

    async def remove(self, container_id: str, grace: float, timeout: float | None) -> None:
        """End the container (SIGTERM, SIGKILL after `grace` seconds) and remove all of it.

        Raises UNKNOWN_CONTAINER; OPERATION_TIMED_OUT and others when something
        stays, and then it can be asked for again.
        """
        self.table.container(container_id)
        deadline = Deadline.of_request(timeout, DEFAULT_TIMEOUT)
        work = partial(self._remove, container_id, grace, deadline)
        await self.turns.take(container_id, work)

    async def remove_all(self) -> tuple[tuple[str, AgentError], ...]:
        """Remove every container at once; returns those that stay, and why."""
        ids = [container.id for container in self.table.all()]
        removals = (self.remove(container_id, 0.0, None) for container_id in ids)
        outcomes = await asyncio.gather(*removals, return_exceptions=True)
        left = zip(ids, outcomes, strict=True)
        return tuple((i, error) for i, error in left if isinstance(error, AgentError))

    async def restore(self) -> None:
        """Take over what an earlier agent made; see restore.py for what has to come before."""
        await restore(self._context, self)

    async def close(self) -> None:
        """Let go of everything without changing it: the next agent takes it over."""
        await self.turns.all_done()
        for container in self.table.all():
            for process in tuple(container.processes.values()):
                await process.let_go()

    def new_process(self, record: ProcessRecord) -> Process:
        return Process(self._context, record, self._exited)

    def take_back(self, container: Container) -> None:
        """Undo what an earlier agent left half done, as the container's next turn."""
        work = partial(self._remove, container.id, 0.0, Deadline.after(_ROLLBACK_TIMEOUT))
        self.turns.enqueue(container.id, work)

    async def _create(
        self, request: ContainerRequest, spec: dict[str, Any], deadline: Deadline
    ) -> ContainerStatus:
        if (known := self.table.find(request.id)) is not None:
            return _repeated(known, request)
        container = Container(self._context, self._new_record(request))
        undo = UndoStack(f"create container {request.id}")
        try:
            async with undo:
                rollback = Deadline.after(_ROLLBACK_TIMEOUT)
                push_teardown(undo, self._context, container, rollback, undone=True)
                await self._build(container, request, spec, deadline)
                # Of one that vanished meanwhile nobody was told: it is in no table yet.
                self._hold_devices(request)
                container.mark(Phase.CREATED)
                undo.commit()
        except BaseException:
            self._after_rollback(container, undo)
            raise
        self.table.add(container)
        self._refresh_etc(container)
        self._context.events.publish("container_created", container.id)
        self.announce_exit(container)
        return container.status

    def _new_record(self, request: ContainerRequest) -> ContainerRecord:
        storages = [mount.storage_id for mount in request.storages]
        if isinstance(request.rootfs, RootStorage):
            storages.append(request.rootfs.storage_id)
        return ContainerRecord(
            id=request.id,
            fingerprint=fingerprint(request),
            cgroup=f"{self._context.parent()}/{request.id}",
            phase=Phase.CREATING,
            storages=tuple(dict.fromkeys(storages)),
            devices=tuple(dict.fromkeys(grant.device_id for grant in request.devices)),
            layer=request.writable_layer,
            bound=isinstance(request.rootfs, RootPath) and not request.writable_layer,
            exclusive_cpus=request.exclusive_cpus,
        )

    async def _build(
        self,
        container: Container,
        request: ContainerRequest,
        spec: dict[str, Any],
        deadline: Deadline,
    ) -> None:
        context, bundle = self._context, container.bundle
        container.mark(Phase.CREATING)
        for storage_id in container.record.storages:
            # One that is being attached is waited for and shared.
            await context.storages.awaited(storage_id, max(deadline.left(), 0.001))
        mounts = [
            self._storage_mount(mount, context.storages.acquire(mount.storage_id, container.id))
            for mount in request.storages
        ]
        granted = self._hold_devices(request)
        bundle.make()
        root = await self._root(container, request, deadline)
        around = oci.Surroundings(root=root, cgroup=container.record.cgroup, mounts=mounts)
        config = oci.complete(spec, around)
        drop_labels(context.roots, container.id, config)
        self._add_devices(container, config, granted)
        await pin_sources(context.files, bundle, context.roots, config, deadline)
        await etcfiles.add_etc_files(context, container, config, root, deadline)
        bundle.write_config(oci.to_json(config))
        await self._launch(container, config, deadline)
        wanted = wanted_interfaces(spec, request.interfaces)
        await interfaces.give(context, container, wanted, deadline)
        if request.exclusive_cpus:
            await context.exclusive.grant(
                container.id, container.record.cgroup, request.exclusive_cpus
            )

    def _storage_mount(self, wanted: StorageMount, storage: MountedStorage) -> dict[str, Any]:
        return oci.storage_mount(
            wanted, storage, flags_at(self._context.roots, storage.mount_point)
        )

    def _hold_devices(self, request: ContainerRequest) -> tuple[Granted, ...]:
        granted = []
        for grant in request.devices:
            device = self._context.devices.hold(grant.device_id, holder(request.id))
            granted.append(grant_device(grant, device))
        return tuple(granted)

    def _add_devices(
        self, container: Container, config: dict[str, Any], granted: tuple[Granted, ...]
    ) -> None:
        """Into the specification, and into what is known of the container for updates."""
        plan = plan_devices(config, granted, partial(guest_path, self._context.roots))
        for entry in plan.dropped:
            log.warning(
                "container %s: %s is left out: no device that it was granted stands for it,"
                " and it is no character device that the guest has by this name",
                container.id,
                entry,
            )
        put_devices(config, plan)
        process = config["process"]
        process["env"] = translate_env(process["env"], granted, container.id)
        container.save(
            replace(
                container.record,
                granted=granted,
                rules=plan.rules,
                claims=plan.claims,
                owner=User.of(process),
            )
        )

    async def _root(
        self, container: Container, request: ContainerRequest, deadline: Deadline
    ) -> str:
        """A directory whose path nobody but the agent can lead elsewhere."""
        files, bundle = self._context.files, container.bundle
        if isinstance(request.rootfs, RootStorage):
            storage_id = request.rootfs.storage_id
            root = self._context.storages.acquire(storage_id, request.id).mount_point
        else:
            root = request.rootfs.path
            await check_root_directory(files, root, deadline)
        if request.writable_layer:
            return await bundle.mount_layer(files, root, self._context.layer_size, deadline)
        if isinstance(request.rootfs, RootStorage):
            return root
        return await bundle.mount_root(files, root, deadline)

    async def _launch(
        self, container: Container, config: dict[str, Any], deadline: Deadline
    ) -> None:
        record = ProcessRecord(
            container_id=container.id,
            fingerprint=container.record.fingerprint,
            cgroup=container.record.cgroup,
            terminal=has_terminal(config["process"]),
            after=await self._context.exits.note(),
        )
        process = container.processes[""] = self.new_process(record)
        bundle = container.bundle

        async def make(stdio: Stdio) -> int:
            call = CreateCall(
                id=container.id, bundle=bundle.path, pid_file=bundle.pid_file, stdio=stdio
            )
            return await self._context.runtime.create(call, deadline)

        await launch(self._context, process, make, deadline)

    def _after_rollback(self, container: Container, undo: UndoStack) -> None:
        """Nothing is left to know of; or the rest is, and can be removed by its id."""
        if undo.failures:
            self._keep_rest(container)
        else:
            self._context.state.delete(ContainerRecord.KIND, container.id)

    def _keep_rest(self, container: Container) -> None:
        with contextlib.suppress(AgentError):
            container.mark(Phase.REMOVING)
        self.table.add(container)

    async def _start(self, container_id: str, deadline: Deadline) -> ContainerStatus:
        container = self.table.container(container_id)
        # Also when it has ended meanwhile: a host that lost the answer asks again.
        if container.record.phase is Phase.STARTED:
            return container.status
        container.require("start it", ContainerState.CREATED)
        container.mark(Phase.STARTING)
        try:
            await self._context.runtime.start(container_id, deadline)
        except AgentError:
            await self.find_out(container)
            raise
        container.mark(Phase.STARTED)
        self._context.events.publish("container_started", container_id)
        self.announce_exit(container)
        return container.status

    async def _update(
        self, change: ContainerUpdate, resources: dict[str, Any] | None, deadline: Deadline
    ) -> ContainerStatus:
        container = self.table.container(change.id)
        container.require("update it", ContainerState.CREATED, ContainerState.RUNNING)
        await update.apply(self._context, container, change, resources, deadline)
        return container.status

    def device_vanished(self, device_id: str) -> None:
        """Revoke a device that went by itself: its numbers may be another's at any moment."""
        for container in self.table.all():
            if device_id in container.record.devices:
                container.lost.add(device_id)
                self.settle(container)

    def settle(self, container: Container) -> None:
        """Do what is left to do of its updates (update.py), as its next turn."""
        self.turns.enqueue(container.id, lambda: update.settle_or_tell(self._context, container))

    def fetch_interfaces(self, container: Container) -> None:
        """Its first process has ended: what it was lent comes back, as its next turn."""
        if container.record.lent:
            self.turns.enqueue(container.id, lambda: self._fetch_interfaces(container))

    async def dns_applied(self, dns: DnsState) -> None:
        """The sandbox's DNS files have changed: so do their copies in containers.

        Raises the first failure, once all others are done.
        """
        failures = []
        for container in self.table.all():
            try:
                etcfiles.refresh(container, dns)
            except AgentError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def find_out(self, container: Container) -> None:
        """Ask the runtime whether a start that went wrong, or was cut off, took effect."""
        deadline = Deadline.after(_ROLLBACK_TIMEOUT)
        state = await self._context.runtime.state(container.id, deadline)
        waits = state in (RuntimeState.CREATED, RuntimeState.CREATING)
        container.mark(Phase.CREATED if waits else Phase.STARTED)
        self.announce_exit(container)

    def announce_exit(self, container: Container) -> None:
        """Publish an exit that came before the event that comes first."""
        if container.first is not None and container.first.exit is not None:
            self._exited(container.first)

    async def _remove(self, container_id: str, grace: float, deadline: Deadline) -> None:
        container = self.table.container(container_id)
        announced = container.record.phase is not Phase.CREATING
        with contextlib.suppress(AgentError):
            # A full run directory must not keep anyone from making space.
            container.mark(Phase.REMOVING)
        for leave in self._visitors:
            await leave(container_id)
        await _ask_to_end(container, grace, deadline)
        # An exec that is under way fails now, and takes itself back before the rest goes.
        container.cgroup.kill()
        await self.turns.quiet(f"{container_id}:", deadline.left())
        undo = UndoStack(f"remove container {container_id}")
        push_teardown(undo, self._context, container, deadline, undone=not announced)
        await undo.run()
        if undo.failures:
            raise _not_removed(container_id, undo)
        self._context.state.delete(ContainerRecord.KIND, container_id)
        self.table.remove(container)
        if announced:
            self._context.events.publish("container_removed", container_id)

    async def _fetch_interfaces(self, container: Container) -> None:
        # Its removal, which may have come before, takes them back as well.
        if container.record.phase is Phase.REMOVING:
            return
        deadline = Deadline.after(_ROLLBACK_TIMEOUT)
        try:
            await interfaces.take_back_early(self._context, container, deadline)
        except AgentError as error:
            log.warning(
                "container %s has ended and still has interfaces of the sandbox, until it is"
                " removed: %s",
                container.id,
                error,
            )

    def _refresh_etc(self, container: Container) -> None:
        """The sandbox's files may have changed while it was made, and in no table."""
        try:
            etcfiles.refresh(container, self._context.network.dns)
        except AgentError as error:
            log.warning("%s", error)

    def _exited(self, process: Process) -> None:
        ref, end = process.record.ref, process.exit
        container = self.table.find(ref.container_id)
        if end is None or container is None:
            return
        if container.record.phase is Phase.STARTING and not ref.exec_id:
            return
        subject = "/".join(filter(None, (ref.container_id, ref.exec_id)))
        details = {"code": str(end.code), "signal": str(end.signal), "pid": str(process.pid)}
        self._context.events.publish("process_exited", subject, details)
        if ref.exec_id:
            self.retention.exited(process)
        else:
            self.fetch_interfaces(container)


async def _ask_to_end(container: Container, grace: float, deadline: Deadline) -> None:
    first = container.first
    if first is None or first.exit is not None or grace <= 0:
        return
    first.signal(signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with deadline.earlier(grace).limit():
            await first.wait()


def _repeated(known: Container, request: ContainerRequest) -> ContainerStatus:
    if known.record.phase is Phase.REMOVING:
        raise wrong_state(
            f"container {known.id} is not removed whole yet",
            hint="remove it again, then create it",
            id=known.id,
        )
    if known.record.fingerprint != fingerprint(request):
        raise already_exists(
            f"container {known.id} exists, made by another request",
            reason=Reason.ID_IN_USE,
            hint="remove it first, or choose another id",
            id=known.id,
        )
    return known.status


def _not_removed(container_id: str, undo: UndoStack) -> Exception:
    """The first failure is the cause of the others, mostly; the others go along."""
    first = undo.failures[0].error
    first.add_note(f"container {container_id}: " + "; ".join(map(str, undo.failures)))
    return first
