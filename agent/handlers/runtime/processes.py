"""Processes in containers: exec, signals, exits, terminals, streams."""

from __future__ import annotations

import json
import signal as signals
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, already_exists, invalid, wrong_state
from agent.core.life import Until
from agent.core.model import ContainerState, ProcessExit, ProcessRef, Stream
from agent.core.names import check_id
from agent.core.undo import UndoStack
from agent.handlers.runtime.cgroup import is_over, signal_member
from agent.handlers.runtime.ends import UNDONE, asked
from agent.handlers.runtime.launch import launch
from agent.handlers.runtime.records import ProcessRecord, fingerprint
from agent.handlers.runtime.runtime import ExecCall, Stdio
from agent.handlers.runtime.spec import accounts, support
from agent.handlers.runtime.spec.configuration import parse_process
from agent.handlers.runtime.spec.environment import translate_env
from agent.handlers.runtime.spec.process import added, exec_defaults, has_terminal
from agent.handlers.runtime.undone import kill_left

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from agent.core.model import ExecRequest, OutputChunk, OutputGap, WindowSize
    from agent.handlers.runtime.containers import Containers
    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.process import Process
    from agent.handlers.runtime.table import Container

DEFAULT_TIMEOUT = 30.0
"""Seconds for an exec that brings no timeout (processes.proto)."""

_DOING = "run a process in it"
_LAST_SIGNAL = 64
_LARGEST_WINDOW = 65535


