"""After a restart of the agent: containers run on, and are taken over.

What the earlier agent had finished is adopted; a create that was half done is
taken back, because its caller got no answer and will ask again; a removal that
was half done is finished. What nobody's record speaks of is swept.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from typing import TYPE_CHECKING, TypeVar

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError
from agent.handlers.runtime.etcfiles import ETC_FILES, refresh
from agent.handlers.runtime.leftovers import wait_for_leftovers
from agent.handlers.runtime.records import ContainerRecord, Phase, ProcessRecord
from agent.handlers.runtime.streams.streams import PREFIX
from agent.handlers.runtime.table import Container
from agent.handlers.runtime.teardown import holder

if TYPE_CHECKING:
    from agent.handlers.runtime.containers import Containers
    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.process import Process

log = logging.getLogger(__name__)

_PATIENCE = 10.0
"""Seconds for runtime calls of the earlier agent to end by themselves."""

R = TypeVar("R", ContainerRecord, ProcessRecord)


async def restore(context: RuntimeContext, containers: Containers) -> None:
    """Take over everything; needs the exit watcher started, devices and storages restored."""
    containers.table.restore()
    await wait_for_leftovers(context.roots, context.runtime, Deadline.after(_PATIENCE))
    found = [Container(context, record) for record in _load(context, ContainerRecord)]
    by_id = {container.id: container for container in found}
    for record in _load(context, ProcessRecord):
        if record.container_id in by_id:
            process = containers.new_process(record)
            by_id[record.container_id].processes[record.exec_id] = process
        else:
            context.state.delete(record.KIND, record.key)
    await asyncio.gather(*(_restore_one(context, containers, each) for each in found))
    await _hold_cpus_again(context, found)
    _take_back_strays(context, containers, set(by_id))
    await _sweep(context, set(by_id))


async def _restore_one(
    context: RuntimeContext, containers: Containers, container: Container
) -> None:
    containers.table.add(container)
    _hold_again(context, container)
    # Before its exits: they ask whether the kernel killed them for lack of memory.
    context.oom.track(container.id, container.record.cgroup)
    for process in tuple(container.processes.values()):
        await _restore_process(containers, container, process)
    if container.record.phase in (Phase.CREATING, Phase.REMOVING):
        containers.take_back(container)
        return
    _watch_again(context, container)
    if container.record.phase is Phase.STARTING:
        await _find_out(containers, container)
    if container.record.incoming is not None or container.lost:
        containers.settle(container)
    if container.first is not None and container.first.exit is not None:
        containers.fetch_interfaces(container)
    _refresh_etc(context, container)


def _refresh_etc(context: RuntimeContext, container: Container) -> None:
    """The earlier agent may have died before it had changed every container's files."""
    try:
        refresh(container, context.network.dns)
    except AgentError as error:
        log.warning("%s", error)


async def _restore_process(containers: Containers, container: Container, process: Process) -> None:
    exec_id = process.record.exec_id
    pid_file = container.bundle.exec_pid_file(exec_id) if exec_id else container.bundle.pid_file
    if process.pid or process.find_pid(pid_file):
        await process.adopt()
        if exec_id and process.exit is not None:
            containers.retention.exited(process)
    elif exec_id:
        # The runtime had not made it, and its caller got no answer.
        del container.processes[exec_id]
        await process.forget()
    if exec_id:
        container.bundle.remove_exec(exec_id)


async def _find_out(containers: Containers, container: Container) -> None:
    try:
        await containers.find_out(container)
    except AgentError as error:
        # It counts as running: its exit comes from the journal in any case.
        log.warning("whether container %s was started is not known: %s", container.id, error)
        container.mark(Phase.STARTED)
        containers.announce_exit(container)


def _hold_again(context: RuntimeContext, container: Container) -> None:
    """Devices don't remember who held them; storages do."""
    for device_id in container.record.devices:
        try:
            context.devices.hold(device_id, holder(container.id))
        except AgentError as error:
            log.warning("container %s has lost device %s: %s", container.id, device_id, error)
            container.lost.add(device_id)


def _watch_again(context: RuntimeContext, container: Container) -> None:
    record = container.record
    if not record.pressure:
        return
    try:
        context.pressure.set(record.id, record.cgroup, record.pressure)
    except AgentError as error:
        log.warning("the pressure of container %s is not watched: %s", record.id, error)


async def _hold_cpus_again(context: RuntimeContext, found: list[Container]) -> None:
    records = [container.record for container in found]
    await context.exclusive.restore(
        {
            record.id: (record.cgroup, record.exclusive_cpus)
            for record in records
            if record.exclusive_cpus and record.phase not in (Phase.CREATING, Phase.REMOVING)
        }
    )


def _load(context: RuntimeContext, kind: type[R]) -> list[R]:
    found: list[R] = []
    for key, data in context.state.load_all(kind.KIND).items():
        try:
            record = kind.from_data(data)
            if record.key != key:
                # Its id would be one that no request can name.
                raise ValueError(f"it is the record of {record.key!r}")
            found.append(record)
        except (KeyError, TypeError, ValueError) as error:
            log.warning("the saved state of %s %s is of another shape: %r", kind.KIND, key, error)
            context.state.delete(kind.KIND, key)
    return found


def _take_back_strays(context: RuntimeContext, containers: Containers, ids: set[str]) -> None:
    """A bundle whose record is lost: what runs there nobody could see or end, and its
    id could never be used again."""
    bundles = context.roots.bundles
    for path in bundles.iterdir() if bundles.is_dir() else ():
        if path.name in ids:
            continue
        log.warning("container %s has no readable record: it is ended and removed", path.name)
        record = ContainerRecord(
            id=path.name,
            fingerprint="",
            cgroup=f"{context.parent()}/{path.name}",
            phase=Phase.REMOVING,
            layer=True,
            bound=True,
            lent=True,
            etc=ETC_FILES,
        )
        container = Container(context, record)
        containers.table.add(container)
        containers.take_back(container)


async def _sweep(context: RuntimeContext, ids: set[str]) -> None:
    """Drop what belongs to no container: an agent died between two steps of a removal."""
    context.storages.keep_users(ids)
    names = await context.streams.keeper.names(PREFIX)
    strays = [name for name in names if name.removeprefix(PREFIX).split("/")[0] not in ids]
    if strays:
        await context.streams.keeper.drop(strays)
    for top in (context.streams.spools, context.roots.logs):
        for directory in top.iterdir() if top.is_dir() else ():
            if directory.name not in ids:
                shutil.rmtree(directory, ignore_errors=True)
