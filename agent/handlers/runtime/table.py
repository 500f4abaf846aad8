"""The containers there are, and for a while the exits of those that were."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.core.errors import Reason, not_found, wrong_state
from agent.core.model import ContainerState, ContainerStatus, ProcessExit, ProcessRef
from agent.handlers.runtime.bundle import Bundle
from agent.handlers.runtime.departed import Departed
from agent.handlers.runtime.grants import effective, place
from agent.handlers.runtime.records import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.handlers.runtime.context import RuntimeContext, State
    from agent.handlers.runtime.grants import Granted, PlacedNode
    from agent.handlers.runtime.process import Process
    from agent.handlers.runtime.records import ContainerRecord


class Container:
    """One container; its first process has the exec id ""."""

    def __init__(self, context: RuntimeContext, record: ContainerRecord) -> None:
        self.record = record
        self.bundle = Bundle(context.roots, record.id)
        self.cgroup = context.cgroup(context.roots, record.cgroup)
        self.processes: dict[str, Process] = {}
        self.lost: set[str] = set()
        """Ids of devices that it was granted, that are gone, and that are not revoked yet."""
        self._context = context

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def first(self) -> Process | None:
        return self.processes.get("")

    @property
    def state(self) -> ContainerState:
        """Stopped when the journal says so, paused when the kernel says so; else as far as
        it was started."""
        if self.first is None or self.first.exit is not None:
            return ContainerState.STOPPED
        if self.record.phase in (Phase.CREATING, Phase.CREATED):
            return ContainerState.CREATED
        return ContainerState.PAUSED if self.cgroup.frozen else ContainerState.RUNNING

    @property
    def status(self) -> ContainerStatus:
        first = self.first
        return ContainerStatus(
            id=self.id,
            state=self.state,
            pid=first.pid if first else 0,
            exit=first.exit if first else None,
            devices=effective(self.record.granted, self.placed(self.record.granted)),
            exclusive_cpus=self._context.exclusive.of(self.id),
            created=self.record.created,
            started=self.record.started,
            arguments=self.record.arguments,
            cgroup=self.record.cgroup,
            terminal=self.record.terminal,
        )

    def placed(self, granted: Sequence[Granted]) -> tuple[PlacedNode, ...]:
        """Where these grants' nodes go; raises BAD_FIELD."""
        claims = {claim.path: claim for claim in self.record.claims}
        return place(granted, claims, self.record.owner)

    def mark(self, phase: Phase) -> None:
        """Save that this phase begins. Raises NO_SPACE."""
        self.save(replace(self.record, phase=phase))

    def save(self, record: ContainerRecord) -> None:
        """Raises NO_SPACE, and then the record is what it was."""
        self._context.state.save(record.KIND, record.key, record.to_data())
        self.record = record

    def require(self, doing: str, *states: ContainerState) -> None:
        """Raises WRONG_STATE unless the container is in one of the states and stays there."""
        if self.record.phase is Phase.REMOVING:
            raise wrong_state(
                f"container {self.id} is being removed: can't {doing}", id=self.id, state="removing"
            )
        if (state := self.state) not in states:
            raise wrong_state(
                f"container {self.id} is {state}, not {' or '.join(states)}: can't {doing}",
                hint="Containers.Resume ends the pause" if state is ContainerState.PAUSED else None,
                id=self.id,
                state=state,
            )


class ContainerTable:
    """Containers by id."""

    def __init__(self, state: State | None = None) -> None:
        self._containers: dict[str, Container] = {}
        self._departed = Departed(state)

    def restore(self) -> None:
        """Take over how processes ended that an earlier agent had forgotten."""
        self._departed.restore()

    def all(self) -> tuple[Container, ...]:
        return tuple(self._containers.values())

    def find(self, container_id: str) -> Container | None:
        return self._containers.get(container_id)

    def container(self, container_id: str) -> Container:
        """Raises UNKNOWN_CONTAINER."""
        found = self._containers.get(container_id)
        if found is None:
            raise not_found(
                f"there is no container {container_id!r}",
                reason=Reason.UNKNOWN_CONTAINER,
                hint="Containers.List shows those that are",
                id=container_id,
            )
        return found

    def process(self, ref: ProcessRef) -> Process:
        """Raises UNKNOWN_CONTAINER, UNKNOWN_PROCESS."""
        found = self.container(ref.container_id).processes.get(ref.exec_id)
        # Without a pid it is not made yet, or never will be.
        if found is None or not found.pid:
            raise not_found(
                f"container {ref.container_id} has no process {ref.exec_id!r}",
                reason=Reason.UNKNOWN_PROCESS,
                container=ref.container_id,
                exec=ref.exec_id,
            )
        return found

    def departed(self, ref: ProcessRef) -> ProcessExit | None:
        """The exit of a process that was forgotten less than a minute ago."""
        return self._departed.find(ref)

    def add(self, container: Container) -> None:
        self._containers[container.id] = container
        for exec_id in container.processes:
            self._departed.drop(ProcessRef(container_id=container.id, exec_id=exec_id))

    def remove(self, container: Container) -> None:
        """Forget the container, but not yet how its processes ended."""
        self._containers.pop(container.id, None)
        for process in container.processes.values():
            self.remember(process)

    def remember(self, process: Process) -> None:
        if process.exit is not None:
            self._departed.add(process.record.ref, process.exit)
