"""`innkeeper exec`: one more process in a container that runs."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from innkeeper.cli import (
    broken,
    completion,
    detach,
    hints,
    options,
    output,
    refs,
    terminal,
    workload,
)
from innkeeper.cli.errors import CliError
from innkeeper.cli.interrupts import Interrupts
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import find_vm
from innkeeper.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpc import aio

    from innkeeper.shim.client import Vm


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """All that `innkeeper exec` is asked for."""

    process: workload.ProcessOptions
    vm: str
    container: str = ""
    """Empty: the one that runs."""
    id: str = ""
    """Empty: one that nobody else has."""
    detached: bool = False
    keys: bytes = b""
    doubt: str = ""
    """What to say when there is no such container: perhaps the word belongs to the command."""

    @property
    def exec_id(self) -> str:
        return self.id or f"exec-{secrets.token_hex(4)}"


_GIVEN = "innkeeper.exec"


class ExecCommand(TyperCommand):
    """Remembers its words as they are typed, to show them the right way."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_GIVEN] = tuple(args)
        return super().parse_args(ctx, args)


def exec_(  # noqa: PLR0913 - typer makes each parameter an option
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="VM [CONTAINER] -- CMD...",
            help="Where, and what. Without CONTAINER: the one that runs there. Without --: the"
            " second word is the CONTAINER.",
            autocompletion=completion.vm_or_container,
        ),
    ],
    *,
    tty: options.TerminalOption = False,
    stdin: options.StdinOption = True,
    detached: Annotated[
        bool,
        typer.Option(
            "-d", "--detach", help="Start it, print its name, and leave it; `logs` has its output."
        ),
    ] = False,
    env: options.EnvironmentOption = None,
    workdir: options.DirectoryOption = "",
    user: options.UserOption = "",
    exec_id: Annotated[
        str,
        typer.Option("--id", metavar="ID", help="Its id, for `attach`, `logs`, `wait`, `kill`."),
    ] = "",
    detach_keys: detach.KeysOption = detach.DEFAULT_KEYS,
) -> None:
    """Runs one more command in a container.

    With our input and output. What is not given (variables, directory, user) is as for
    the container's first process; -e adds variables to its own. Exit codes are as for
    `innkeeper run`. Ctrl-C goes to the command; a second one kills it.

    With -t the keys go to the command as they are, and ctrl-p ctrl-q leaves it: it
    runs on (it waits when it has written 1 MiB that nobody has read), and
    `innkeeper attach` is the way back. 0 is the exit code then.

    \b
    Examples:
      innkeeper exec web -- ps
      innkeeper exec -it web main -- sh
      innkeeper exec -u www-data -w /srv -e LANG=C web main -- ls -l
      tar c src | innkeeper exec web main -- tar x -C /srv
      innkeeper exec -d --id backup web main -- tar cf /data/all.tar /srv
      innkeeper wait web main/backup
    """
    given = context.meta[_GIVEN]
    found = split_words(words, given[: len(given) - len(words)])
    hints.about(found.vm)
    environment = options.parse_environment(env or [])
    process = workload.ProcessOptions(
        argv=found.argv,
        environment=workload.own_terminal(environment) if tty else environment,
        directory=options.parse_directory(workdir),
        user=options.parse_user(user),
        terminal=tty,
        stdin=stdin,
    )
    request = ExecRequest(
        process=process,
        vm=found.vm,
        container=found.container,
        doubt=found.doubt,
        id=exec_id,
        detached=detached,
        keys=detach.parse_keys(detach_keys),
    )
    raise typer.Exit(wait_for(exec_in(request)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Where and what."""

    vm: str
    container: str = ""
    argv: tuple[str, ...]
    doubt: str = ""
    """As of ExecRequest."""


def split_words(words: Sequence[str], before: Sequence[str] = ()) -> Words:
    """`before` are the options that were given. Raises typer.BadParameter, with the words
    as they should be."""
    at = words.index("--") if "--" in words else len(words)
    where, argv = words[:at], words[at + 1 :]
    if argv and 1 <= len(where) <= 2:
        return Words(vm=where[0], container="".join(where[1:]), argv=tuple(argv))
    plain = not any(word.startswith("-") for word in words[:2])
    if at > 2 and plain:
        vm, container, *rest = words
        doubt = (
            f"VM {vm} has no container {container};"
            f" did you mean: {_written([*before, vm], words[1:])}"
        )
        return Words(vm=vm, container=container, argv=tuple(rest), doubt=doubt)
    if at == 2 == len(words) and plain:
        raise typer.BadParameter(
            f"write -- before the command; did you mean: {_written([*before, words[0]], words[1:])}"
        )
    raise typer.BadParameter(
        "write VM [CONTAINER] -- CMD..., as in: innkeeper exec web -- ps"
        " (options come before the VM)"
    )


def _written(where: Sequence[str], argv: Sequence[str]) -> str:
    return f"innkeeper exec {shlex.join(where)} -- {shlex.join(argv)}"


async def exec_in(request: ExecRequest) -> int:
    """The exit code; raises what is in errors.EXPECTED."""
    if request.process.terminal and not request.detached:
        terminal.require()
    vm = find_vm(request.vm)
    async with vm.channel() as channel, Interrupts() as interrupts:
        try:
            async with broken.explained(vm, channel):
                return await _exec(vm, channel, request, interrupts)
        except (asyncio.CancelledError, BrokenPipeError) as error:
            return interrupts.code_of(error)


async def _exec(vm: Vm, channel: aio.Channel, request: ExecRequest, interrupts: Interrupts) -> int:
    usage = f"innkeeper exec {vm.name} CONTAINER -- CMD..."
    if request.doubt:
        await _settle(channel, request)
    container = request.container or await refs.only(channel, vm.name, usage)
    process = types_pb2.ProcessRef(container_id=container, exec_id=request.exec_id)
    if request.detached:
        await _start_and_leave(channel, process, request.process)
        return 0
    try:
        return await _start_and_follow(channel, process, request, interrupts)
    except detach.Detached:
        detach.tell(vm.name, process)
        return 0


async def _settle(channel: aio.Channel, request: ExecRequest) -> None:
    """Without `--` the second word is a container, if there is one of that name. Raises
    typer.BadParameter."""
    if request.container not in {status.id for status in await refs.containers(channel)}:
        raise typer.BadParameter(request.doubt)


async def _start_and_leave(
    channel: aio.Channel, process: types_pb2.ProcessRef, options: workload.ProcessOptions
) -> None:
    """With a log it does not wait for readers, who may never come."""
    await workload.start_exec(
        channel, process, options, types_pb2.StreamOptions(log=types_pb2.OutputLog())
    )
    if not options.terminal:
        await workload.close_input(channel, process)
    output.say(refs.text(process))


async def _start_and_follow(
    channel: aio.Channel,
    process: types_pb2.ProcessRef,
    request: ExecRequest,
    interrupts: Interrupts,
) -> int:
    await workload.start_exec(channel, process, request.process)
    try:
        return await workload.follow(
            channel, process, request.process, interrupts, keys=request.keys
        )
    except (asyncio.CancelledError, BrokenPipeError, CliError):
        await workload.kill(channel, process)
        raise