class Processes:
    """The processes of all containers."""

    def __init__(self, context: RuntimeContext, containers: Containers) -> None:
        self._context = context
        self._containers = containers
        self._table = containers.table

    async def exec(self, request: ExecRequest) -> int:
        """Run one more process in a running container; returns its pid.

        The same request again is answered with the same pid, also when that
        process has ended. When all of its callers have left before it runs, it is
        taken back. Raises BAD_ID, BAD_SPEC, UNKNOWN_CONTAINER, WRONG_STATE,
        ID_IN_USE, LIMIT_REACHED, RUNTIME_REFUSED; after an error nothing is left of it.
        """
        check_id("exec", request.exec_id)
        wanted = parse_process(request.process)
        deadline = Deadline.of_request(request.timeout, DEFAULT_TIMEOUT)
        self._table.container(request.container_id)
        key = f"{request.container_id}:{request.exec_id}"
        work = partial(self._exec, request, wanted, deadline)
        wish = "exec " + fingerprint(request)
        return await self._containers.turn(key, work, deadline, wish=wish)

    async def signal(self, ref: ProcessRef, signal: int, *, all_processes: bool = False) -> None:
        """Send a signal, as it is: the first process of a container with pids of its own
        ignores what it doesn't handle, but for SIGKILL and SIGSTOP (pid_namespaces(7)).

        To one that has ended it goes to nobody, without an error; one that is paused gets
        it and handles it when it is resumed, but SIGKILL ends it at once. With
        `all_processes` every process of the container gets it, also when the
        first has ended. Raises UNKNOWN_CONTAINER, UNKNOWN_PROCESS, BAD_FIELD.
        """
        if not 1 <= signal <= _LAST_SIGNAL:
            raise invalid(f"there is no signal {signal}: 1 to {_LAST_SIGNAL}", field="signal")
        if all_processes:
            _signal_all(self._whole_container(ref), self._context, signal)
        else:
            self._known(ref, signal)

    def _known(self, ref: ProcessRef, signal: int) -> None:
        """One that was forgotten less than a minute ago has ended, and counts as known."""
        container = self._table.find(ref.container_id)
        gone = container is None or ref.exec_id not in container.processes
        if not (gone and self._table.departed(ref)):
            self._table.process(ref).signal(signal, asked(signal))

    async def wait(self, ref: ProcessRef) -> ProcessExit:
        """How the process ended, when it has; for 60 s also after it was forgotten.

        Raises UNKNOWN_CONTAINER, UNKNOWN_PROCESS.
        """
        container = self._table.find(ref.container_id)
        if container is None or ref.exec_id not in container.processes:
            end = self._table.departed(ref)
            if end is not None:
                return end
        return await self._table.process(ref).wait()

    async def resize(self, ref: ProcessRef, size: WindowSize) -> None:
        """Set the terminal's size, from the creation to the end of its process.

        Raises BAD_FIELD, NO_TERMINAL, WRONG_STATE, UNKNOWN_CONTAINER, UNKNOWN_PROCESS.
        """
        for name, number in (("rows", size.rows), ("columns", size.columns)):
            if not 1 <= number <= _LARGEST_WINDOW:
                raise invalid(f"{number} {name}: 1 to {_LARGEST_WINDOW}", field=f"size.{name}")
        process = self._table.process(ref)
        if not process.record.terminal:
            raise wrong_state(
                f"process {process.record.key} has no terminal",
                reason=Reason.NO_TERMINAL,
                hint="set process.terminal in its specification",
            )
        if process.exit is not None:
            raise wrong_state(f"process {process.record.key} has ended")
        process.streams.resize(size.rows, size.columns)

    def has_terminal(self, ref: ProcessRef) -> bool:
        """Raises UNKNOWN_CONTAINER, UNKNOWN_PROCESS."""
        return self._table.process(ref).record.terminal

    def input_offset(self, ref: ProcessRef) -> int:
        """Offset of the next byte of input; raises UNKNOWN_CONTAINER, UNKNOWN_PROCESS."""
        return self._table.process(ref).streams.input_offset

    def stderr_tail(self, ref: ProcessRef, count: int) -> bytes:
        """The last `count` bytes of its standard error, or of its terminal's output, as far
        as they are kept; nothing of one that is forgotten."""
        container = self._table.find(ref.container_id)
        process = container.processes.get(ref.exec_id) if container else None
        return process.tail(count) if process else b""

    async def output(
        self,
        ref: ProcessRef,
        offsets: Mapping[Stream, int],
        *,
        until: Until = Until.EXIT,
        may_miss: bool = False,
        reader: str = "",
    ) -> AsyncGenerator[OutputChunk | OutputGap, None]:
        """The streams named in `offsets`, each from its absolute offset.

        Each ends with a chunk whose `end` is set: with Until.END at its own end, else at
        what was written until the process ended. A terminal has no standard error: that
        ends at once. A reader that `may_miss` holds nobody up, and is told of gaps; so is
        every reader of a process with a log, which waits for nothing else. `reader` is an id,
        by which a reader that comes back is known; its place is kept for a while.
        Raises OUT_OF_RANGE (OFFSET_NOT_KEPT with the oldest offset), BAD_FIELD,
        UNKNOWN_CONTAINER, UNKNOWN_PROCESS.
        """
        process = self._table.process(ref)
        if Stream.STDIN in offsets or any(offset < 0 for offset in offsets.values()):
            raise invalid("output is stdout and stderr, from offset 0 or later", field="offsets")
        may_miss = may_miss or process.log is not None
        reading = process.streams.output(offsets, until=until, may_miss=may_miss, reader=reader)
        async with aclosing(reading) as chunks:
            async for chunk in chunks:
                yield chunk
        self._containers.retention.read(process)

    def acknowledge(self, ref: ProcessRef, stream: Stream, offset: int, reader: str = "") -> None:
        """The host has all before `offset` for good; what it has not is kept for it.

        Raises OUT_OF_RANGE, UNKNOWN_CONTAINER, UNKNOWN_PROCESS.
        """
        self._table.process(ref).streams.acknowledge(stream, offset, reader)

    async def write_input(self, ref: ProcessRef, offset: int, data: bytes) -> int:
        """Take input from an absolute offset on; returns the acknowledged offset.

        Waits while the process doesn't read. Raises OUT_OF_RANGE for a gap,
        INPUT_CLOSED, NO_SPACE, UNKNOWN_CONTAINER, UNKNOWN_PROCESS.
        """
        return await self._table.process(ref).streams.write_input(offset, data)

    async def close_input(self, ref: ProcessRef, offset: int) -> None:
        """End the input after `offset` bytes; a second time with the same is fine.

        A terminal has no end: the process gets the end-of-file character (control-D)
        if it reads line by line. Raises OUT_OF_RANGE unless all is acknowledged
        before, UNKNOWN_CONTAINER, UNKNOWN_PROCESS.
        """
        self._table.process(ref).close_input(offset)

    async def _exec(self, request: ExecRequest, wanted: dict[str, Any], deadline: Deadline) -> int:
        container = self._table.container(request.container_id)
        if (known := container.processes.get(request.exec_id)) is not None:
            return _repeated(known, request)
        container.require(_DOING, ContainerState.RUNNING)
        await self._containers.retention.make_room(container)
        whole = await self._whole(container, request, wanted, deadline)
        process = self._containers.new_process(
            ProcessRecord(
                container_id=container.id,
                exec_id=request.exec_id,
                fingerprint=fingerprint(request),
                cgroup=container.record.cgroup,
                terminal=has_terminal(whole),
                after=await self._context.exits.note(),
                streams=request.streams,
            )
        )
        async with UndoStack(f"exec {process.record.key}") as undo:
            undo.push("forget its log", process.log.discard if process.log else lambda: None)
            undo.push("forget it", process.forget)
            undo.push("remove its files", lambda: container.bundle.remove_exec(request.exec_id))
            undo.push("end it", lambda: self._end(container, process))
            container.processes[request.exec_id] = process
            undo.push("forget its name", lambda: container.processes.pop(request.exec_id, None))
            try:
                await self._launch(container, process, whole, deadline)
            except AgentError as error:
                if error.reason is Reason.RUNTIME_REFUSED:
                    # It may have been paused or ended meanwhile, which says more.
                    _require_running(container, self._context)
                raise
            undo.commit()
        container.bundle.remove_exec(request.exec_id)
        return process.pid

    async def _whole(
        self,
        container: Container,
        request: ExecRequest,
        wanted: dict[str, Any],
        deadline: Deadline,
    ) -> dict[str, Any]:
        """With the container's own for what is absent, and its users by number."""
        if env := wanted.get("env"):
            # Its own; what it inherits is translated already.
            env = translate_env(env, container.record.granted, container.id)
            wanted = {**wanted, "env": env}
        first = accounts.without_given_home(container.bundle.config()["process"])
        whole = exec_defaults(wanted, first)
        more = translate_env(list(request.more_environment), container.record.granted, container.id)
        whole["env"] = added(whole.get("env", ()), more)
        support.check_exec(whole, await self._context.support())
        if container.first is None:
            return whole
        return await accounts.resolve_exec(self._context, whole, container.first.record, deadline)

    async def _launch(
        self, container: Container, process: Process, whole: dict[str, Any], deadline: Deadline
    ) -> None:
        bundle, exec_id = container.bundle, process.record.exec_id

        async def make(stdio: Stdio) -> int:
            call = ExecCall(
                id=container.id,
                process_file=bundle.write_exec(exec_id, json.dumps(whole, ensure_ascii=False)),
                pid_file=bundle.exec_pid_file(exec_id),
                oom_score=int(whole.get("oomScoreAdj") or 0),
                stdio=stdio,
            )
            return await self._context.runtime.exec(call, deadline)

        await launch(self._context, process, make, deadline)

    async def _end(self, container: Container, process: Process) -> None:
        """Kill what came of a failed exec; the runtime may have been cut off after its work."""
        process.note(signals.SIGKILL, UNDONE)
        record = process.record
        pid = process.pid or container.bundle.exec_pid(record.exec_id)
        if pid:
            signal_member(self._context.roots, pid, record.cgroup, signals.SIGKILL)
        pid_file = str(container.bundle.exec_pid_file(record.exec_id))
        await kill_left(self._context, container, pid_file, process.streams.pipes)

    def _whole_container(self, ref: ProcessRef) -> Container:
        if ref.exec_id:
            raise invalid(
                "all processes are those of a container: name no exec with `all_processes`",
                field="all_processes",
            )
        return self._table.container(ref.container_id)


