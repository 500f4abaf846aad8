"""Taking a container apart: one list of steps for a create that failed, a remove,
and what an agent left half done.

Every step is fine with what is not there, so the list doesn't depend on how far
the container came, and a removal that failed can be asked for again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import shutil
import signal
from typing import TYPE_CHECKING

from agent.handlers.runtime.ends import UNDONE
from agent.handlers.runtime.hooks import logged_failures
from agent.handlers.runtime.interfaces import take_back
from agent.handlers.runtime.process import LOST_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.core.deadlines import Deadline
    from agent.core.undo import UndoStack
    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.table import Container

log = logging.getLogger(__name__)

_SETTLE = 1.0
"""Seconds in which the last output may arrive for readers that are at work."""


def push_teardown(
    undo: UndoStack,
    context: RuntimeContext,
    container: Container,
    allowed: Callable[[], Deadline],
    *,
    undone: bool,
) -> None:
    """Push the steps in the order of the creation: they run the other way round.

    `allowed` is asked when they begin to run, once: it is the time for all of them.
    `undone`: the container was never made.
    """
    runtime, cgroup = context.runtime, container.cgroup
    deadline = functools.cache(allowed)
    undo.push("release storages and devices", lambda: release_held(context, container))
    undo.push("remove the bundle", lambda: _remove_bundle(context, container, deadline()))
    undo.push("forget its kills", lambda: context.oom.untrack(container.id))
    undo.push("discard the streams", lambda: _forget_processes(context, container))
    undo.push("remove the cgroup", cgroup.remove)
    undo.push("delete it in the runtime", lambda: runtime.delete(container.id, deadline()))
    undo.push("release its CPUs", lambda: context.exclusive.release(container.id))
    undo.push(
        "take its interfaces back",
        lambda: take_back(context, container, deadline(), undone=undone),
    )
    undo.push("watch its pressure no more", lambda: context.pressure.drop(container.id))
    undo.push("end its processes", lambda: _end_processes(container, deadline(), undone=undone))


def release_held(context: RuntimeContext, container: Container) -> None:
    for storage_id in container.record.storages:
        context.storages.release(storage_id, container.id)
    for device_id in container.record.devices:
        context.devices.release(device_id, holder(container.id))


def holder(container_id: str) -> str:
    """What a container is called among the users of a device."""
    return f"container {container_id}"


async def _end_processes(container: Container, deadline: Deadline, *, undone: bool) -> None:
    """Kill all, and wait until the kernel and then the journal say that all are gone."""
    if undone:
        for process in container.processes.values():
            process.note(signal.SIGKILL, UNDONE)
    container.cgroup.kill()
    await container.cgroup.wait_empty(deadline)
    ends = [
        asyncio.ensure_future(process.wait())
        for process in container.processes.values()
        if process.pid
    ]
    if not ends:
        return
    # An exit that the journal lost is given up by then, and has a status of its own.
    _, pending = await asyncio.wait(ends, timeout=LOST_AFTER + 1)
    for end in pending:
        end.cancel()
    everyone = container.processes.values()
    await asyncio.gather(*(process.streams.settle(_SETTLE) for process in everyone))


async def _forget_processes(context: RuntimeContext, container: Container) -> None:
    # Some may be forgotten meanwhile, because their time is over; twice is fine.
    for process in tuple(container.processes.values()):
        await process.forget()
        if process.log is not None:
            process.log.discard()
    # Those of processes that were forgotten before.
    shutil.rmtree(context.roots.logs / container.id, ignore_errors=True)


async def _remove_bundle(context: RuntimeContext, container: Container, deadline: Deadline) -> None:
    for failure in logged_failures(container.bundle.path):
        log.warning("container %s: %s", container.id, failure)
    # One step: nothing may be removed where a mount that stays would be entered.
    await container.bundle.unmount_sources(context.files, deadline)
    if container.record.etc:
        await container.bundle.unmount_etc(context.files, deadline)
    if container.record.bound:
        await container.bundle.unmount_root(context.files, deadline)
    if container.record.layer:
        await container.bundle.unmount_layer(context.files, deadline)
    container.bundle.remove()
