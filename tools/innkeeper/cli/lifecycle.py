"""`innkeeper pause`, `unpause`, `kill`, `rm`: what ends or stops containers that run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import grpc
import typer
from grpc import aio

from innkeeper.cli import each, options, refs, signals
from innkeeper.cli.errors import CliError
from innkeeper.cli.loop import wait_for
from innkeeper.v1 import (
    containers_pb2,
    containers_pb2_grpc,
    processes_pb2,
    processes_pb2_grpc,
)

if TYPE_CHECKING:
    from innkeeper.v1.containers_pb2 import ContainerStatus

_AFTER_THE_GRACE = 30.0
_LONGEST_GRACE = 86_400

TimeoutOption = Annotated[
    float, typer.Option(metavar="SECONDS", help="Time for it; 0 means the guest's default.")
]


def pause(
    vm: refs.VmArgument, containers: refs.ContainersArgument, timeout: TimeoutOption = 0
) -> None:
    """Stops the processes of containers for a while.

    They are not told. They keep what they have, and go on with `unpause`. A container
    that does not stop in time (a process waits for a device) goes on.

    \b
    Examples:
      innkeeper pause web main
      innkeeper pause web $(innkeeper ps -q web)
    """
    options.check_seconds("--timeout", timeout)

    async def action(channel: aio.Channel, container: str) -> ContainerStatus:
        request = containers_pb2.PauseContainerRequest(id=container, timeout_seconds=timeout)
        return await containers_pb2_grpc.ContainersStub(channel).Pause(request)

    raise typer.Exit(wait_for(each.of(vm, containers, action)))


def unpause(
    vm: refs.VmArgument, containers: refs.ContainersArgument, timeout: TimeoutOption = 0
) -> None:
    """Lets containers that are paused go on.

    `innkeeper resume` is the same.

    \b
    Examples:
      innkeeper unpause web main
      innkeeper resume web main
    """
    options.check_seconds("--timeout", timeout)

    async def action(channel: aio.Channel, container: str) -> ContainerStatus:
        request = containers_pb2.ResumeContainerRequest(id=container, timeout_seconds=timeout)
        return await containers_pb2_grpc.ContainersStub(channel).Resume(request)

    raise typer.Exit(wait_for(each.of(vm, containers, action)))


def kill(
    vm: refs.VmArgument,
    processes: refs.ProcessesArgument,
    *,
    signal: Annotated[
        str,
        typer.Option(
            "-s",
            "--signal",
            metavar="SIGNAL",
            help="By name or number: TERM, SIGHUP, RTMIN+3, 9.",
            autocompletion=signals.complete,
        ),
    ] = "KILL",
    all_: Annotated[
        bool, typer.Option("--all", help="Every process of the container, not only that one.")
    ] = False,
) -> None:
    """Sends a signal to processes.

    Without -s it is SIGKILL, which ends them. The first process of a container is its
    process 1: other signals reach it only when it handles them. A paused one gets them
    when it goes on, but SIGKILL at once.

    \b
    Examples:
      innkeeper kill web main
      innkeeper kill -s HUP web main
      innkeeper kill -s TERM web main/backup
      innkeeper kill -s USR1 --all web main
    """
    name = signals.parse(signal)
    for word in processes:
        if refs.parse(word).exec_id and all_:
            raise typer.BadParameter(f"--all is for containers; {word} is one process")

    async def action(channel: aio.Channel, word: str) -> processes_pb2.SignalResponse:
        request = processes_pb2.SignalRequest(process=refs.parse(word), all_processes=all_)
        if name.isdigit():
            request.signal = int(name)
        else:
            request.name = name
        return await processes_pb2_grpc.ProcessesStub(channel).Signal(request)

    raise typer.Exit(wait_for(each.of(vm, processes, action)))


def rm(
    vm: refs.VmArgument,
    containers: refs.ContainersArgument,
    *,
    force: Annotated[
        bool, typer.Option("-f", "--force", help="Ends it, if it runs; none there is fine.")
    ] = False,
    grace: Annotated[
        float,
        typer.Option(
            "-t",
            "--time",
            metavar="SECONDS",
            help="Ends it too: SIGTERM, and SIGKILL only after so long.",
        ),
    ] = 0,
) -> None:
    """Removes containers.

    Processes, logs and mounts go with them. One that runs is left alone, unless -f or
    --time say that it is to be ended: at once by -f, and after a time in which it may
    end by itself by --time.

    \b
    Examples:
      innkeeper rm web main
      innkeeper rm -f web main
      innkeeper rm --time 10 web main db
      innkeeper rm -f web $(innkeeper ps -aq web)
    """
    options.check_seconds("--time", grace)
    if grace > _LONGEST_GRACE:
        raise typer.BadParameter(f"--time {grace:g}: at most {_LONGEST_GRACE}")
    removal = Removal(vm=vm, grace=grace, ends=force or grace > 0, none_is_fine=force)
    raise typer.Exit(wait_for(each.of(vm, containers, removal.remove)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """How containers are removed."""

    vm: str
    grace: float = 0
    ends: bool = False
    """Also what runs."""
    none_is_fine: bool = False

    async def remove(self, channel: aio.Channel, container: str) -> None:
        """Raises aio.AioRpcError, CliError."""
        if not self.ends:
            await self._refuse_what_runs(channel, container)
        request = containers_pb2.RemoveContainerRequest(
            id=container,
            grace_seconds=self.grace,
            # 0 is the guest's default, which may be less than the grace.
            timeout_seconds=self.grace + _AFTER_THE_GRACE if self.grace else 0,
        )
        try:
            await containers_pb2_grpc.ContainersStub(channel).Remove(request)
        except aio.AioRpcError as error:
            if not (self.none_is_fine and error.code() is grpc.StatusCode.NOT_FOUND):
                raise

    async def _refuse_what_runs(self, channel: aio.Channel, container: str) -> None:
        if container in refs.ids_in(await refs.containers(channel), refs.ALIVE):
            raise CliError(
                f"container {container} runs",
                hint=f"innkeeper rm -f {self.vm} {container} ends it at once,"
                " --time 10 lets it end by itself first",
            )
