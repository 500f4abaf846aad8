"""Containers and processes as the command line names them: CONTAINER, CONTAINER/EXEC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from innkeeper.cli import completion, hints
from innkeeper.cli.errors import CliError
from innkeeper.v1 import containers_pb2, containers_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from grpc import aio

CREATED = containers_pb2.CONTAINER_STATE_CREATED
RUNNING = containers_pb2.CONTAINER_STATE_RUNNING
STOPPED = containers_pb2.CONTAINER_STATE_STOPPED
PAUSED = containers_pb2.CONTAINER_STATE_PAUSED
ALIVE = frozenset({RUNNING, PAUSED})

VmArgument = Annotated[
    str,
    typer.Argument(
        metavar="VM",
        help="Name of the VM.",
        callback=hints.about,
        autocompletion=completion.vms,
    ),
]
ContainerArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONTAINER", help="The container.", autocompletion=completion.containers
    ),
]
ContainersArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="CONTAINER...", help="The containers.", autocompletion=completion.containers
    ),
]
AnyContainersArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONTAINER...",
        help="Only these; else all that run.",
        autocompletion=completion.containers,
        show_default=False,
    ),
]
ProcessArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONTAINER[/EXEC]",
        help="The container's first process, or one of `exec`.",
        autocompletion=completion.containers,
    ),
]
ProcessesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="CONTAINER[/EXEC]...",
        help="First processes of containers, or those of `exec`.",
        autocompletion=completion.containers,
    ),
]


def parse(word: str) -> types_pb2.ProcessRef:
    """CONTAINER[/EXEC]; raises typer.BadParameter."""
    container, slash, exec_id = word.partition("/")
    if not container or bool(slash) != bool(exec_id) or "/" in exec_id:
        raise typer.BadParameter(f"{word!r}: write CONTAINER or CONTAINER/EXEC, as in main/exec-1")
    return types_pb2.ProcessRef(container_id=container, exec_id=exec_id)


def text(process: types_pb2.ProcessRef) -> str:
    """CONTAINER, or CONTAINER/EXEC."""
    ids = (process.container_id, process.exec_id)
    return "/".join(word for word in ids if word)


async def containers(channel: aio.Channel) -> list[containers_pb2.ContainerStatus]:
    """All there are, by id."""
    stub = containers_pb2_grpc.ContainersStub(channel)
    return list((await stub.List(containers_pb2.ListContainersRequest())).containers)


async def only(
    channel: aio.Channel,
    vm: str,
    usage: str,
    *,
    states: Collection[containers_pb2.ContainerState.ValueType] = (RUNNING,),
) -> str:
    """The id of the one container in one of the states. Raises CliError, with `usage` as the
    way out, for none and for several."""
    found = ids_in(await containers(channel), states)
    if len(found) == 1:
        return found[0]
    told = f"{len(found)} run ({', '.join(found)})" if found else "none runs"
    raise CliError(
        f"VM {vm}: no container was named, and {told}",
        hint=usage if found else f"run one with: innkeeper run --vm {vm} -- CMD...",
    )


def ids_in(
    statuses: Iterable[containers_pb2.ContainerStatus],
    states: Collection[containers_pb2.ContainerState.ValueType],
) -> list[str]:
    """Ids of the containers that are in one of the states."""
    return [status.id for status in statuses if status.state in states]
