"""`innkeeper ps`: containers of a VM, or the processes of one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from innkeeper.cli import completion, endings, options, output, records, refs, times
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import find_vm
from innkeeper.shim.errors import printable
from innkeeper.v1 import containers_pb2, processes_pb2, processes_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpc import aio

    from innkeeper.v1.containers_pb2 import ContainerStatus
    from innkeeper.v1.processes_pb2 import ProcessInfo

CONTAINERS = ("ID", "STATE", "AGE", "PID", "COMMAND")
PROCESSES = (
    "PID",
    "INSIDE",
    "PARENT",
    "UID",
    "STATE",
    "CPU",
    "MEMORY",
    "AGE",
    "TTY",
    "IS",
    "COMMAND",
)

_STATE = containers_pb2.DESCRIPTOR.enum_types_by_name["ContainerState"]
_LONGEST = 80


def ps(
    vm: refs.VmArgument,
    container: Annotated[
        str,
        typer.Argument(
            metavar="CONTAINER",
            help="Show its processes.",
            autocompletion=completion.containers,
            show_default=False,
        ),
    ] = "",
    *,
    all_: Annotated[
        bool, typer.Option("-a", "--all", help="Those too that were not started, or have ended.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only ids, or pids.")] = False,
    no_trunc: Annotated[bool, typer.Option("--no-trunc", help="Commands in full.")] = False,
    json: options.JsonOption = False,
) -> None:
    """Shows the containers of a VM, or the processes of a container.

    AGE is the time since it was created (a process: since it began), CPU the time that
    it has had, MEMORY what it has resident. PID is the number in the VM, INSIDE the one
    that the container itself sees. IS says which processes are the container's first one
    (CONTAINER) and those of `exec` (CONTAINER/EXEC).

    \b
    Examples:
      innkeeper ps web
      innkeeper ps -a web
      innkeeper ps web main
      innkeeper rm web $(innkeeper ps -aq web)
      innkeeper ps web --json | jq -r '.[] | select(.terminal) | .id'
    """
    if container and all_:
        raise typer.BadParameter("-a is for containers; all processes of one are shown anyway")
    longest = 0 if no_trunc else _LONGEST
    if container:
        inside = wait_for(_processes(vm, container))
        ids, table = [str(each.pid) for each in inside], process_table(inside, longest)
    else:
        found = wait_for(_containers(vm, everything=all_))
        ids, table = [each.id for each in found], container_table(found, longest)
    if json:
        output.say_json([records.record(each) for each in (inside if container else found)])
    elif quiet:
        _say_each(ids)
    else:
        output.table(*table)


async def _containers(vm: str, *, everything: bool) -> Sequence[ContainerStatus]:
    async with find_vm(vm).channel() as channel:
        found = await refs.containers(channel)
    return [each for each in found if everything or each.state in refs.ALIVE]


async def _processes(vm: str, container: str) -> Sequence[ProcessInfo]:
    async with find_vm(vm).channel() as channel:
        return await processes(channel, container)


async def processes(channel: aio.Channel, container: str) -> Sequence[ProcessInfo]:
    """All of a container, by pid."""
    request = processes_pb2.ListProcessesRequest(container_id=container)
    return (await processes_pb2_grpc.ProcessesStub(channel).List(request)).processes


def _say_each(lines: Sequence[str]) -> None:
    if lines:
        output.say("\n".join(lines))


def container_table(
    statuses: Sequence[ContainerStatus], longest: int = _LONGEST
) -> tuple[Sequence[str], list[list[str]]]:
    """Columns and rows."""
    return CONTAINERS, [_container_row(each, longest) for each in statuses]


def _container_row(status: ContainerStatus, longest: int) -> list[str]:
    return [
        status.id,
        state(status),
        times.age(status.created_unix_micros),
        str(status.pid or "-"),
        command(status.arguments, longest),
    ]


def state(status: ContainerStatus) -> str:
    """ "running", "exited (3)"."""
    if status.state == refs.STOPPED and status.HasField("exit"):
        return endings.short(status.exit)
    return records.word(_STATE, status.state)


def process_table(
    found: Sequence[ProcessInfo], longest: int = _LONGEST
) -> tuple[Sequence[str], list[list[str]]]:
    """Columns and rows."""
    return PROCESSES, [_process_row(each, longest) for each in found]


def _process_row(process: ProcessInfo, longest: int) -> list[str]:
    return [
        str(process.pid),
        str(process.container_pid or "-"),
        str(process.parent_pid),
        str(process.user_id),
        printable(process.state),
        times.cpu_time(process.cpu_micros),
        output.size(process.resident_bytes),
        times.age(process.started_unix_micros),
        terminal_name(process.terminal),
        refs.text(process.process) or "-",
        process_command(process, longest),
    ]


def terminal_name(number: int) -> str:
    """ "pts/0" by its device number (admin-guide/devices.txt), "-" without one."""
    major, minor = number >> 8, number & 0xFF
    if not number:
        return "-"
    return f"pts/{minor}" if 136 <= major <= 143 else f"{major}:{minor}"


def process_command(process: ProcessInfo, longest: int = _LONGEST) -> str:
    """Its arguments; as ps(1) has it, the name in brackets when there are none."""
    return command(process.arguments, longest) or f"[{printable(process.name)}]"


def command(arguments: Sequence[str], longest: int = _LONGEST) -> str:
    """As a shell would take it; cut to `longest` characters, 0 for all."""
    text = printable(shlex.join(arguments)).replace("\t", " ")
    return f"{text[: longest - 1]}…" if longest and len(text) > longest else text