def _require_running(container: Container, context: RuntimeContext) -> None:
    """Raises WRONG_STATE with the state that it is in, if that is another one by now."""
    container.require(_DOING, ContainerState.RUNNING)
    first = container.first
    if first is not None and is_over(context.roots, first.pid, first.record.cgroup):
        # The journal, which the container's state goes by, may tell it only later.
        stopped = ContainerState.STOPPED
        raise wrong_state(
            f"container {container.id} is {stopped}, not {ContainerState.RUNNING}: can't {_DOING}",
            id=container.id,
            state=stopped,
        )


def _signal_all(container: Container, context: RuntimeContext, number: int) -> None:
    # Before it is sent: who ends of it at once has an end that says so.
    for process in container.processes.values():
        process.note(number, asked(number))
    if number == signals.SIGKILL:
        # The kernel also gets those that come into being meanwhile.
        container.cgroup.kill()
        return
    for pid in container.cgroup.members():
        signal_member(context.roots, pid, container.record.cgroup, number)


def _repeated(known: Process, request: ExecRequest) -> int:
    if known.record.fingerprint != fingerprint(request):
        raise already_exists(
            f"container {request.container_id} has another process {request.exec_id}",
            reason=Reason.ID_IN_USE,
            hint="choose another id",
            id=request.exec_id,
        )
    return known.pid
