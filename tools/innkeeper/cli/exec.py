"""`innkeeper exec`: one more process in a container that runs."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from innkeeper.cli import broken, options, terminal, workload
from innkeeper.cli.errors import CliError
from innkeeper.cli.interrupts import Interrupts
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import find_vm
from innkeeper.v1 import containers_pb2, containers_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from grpc import aio


def exec_(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="VM [CONTAINER] -- CMD...",
            help="Where, and what. Without CONTAINER: the one that runs there.",
        ),
    ],
    *,
    tty: options.TerminalOption = False,
    stdin: options.StdinOption = True,
    env: options.EnvironmentOption = None,
    workdir: options.DirectoryOption = "",
    user: options.UserOption = "",
) -> None:
    """Runs one more command in a container, with our input and output.

    What is not given (variables, directory, user) is as for the container's
    first process. Exit codes are as for `innkeeper run`. Ctrl-C goes to the command; a second
    one kills it.

    \b
    Examples:
      innkeeper exec web -- ps
      innkeeper exec -t web main -- sh
      tar c src | innkeeper exec web main -- tar x -C /srv
    """
    vm, container, argv = split_words(words)
    given = options.parse_environment(env or [])
    process = workload.ProcessOptions(
        argv=argv,
        # An environment replaces that of the container.
        environment=workload.full_environment(given, with_terminal=tty) if given else (),
        directory=options.parse_directory(workdir),
        user=options.parse_user(user),
        terminal=tty,
        stdin=stdin,
    )
    raise typer.Exit(wait_for(exec_in(vm, container, process)))


def split_words(words: list[str]) -> tuple[str, str, tuple[str, ...]]:
    """VM, container (or empty) and command; raises typer.BadParameter."""
    where, argv = words, []
    if "--" in words:
        at = words.index("--")
        where, argv = words[:at], words[at + 1 :]
    if not argv or not 1 <= len(where) <= 2:
        raise typer.BadParameter(
            "write VM [CONTAINER] -- CMD..., as in: innkeeper exec web -- ps"
            " (options come before the VM)"
        )
    return where[0], where[1] if len(where) == 2 else "", tuple(argv)


async def exec_in(vm_name: str, container: str, options: workload.ProcessOptions) -> int:
    """The exit code; raises what is in errors.EXPECTED."""
    if options.terminal:
        terminal.require()
    vm = find_vm(vm_name)
    async with vm.channel() as channel, Interrupts() as interrupts:
        try:
            async with broken.explained(vm, channel):
                process = types_pb2.ProcessRef(
                    container_id=container or await _only_container(channel, vm_name),
                    exec_id=f"exec-{secrets.token_hex(4)}",
                )
                return await _start_and_follow(channel, process, options, interrupts)
        except (asyncio.CancelledError, BrokenPipeError) as error:
            return interrupts.code_of(error)


async def _start_and_follow(
    channel: aio.Channel,
    process: types_pb2.ProcessRef,
    options: workload.ProcessOptions,
    interrupts: Interrupts,
) -> int:
    await workload.start_exec(channel, process, options)
    try:
        return await workload.follow(channel, process, options, interrupts)
    except (asyncio.CancelledError, BrokenPipeError, CliError):
        await workload.kill(channel, process)
        raise


async def _only_container(channel: aio.Channel, vm_name: str) -> str:
    stub = containers_pb2_grpc.ContainersStub(channel)
    answer = await stub.List(containers_pb2.ListContainersRequest())
    running = workload.container_ids(answer.containers)
    if len(running) == 1:
        return running[0]
    found = f"{len(running)} run ({', '.join(running)})" if running else "none runs"
    raise CliError(
        f"VM {vm_name}: no container was named, and {found}",
        hint=f"innkeeper exec {vm_name} CONTAINER -- CMD..."
        if running
        else f"run one with: innkeeper run --vm {vm_name} -- CMD...",
    )
