"""Updates of a container: limits, device grants, exclusive CPUs, thresholds of pressure;
all of it or nothing.

The runtime replaces the whole list of device rules when it is given one, so it gets
the whole list with every update, whatever the update is about. Rights come before
nodes, and go before them. The grants that are on their way are saved first: an agent
that dies in the middle leaves to the next one what to take back.

A device that is gone is revoked in the same way, without being asked to: the kernel
gives its numbers to the next device that comes, which may be somebody else's.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, wrong_state
from agent.core.model import ContainerState
from agent.core.undo import UndoStack
from agent.handlers.runtime import limits
from agent.handlers.runtime.grants import grant_device
from agent.handlers.runtime.nodes import Place
from agent.handlers.runtime.records import Phase
from agent.handlers.runtime.spec.devices import all_rules
from agent.handlers.runtime.teardown import holder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.core.life import PressureThreshold
    from agent.core.model import ContainerUpdate, DeviceGrant
    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.grants import Granted, PlacedNode
    from agent.handlers.runtime.records import ContainerRecord
    from agent.handlers.runtime.table import Container

    Nodes: TypeAlias = Sequence[PlacedNode]

log = logging.getLogger(__name__)

_ROLLBACK_TIMEOUT = 15.0
"""Seconds for each step that takes a failed update back."""

_ATTEMPTS = 2
"""A runtime that did not answer in time may do so the second time."""


async def apply(
    context: RuntimeContext,
    container: Container,
    change: ContainerUpdate,
    resources: dict[str, Any] | None,
    deadline: Deadline,
) -> None:
    """`resources` are the parsed ones of `change`. Raises AgentError with nothing changed."""
    await settle(context, container)
    before = container.record
    async with UndoStack(f"update container {container.id}") as undo:
        step = _Steps(context, container, undo, deadline)
        context.nodes.check(step.place)
        granted = step.hold(change.devices)
        if resources is not None or change.devices is not None:
            old, new = container.placed(before.granted), container.placed(granted)
            step.refuse_own_users(old, new)
            await step.limit(resources or {}, old, new)
            await step.move(old, new)
        count = before.exclusive_cpus if change.exclusive_cpus is None else change.exclusive_cpus
        await step.exclude(count)
        pressure = step.watch(change.pressure)
        held = _ids(granted)
        container.save(
            replace(
                before,
                granted=granted,
                incoming=None,
                devices=held,
                exclusive_cpus=count,
                pressure=pressure,
            )
        )
        undo.commit()
    _release(context, container, set(before.devices) - set(held))


async def settle(context: RuntimeContext, container: Container) -> None:
    """Do what is left to do: take an update back that was not finished, whose caller got no
    answer and will ask again, and revoke devices that are gone.

    Raises AgentError, and then it is still left to do.
    """
    record, lost = container.record, frozenset(container.lost)
    granted = tuple(each for each in record.granted if each.grant.device_id not in lost)
    if record.incoming is not None or granted != record.granted:
        await _leave(context, container, granted)
        held = _ids(granted)
        container.save(replace(container.record, granted=granted, incoming=None, devices=held))
        _release(context, container, set(record.devices) - set(held))
    container.lost -= lost
    if revoked := ", ".join(sorted(lost.intersection(_ids(record.granted)))):
        log.warning("container %s has lost its devices %s: revoked", container.id, revoked)
        context.events.publish("resources-changed", container.id, {"revoked": revoked})


async def settle_or_tell(context: RuntimeContext, container: Container) -> None:
    """The same as a turn that nobody waits for; what fails, the next update tries again."""
    problem: Exception | None = None
    for _ in range(_ATTEMPTS):
        if _is_gone(context, container):
            return
        try:
            await settle(context, container)
        except (AgentError, OSError) as error:
            problem = error
        else:
            return
    if not _is_gone(context, container):
        lost = ", ".join(sorted(container.lost))
        log.error("container %s keeps grants (lost: %s): %s", container.id, lost, problem)
        details = {"not_revoked": lost, "refused": str(problem)}
        context.events.publish("resources-changed", container.id, details)


async def _leave(
    context: RuntimeContext, container: Container, granted: tuple[Granted, ...]
) -> None:
    """Leave it with these of its grants, whatever it has now."""
    record = container.record
    deadline = Deadline.after(_ROLLBACK_TIMEOUT)
    step = _Steps(context, container, UndoStack(f"settle container {container.id}"), deadline)
    context.nodes.check(step.place)
    new = container.placed(granted)
    await step.set_rules({}, new)
    last = record.granted if record.incoming is None else record.incoming
    try:
        # What was to go may be gone already: made is all that the other list lacks.
        await step.change_nodes(
            container.placed(last), new, former=container.placed(record.granted)
        )
    except AgentError as error:
        if record.incoming is not None:
            raise
        # Its rights are gone, which is what counts: nobody can open such a node.
        log.warning("container %s keeps nodes of lost devices: %s", container.id, error)


def _is_gone(context: RuntimeContext, container: Container) -> bool:
    """Whether there is no process of it any more to take rights from."""
    if container.record.phase is Phase.REMOVING or container.state is ContainerState.STOPPED:
        return True
    try:
        context.nodes.check(_place(container))
    except AgentError:
        return True
    return False


class _Steps:
    """The steps of one update, each with what takes it back."""

    def __init__(
        self, context: RuntimeContext, container: Container, undo: UndoStack, deadline: Deadline
    ) -> None:
        self._context = context
        self._container = container
        self._undo = undo
        self._deadline = deadline
        self.place = _place(container)

    def hold(self, grants: Sequence[DeviceGrant] | None) -> tuple[Granted, ...]:
        """The whole new list, with its devices held; saved as being on its way."""
        record = self._container.record
        if grants is None:
            return record.granted
        self._undo.push("have the grants as before", lambda: self._let_go(record, grants))
        new = tuple(self._hold(grant) for grant in grants)
        held = tuple(dict.fromkeys(record.devices + _ids(new)))
        self._container.save(replace(record, incoming=new, devices=held))
        return new

    def _hold(self, grant: DeviceGrant) -> Granted:
        user = holder(self._container.id)
        return grant_device(grant, self._context.devices.hold(grant.device_id, user))

    def _let_go(self, before: ContainerRecord, grants: Sequence[DeviceGrant]) -> None:
        """What could not be taken back may still be used: it stays held and on its way,
        and the next update, or the next agent, takes it back."""
        if self._undo.failures:
            return
        if self._container.record.incoming is not None:
            self._container.save(before)
        new = {grant.device_id for grant in grants} - set(before.devices)
        _release(self._context, self._container, new)

    def refuse_own_users(self, old: Nodes, new: Nodes) -> None:
        """In a user namespace a node that is made can't be opened, and the nodes of the
        creation are mounts of the guest's."""
        moves = {each.key for each in old} != {each.key for each in new}
        if moves and self.has_own_users:
            raise wrong_state(
                f"container {self._container.id} has users of its own (a user namespace):"
                " nodes can't come and go in it",
                hint="grant the devices when it is created",
                id=self._container.id,
            )

    @property
    def has_own_users(self) -> bool:
        namespaces = self._container.bundle.config()["linux"]["namespaces"]
        return any(each["type"] == "user" for each in namespaces)

    async def limit(self, resources: dict[str, Any], old: Nodes, new: Nodes) -> None:
        """Limits and rights, in one call of the runtime; what is not named stays as it is."""
        cgroup = self._container.cgroup
        present = cgroup.limits()
        whole = limits.for_update(resources, present)
        if self._container.record.exclusive_cpus:
            # After the limits are written back, among them perhaps the cpuset.
            self._undo.push("claim its CPUs again", lambda: self._set_cpus(self._count))
        self._undo.push("set the limits back", lambda: cgroup.set_limits(present))
        self._undo.push("set the device rules back", lambda: self._rollback().set_rules({}, old))
        await self.set_rules(whole, new)

    async def set_rules(self, resources: dict[str, Any], placed: Nodes) -> None:
        rules = all_rules(self._container.record.rules, placed)
        text = json.dumps({**resources, "devices": rules}, ensure_ascii=False)
        file = self._container.bundle.write_update(text)
        try:
            await self._context.runtime.update(self._container.id, file, self._deadline)
        finally:
            file.unlink(missing_ok=True)

    async def move(self, old: Nodes, new: Nodes) -> None:
        self._undo.push("put the nodes back", lambda: self._rollback().change_nodes(new, old))
        await self.change_nodes(old, new)

    async def change_nodes(self, old: Nodes, new: Nodes, *, former: Nodes = ()) -> None:
        """Have the nodes of `new` instead of those of `old`; what both have is left alone.
        Those of `former` may be there as well."""
        before, after = {each.key for each in old}, {each.key for each in new}
        remove = [each for each in (*old, *former) if each.key not in after]
        make = [each for each in new if each.key not in before]
        if make and self.has_own_users:
            make = []
        if remove or make:
            await self._context.nodes.change(
                self.place, remove=remove, make=make, deadline=self._deadline
            )

    async def exclude(self, count: int) -> None:
        """Also for a count that stays: the runtime may have written to the cpuset."""
        if count != self._count:
            self._undo.push("have the CPUs as before", lambda: self._set_cpus(self._count))
        if count or self._count:
            await self._set_cpus(count)

    def watch(
        self, thresholds: tuple[PressureThreshold, ...] | None
    ) -> tuple[PressureThreshold, ...]:
        """All that shall be watched from now on."""
        record = self._container.record
        if thresholds is None or thresholds == record.pressure:
            return record.pressure
        self._undo.push("watch the pressure as before", lambda: self._watch(record.pressure))
        self._watch(thresholds)
        return thresholds

    def _watch(self, thresholds: tuple[PressureThreshold, ...]) -> None:
        record = self._container.record
        if thresholds:
            self._context.pressure.set(record.id, record.cgroup, thresholds)
        else:
            self._context.pressure.drop(record.id)

    @property
    def _count(self) -> int:
        return self._container.record.exclusive_cpus

    async def _set_cpus(self, count: int) -> None:
        container = self._container
        if count:
            await self._context.exclusive.grant(container.id, container.record.cgroup, count)
        else:
            await self._context.exclusive.release(container.id)

    def _rollback(self) -> _Steps:
        """The same with time of its own."""
        deadline = Deadline.after(_ROLLBACK_TIMEOUT)
        return _Steps(self._context, self._container, self._undo, deadline)


def _place(container: Container) -> Place:
    first, record = container.first, container.record
    return Place(container_id=record.id, pid=first.pid if first else 0, cgroup=record.cgroup)


def _release(context: RuntimeContext, container: Container, device_ids: Iterable[str]) -> None:
    for device_id in device_ids:
        context.devices.release(device_id, holder(container.id))


def _ids(granted: Sequence[Granted]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.grant.device_id for each in granted))
