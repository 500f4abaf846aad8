"""Making a container, up to where its process would start."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.core.errors import AgentError, Reason
from agent.core.model import RootPath, RootStorage
from agent.handlers.runtime import etcfiles, interfaces, limits
from agent.handlers.runtime.bundle import check_root_directory
from agent.handlers.runtime.grants import Granted, User, grant_device
from agent.handlers.runtime.hooks import add_hooks, hook_failure, wrap_hooks
from agent.handlers.runtime.launch import launch
from agent.handlers.runtime.mountflags import flags_at
from agent.handlers.runtime.records import ContainerRecord, Phase, ProcessRecord, fingerprint
from agent.handlers.runtime.runtime import CreateCall, Stdio
from agent.handlers.runtime.sources import pin_sources
from agent.handlers.runtime.spec import accounts, support
from agent.handlers.runtime.spec import configuration as oci
from agent.handlers.runtime.spec.devices import guest_path, plan_devices, put_devices
from agent.handlers.runtime.spec.environment import translate_env
from agent.handlers.runtime.spec.namespaces import share
from agent.handlers.runtime.spec.network import wanted_interfaces
from agent.handlers.runtime.spec.process import has_terminal
from agent.handlers.runtime.teardown import holder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.core.deadlines import Deadline
    from agent.core.model import ContainerRequest, MountedStorage, StorageMount
    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.process import Process
    from agent.handlers.runtime.table import Container

log = logging.getLogger(__name__)

_SHOWN_ARGUMENTS = 1024
"""Bytes of a process's arguments in its container's status (containers.proto)."""


def new_record(
    context: RuntimeContext, request: ContainerRequest, spec: dict[str, Any]
) -> ContainerRecord:
    storages = [mount.storage_id for mount in request.storages]
    if isinstance(request.rootfs, RootStorage):
        storages.append(request.rootfs.storage_id)
    return ContainerRecord(
        id=request.id,
        fingerprint=fingerprint(request),
        cgroup=f"{context.parent()}/{request.id}",
        phase=Phase.CREATING,
        storages=tuple(dict.fromkeys(storages)),
        devices=tuple(dict.fromkeys(grant.device_id for grant in request.devices)),
        layer=request.writable_layer,
        bound=isinstance(request.rootfs, RootPath) and not request.writable_layer,
        exclusive_cpus=request.exclusive_cpus,
        created=time.time(),
        arguments=shown(spec["process"]["args"]),
        terminal=has_terminal(spec["process"]),
        pressure=request.pressure,
    )


def shown(arguments: Sequence[str]) -> tuple[str, ...]:
    """As many of them as a status has room for; text that no UTF-8 can hold shows as "?"."""
    left = _SHOWN_ARGUMENTS
    found = []
    for each in arguments:
        if left <= 0:
            break
        data = each[:left].encode("utf-8", "replace")[:left]
        found.append(data.decode("utf-8", "ignore"))
        left -= max(len(data), 1)
    return tuple(found)


class Creation:
    """One create: its steps, in order. What takes them back is teardown.py's."""

    def __init__(
        self,
        context: RuntimeContext,
        container: Container,
        request: ContainerRequest,
        deadline: Deadline,
    ) -> None:
        self._context = context
        self._container = container
        self._request = request
        self._deadline = deadline

    async def run(self, spec: dict[str, Any], new: Callable[[ProcessRecord], Process]) -> None:
        """`new` makes the first process's object of its record. Raises AgentError."""
        context, request, deadline = self._context, self._request, self._deadline
        container = self._container
        support.check(spec, await context.support())
        container.mark(Phase.CREATING)
        mounts = await self._mounts()
        granted = self.hold_devices()
        container.bundle.make()
        root = await self._root()
        around = oci.Surroundings(root=root, cgroup=container.record.cgroup, mounts=mounts)
        config = oci.complete(spec, around)
        with context.namespaces.paths(request.shared_namespaces) as shared:
            share(config, request.shared_namespaces, shared)
            await self._adjust(config, granted, root)
            await self._launch(config, new)
        wanted = wanted_interfaces(spec, request.interfaces)
        await interfaces.give(context, container, wanted, deadline)
        await self._guard(spec)

    async def _mounts(self) -> list[dict[str, Any]]:
        context, container = self._context, self._container
        for storage_id in container.record.storages:
            # One that is being attached is waited for and shared.
            await context.storages.awaited(storage_id, max(self._deadline.left(), 0.001))
        return [
            self._storage_mount(mount, context.storages.acquire(mount.storage_id, container.id))
            for mount in self._request.storages
        ]

    def _storage_mount(self, wanted: StorageMount, storage: MountedStorage) -> dict[str, Any]:
        return oci.storage_mount(
            wanted, storage, flags_at(self._context.roots, storage.mount_point)
        )

    def hold_devices(self) -> tuple[Granted, ...]:
        """A second time is fine, and finds out whether they are still there."""
        granted = []
        for grant in self._request.devices:
            device = self._context.devices.hold(grant.device_id, holder(self._container.id))
            granted.append(grant_device(grant, device))
        return tuple(granted)

    async def _root(self) -> str:
        """A directory whose path nobody but the agent can lead elsewhere."""
        files, bundle, request = self._context.files, self._container.bundle, self._request
        if isinstance(request.rootfs, RootStorage):
            storage_id = request.rootfs.storage_id
            root = self._context.storages.acquire(storage_id, request.id).mount_point
        else:
            root = request.rootfs.path
            await check_root_directory(files, root, self._deadline)
        if request.writable_layer:
            size = self._context.layer_size
            return await bundle.mount_layer(files, root, size, self._deadline)
        if isinstance(request.rootfs, RootStorage):
            return root
        return await bundle.mount_root(files, root, self._deadline)

    async def _adjust(
        self, config: dict[str, Any], granted: tuple[Granted, ...], root: str
    ) -> None:
        """What the agent changes of the specification, and the files that it needs for that."""
        context, container, deadline = self._context, self._container, self._deadline
        linux = config["linux"]
        if resources := linux.get("resources"):
            linux["resources"] = limits.for_creation(resources)
        config["process"] = await accounts.resolve(context, config["process"], root, deadline)
        self._add_devices(config, granted)
        await pin_sources(context.files, container.bundle, context.roots, config, deadline)
        await etcfiles.add_etc_files(context, container, config, root, deadline)
        add_hooks(config, context.guest_hooks())
        wrap_hooks(config, container.bundle.path)

    def _add_devices(self, config: dict[str, Any], granted: tuple[Granted, ...]) -> None:
        """Into the specification, and into what is known of the container for updates."""
        container = self._container
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

    async def _launch(
        self, config: dict[str, Any], new: Callable[[ProcessRecord], Process]
    ) -> None:
        container, bundle = self._container, self._container.bundle
        bundle.write_config(oci.to_json(config))
        record = ProcessRecord(
            container_id=container.id,
            fingerprint=container.record.fingerprint,
            cgroup=container.record.cgroup,
            terminal=container.record.terminal,
            after=await self._context.exits.note(),
            streams=self._request.streams,
        )
        process = container.processes[""] = new(record)

        async def make(stdio: Stdio) -> int:
            call = CreateCall(
                id=container.id, bundle=bundle.path, pid_file=bundle.pid_file, stdio=stdio
            )
            return await self._context.runtime.create(call, self._deadline)

        try:
            await launch(self._context, process, make, self._deadline)
        except AgentError as error:
            if error.reason in (Reason.RUNTIME_REFUSED, Reason.OPERATION_TIMED_OUT):
                # A hook of it says more than the runtime does.
                raise hook_failure(bundle.path) or error from error
            raise

    async def _guard(self, spec: dict[str, Any]) -> None:
        """What watches it from its first moment on, what bounds it, and what is its alone."""
        context, record = self._context, self._container.record
        resources = (spec.get("linux") or {}).get("resources") or {}
        self._container.cgroup.bound(resources.get("unified") or {})
        context.oom.track(record.id, record.cgroup)
        if record.pressure:
            context.pressure.set(record.id, record.cgroup, record.pressure)
        if record.exclusive_cpus:
            await context.exclusive.grant(record.id, record.cgroup, record.exclusive_cpus)
