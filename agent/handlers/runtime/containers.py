"""Containers: create, start, pause, update, remove, and what is taken over after a restart.

Operations on one container take turns (turns.py). A container enters the table
when it is created, and leaves it when nothing of it is left. Exits come from
the journal only, at any time, whatever operation is going on.

    create      start        pause
    ------> CREATED ---> RUNNING ---> PAUSED
                           |  <------- resume
                         STOPPED <---  its first process has ended
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, already_exists, wrong_state
from agent.core.model import ContainerState, ContainerStatus
from agent.core.names import check_id
from agent.core.turns import Requests, Turns
from agent.core.undo import UndoStack
from agent.handlers.runtime import etcfiles, hooks, interfaces, update
from agent.handlers.runtime.creating import Creation, new_record
from agent.handlers.runtime.exitdetails import details_of
from agent.handlers.runtime.process import Process
from agent.handlers.runtime.records import ContainerRecord, Phase, ProcessRecord, fingerprint
from agent.handlers.runtime.removing import Removal, refusal, remove_parent
from agent.handlers.runtime.restore import restore
from agent.handlers.runtime.retention import Retention
from agent.handlers.runtime.runtime import RuntimeState
from agent.handlers.runtime.spec import configuration as oci
from agent.handlers.runtime.spec import support
from agent.handlers.runtime.spec.network import wanted_interfaces
from agent.handlers.runtime.starting import inside_failure, start_with_hooks
from agent.handlers.runtime.table import Container, ContainerTable
from agent.handlers.runtime.teardown import push_teardown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from agent.core.model import ContainerRequest, ContainerUpdate
    from agent.core.network import DnsState
    from agent.handlers.runtime.context import RuntimeContext

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 30.0
"""Seconds for one operation that brings no timeout (containers.proto)."""

_ROLLBACK_TIMEOUT = 15.0
"""Seconds for taking a failed create back, whatever its own deadline was."""

_CREATION = "create "
"""What the wish of a request (core.turns) begins with that is a create."""

T = TypeVar("T")


class Containers:
    """The containers of the sandbox, by id."""

    def __init__(self, context: RuntimeContext) -> None:
        self.table = ContainerTable(context.state)
        self.turns = Turns()
        self.retention = Retention(self.table, self.turns)
        self._requests = Requests(self.turns)
        self._closed = False
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

        The same request again is answered with the container's status. When all of
        its callers have left, it is taken back. Raises BAD_ID, BAD_SPEC, BAD_FIELD before
        anything is done; ID_IN_USE, WRONG_STATE (it, or the sandbox, is being removed),
        UNKNOWN_STORAGE, UNKNOWN_DEVICE, RUNTIME_REFUSED and others with nothing left behind.
        """
        check_id("container", request.id)
        spec = oci.parse_spec(request.spec)
        wanted_interfaces(spec, request.interfaces)
        deadline = Deadline.of_request(request.timeout, DEFAULT_TIMEOUT)
        if self._closed:
            raise refusal(request.id, sandbox_gone=True)
        return await self._requests.take(
            request.id,
            lambda: self._create(request, spec, deadline),
            deadline,
            wish=_CREATION + fingerprint(request),
        )

    def being_created(self) -> tuple[str, ...]:
        """Ids of those that are in no table yet."""
        wished = self._requests.wished(_CREATION)
        return tuple(each for each in wished if self.table.find(each) is None)

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Refuse to create any meanwhile; those that are under way go on."""
        self._closed = True
        try:
            yield
        finally:
            self._closed = False

    async def start(self, container_id: str, timeout: float | None = None) -> ContainerStatus:
        """Let the container's process run; a second time is answered with its status.

        When all of its callers have left, it is given up. Raises UNKNOWN_CONTAINER,
        WRONG_STATE, RUNTIME_REFUSED, HOOK_FAILED (and then it has stopped).
        """
        return await self._change(container_id, timeout, self._start, wish="start")

    async def pause(self, container_id: str, timeout: float | None = None) -> ContainerStatus:
        """Stop all its processes until it is resumed; a second time is fine.

        When all of its callers have left before that, everybody runs again. Raises
        UNKNOWN_CONTAINER, WRONG_STATE, OPERATION_TIMED_OUT with everybody running.
        """
        return await self._change(container_id, timeout, self._pause, wish="pause")

    async def resume(self, container_id: str, timeout: float | None = None) -> ContainerStatus:
        """End its pause; one that runs is answered with its status.

        Raises UNKNOWN_CONTAINER, WRONG_STATE, OPERATION_TIMED_OUT.
        """
        return await self._change(container_id, timeout, self._resume, wish="resume")

    async def update(self, change: ContainerUpdate) -> ContainerStatus:
        """Change limits, device grants and exclusive CPUs, all of it or nothing.

        When all of its callers have left before it is done, it is taken back. Raises
        BAD_SPEC, BAD_FIELD, UNKNOWN_CONTAINER, UNKNOWN_DEVICE, WRONG_STATE (it is
        paused, has ended, or a new node can't be made in it), CPUS_EXHAUSTED,
        RUNTIME_REFUSED, NOT_SUPPORTED.
        """
        check_id("container", change.id)
        resources = oci.parse_resources(change.resources) if change.resources else None

        async def work(container: Container, deadline: Deadline) -> None:
            container.require("update it", ContainerState.CREATED, ContainerState.RUNNING)
            if resources is not None:
                support.check_resources(resources, await self._context.support())
            await update.apply(self._context, container, change, resources, deadline)

        wish = "update " + fingerprint(change)
        return await self._change(change.id, change.timeout, work, wish=wish)

    async def remove(
        self,
        container_id: str,
        grace: float,
        timeout: float | None,
        *,
        sandbox_gone: bool = False,
    ) -> None:
        """End the container (SIGTERM, SIGKILL after `grace` seconds) and remove all of it.

        What else is asked of it is stopped first; one that is being created is taken back.
        `sandbox_gone` is what its processes are told to have died of, else it is the removal.
        Raises UNKNOWN_CONTAINER; OPERATION_TIMED_OUT and others when something
        stays, and then it can be asked for again.
        """
        unmade = container_id in self.being_created()
        if not unmade:
            self.table.container(container_id)
        deadline = Deadline.of_request(timeout, DEFAULT_TIMEOUT)

        async def work() -> None:
            if not unmade or self.table.find(container_id) is not None:
                await self._remove(container_id, deadline, grace=grace, sandbox_gone=sandbox_gone)
            elif sandbox_gone:
                remove_parent(self._context)

        why = refusal(container_id, sandbox_gone=sandbox_gone)
        self._requests.stop(lambda key: key == container_id, why)
        await self._requests.take(container_id, work, deadline, firm=True)

    async def remove_all(self) -> tuple[tuple[str, AgentError], ...]:
        """Remove every container at once; returns those that stay, and why."""
        ids = [container.id for container in self.table.all()]
        removals = (self.remove(container_id, 0.0, None) for container_id in ids)
        outcomes = await asyncio.gather(*removals, return_exceptions=True)
        left = zip(ids, outcomes, strict=True)
        return tuple((i, error) for i, error in left if isinstance(error, AgentError))

    async def turn(
        self,
        key: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        deadline: Deadline,
        *,
        wish: str,
    ) -> T:
        """The result of `work` as the next turn under this key, see core.turns.Requests.

        Raises OPERATION_TIMED_OUT when that does not come before the deadline, WRONG_STATE
        when the container's removal has stopped it.
        """
        return await self._requests.take(key, work, deadline, wish=wish)

    async def _change(
        self,
        container_id: str,
        timeout: float | None,
        work: Callable[[Container, Deadline], Awaitable[None]],
        *,
        wish: str,
    ) -> ContainerStatus:
        """Do it as the container's next turn; the status after it."""
        self.table.container(container_id)
        deadline = Deadline.of_request(timeout, DEFAULT_TIMEOUT)

        async def whole() -> ContainerStatus:
            container = self.table.container(container_id)
            await work(container, deadline)
            return container.status

        return await self._requests.take(container_id, whole, deadline, wish=wish)

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
        self.turns.enqueue(
            container.id,
            lambda: self._remove(container.id, Deadline.after(_ROLLBACK_TIMEOUT)),
        )

    async def _create(
        self, request: ContainerRequest, spec: dict[str, Any], deadline: Deadline
    ) -> ContainerStatus:
        if (known := self.table.find(request.id)) is not None:
            return _repeated(known, request)
        container = Container(self._context, new_record(self._context, request, spec))
        creation = Creation(self._context, container, request, deadline)
        undo = UndoStack(f"create container {request.id}")
        try:
            async with undo:
                # Time of its own, that begins when it does.
                rollback = partial(Deadline.after, _ROLLBACK_TIMEOUT)
                push_teardown(undo, self._context, container, rollback, undone=True)
                await creation.run(spec, self.new_process)
                # Of one that vanished meanwhile nobody was told: it is in no table yet.
                creation.hold_devices()
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

    async def _start(self, container: Container, deadline: Deadline) -> None:
        if container.record.phase is Phase.STARTING:
            # An earlier one could not be brought to its end.
            await self.find_out(container)
        # Also when it has ended meanwhile: a host that lost the answer asks again.
        if container.record.phase is Phase.STARTED and container.state is not ContainerState.PAUSED:
            return
        container.require("start it", ContainerState.CREATED)
        container.mark(Phase.STARTING)
        try:
            came = await start_with_hooks(self._context, container, deadline)
        except (AgentError, asyncio.CancelledError):
            await self.find_out(container)
            raise
        self._started(container)
        self._context.events.publish("container_started", container.id)
        self.announce_exit(container)
        if not came:
            raise await inside_failure(container)

    def _started(self, container: Container) -> None:
        container.save(replace(container.record, phase=Phase.STARTED, started=time.time()))
        for failure in hooks.logged_failures(container.bundle.path):
            log.warning("container %s: %s", container.id, failure)

    async def _pause(self, container: Container, deadline: Deadline) -> None:
        container.require("pause it", ContainerState.RUNNING, ContainerState.PAUSED)
        paused = container.state is ContainerState.PAUSED
        try:
            await container.cgroup.freeze(deadline)
        except (AgentError, asyncio.CancelledError):
            self._context.events.publish("container_resumed", container.id, {"why": "failed"})
            raise
        if not paused:
            self._context.events.publish("container_paused", container.id)

    async def _resume(self, container: Container, deadline: Deadline) -> None:
        container.require("resume it", ContainerState.RUNNING, ContainerState.PAUSED)
        if container.state is ContainerState.RUNNING:
            return
        try:
            await container.cgroup.thaw(deadline)
        finally:
            # Also when nobody waits any more until the kernel has done what it was told.
            if not container.cgroup.frozen:
                self._context.events.publish("container_resumed", container.id, {"why": "asked"})

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
        if waits or self._context.runtime.is_held(container.id):
            container.mark(Phase.CREATED)
        else:
            self._started(container)
        self.announce_exit(container)

    def announce_exit(self, container: Container) -> None:
        """Publish an exit that came before the event that comes first."""
        if container.first is not None and container.first.is_over:
            self._exited(container.first)

    async def _remove(
        self,
        container_id: str,
        deadline: Deadline,
        *,
        grace: float = 0.0,
        sandbox_gone: bool = False,
    ) -> None:
        container = self.table.container(container_id)
        announced = container.record.phase is not Phase.CREATING
        with contextlib.suppress(AgentError):
            # A full run directory must not keep anyone from making space.
            container.mark(Phase.REMOVING)
        for leave in self._visitors:
            await leave(container_id)
        removal = Removal(
            self._context, container, deadline, grace=grace, sandbox_gone=sandbox_gone
        )
        await removal.end(self.turns, self._requests)
        await removal.clear(undone=not announced)
        self._context.state.delete(ContainerRecord.KIND, container_id)
        self.table.remove(container)
        if announced:
            self._context.events.publish("container_removed", container_id)
        if sandbox_gone:
            remove_parent(self._context)

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
        details = details_of(end) | {"pid": str(process.pid)}
        self._context.events.publish("process_exited", subject, details)
        if ref.exec_id:
            self.retention.exited(process)
        else:
            self.fetch_interfaces(container)


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
