"""Updates of a container: limits, device grants, exclusive CPUs; all of it or nothing.

The runtime replaces the whole list of device rules when it is given one, so it gets
the whole list with every update, whatever the update is about. Rights come before
nodes, and go before them. The grants that are on their way are saved first: an agent
that dies in the middle leaves to the next one what to take back.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, wrong_state
from agent.core.undo import UndoStack
from agent.handlers.runtime.grants import grant_again, grant_device
from agent.handlers.runtime.nodes import Place
from agent.handlers.runtime.spec_devices import all_rules
from agent.handlers.runtime.teardown import holder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.core.model import ContainerUpdate, DeviceGrant
    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.grants import Granted, PlacedNode
    from agent.handlers.runtime.records import ContainerRecord
    from agent.handlers.runtime.table import Container

    Nodes: TypeAlias = Sequence[PlacedNode]

log = logging.getLogger(__name__)

_ROLLBACK_TIMEOUT = 15.0
"""Seconds for each step that takes a failed update back."""


async def apply(
    context: RuntimeContext,
    container: Container,
    change: ContainerUpdate,
    resources: dict[str, Any] | None,
    deadline: Deadline,
) -> None:
    """`resources` are the parsed ones of `change`. Raises AgentError with nothing changed."""
    if container.record.incoming is not None:
        await _take_back(context, container)
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
        held = _ids(granted)
        container.save(
            replace(before, granted=granted, incoming=None, devices=held, exclusive_cpus=count)
        )
        undo.commit()
    _release(context, container, set(before.devices) - set(held))


async def take_back(context: RuntimeContext, container: Container) -> None:
    """Undo what an earlier agent had begun: its caller got no answer, and will ask again."""
    try:
        await _take_back(context, container)
    except AgentError as error:
        log.warning("the update of container %s is not taken back: %s", container.id, error)


async def _take_back(context: RuntimeContext, container: Container) -> None:
    record = container.record
    incoming = record.incoming or ()
    deadline = Deadline.after(_ROLLBACK_TIMEOUT)
    step = _Steps(context, container, UndoStack(f"take back update of {container.id}"), deadline)
    old, new = container.placed(incoming), container.placed(record.granted)
    await step.set_rules({}, new)
    # What was to go may be gone already: `change_nodes` makes all that the other list lacks.
    await step.change_nodes(old, new)
    held = _ids(record.granted)
    container.save(replace(record, incoming=None, devices=held))
    _release(context, container, set(record.devices) - set(held))


class _Steps:
    """The steps of one update, each with what takes it back."""

    def __init__(
        self, context: RuntimeContext, container: Container, undo: UndoStack, deadline: Deadline
    ) -> None:
        self._context = context
        self._container = container
        self._undo = undo
        self._deadline = deadline
        first, record = container.first, container.record
        self.place = Place(
            container_id=record.id, pid=first.pid if first else 0, cgroup=record.cgroup
        )

    def hold(self, grants: Sequence[DeviceGrant] | None) -> tuple[Granted, ...]:
        """The whole new list, with its devices held; saved as being on its way."""
        record = self._container.record
        if grants is None:
            return record.granted
        known = {_target(each.grant): each for each in record.granted}
        self._undo.push("have the grants as before", lambda: self._let_go(record, grants))
        new = tuple(self._hold(grant, known.get(_target(grant))) for grant in grants)
        held = tuple(dict.fromkeys(record.devices + _ids(new)))
        self._container.save(replace(record, incoming=new, devices=held))
        return new

    def _hold(self, grant: DeviceGrant, former: Granted | None) -> Granted:
        """A device that was granted before may have vanished: then it is what it was, so
        that a list can change others, and leave it out."""
        try:
            device = self._context.devices.hold(grant.device_id, holder(self._container.id))
        except AgentError:
            if former is None:
                raise
            return grant_again(grant, former)
        return grant_device(grant, device)

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
        namespaces = self._container.bundle.config()["linux"]["namespaces"]
        moves = {each.key for each in old} != {each.key for each in new}
        if moves and any(each["type"] == "user" for each in namespaces):
            raise wrong_state(
                f"container {self._container.id} has users of its own (a user namespace):"
                " nodes can't come and go in it",
                hint="grant the devices when it is created",
                id=self._container.id,
            )

    async def limit(self, resources: dict[str, Any], old: Nodes, new: Nodes) -> None:
        """Limits and rights, in one call of the runtime."""
        cgroup = self._container.cgroup
        limits = cgroup.limits()
        if self._container.record.exclusive_cpus:
            # After the limits are written back, among them perhaps the cpuset.
            self._undo.push("claim its CPUs again", lambda: self._set_cpus(self._count))
        self._undo.push("set the limits back", lambda: cgroup.set_limits(limits))
        self._undo.push("set the device rules back", lambda: self._rollback().set_rules({}, old))
        await self.set_rules(resources, new)

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

    async def change_nodes(self, old: Nodes, new: Nodes) -> None:
        """Have the nodes of `new` instead of those of `old`; what both have is left alone."""
        before, after = {each.key for each in old}, {each.key for each in new}
        remove = [each for each in old if each.key not in after]
        make = [each for each in new if each.key not in before]
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


def _release(context: RuntimeContext, container: Container, device_ids: Iterable[str]) -> None:
    for device_id in device_ids:
        context.devices.release(device_id, holder(container.id))


def _ids(granted: Sequence[Granted]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.grant.device_id for each in granted))


def _target(grant: DeviceGrant) -> tuple[str, str | None]:
    """What is granted: which node of which device, wherever it goes."""
    return grant.device_id, grant.node
