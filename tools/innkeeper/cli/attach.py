"""`innkeeper attach`: our terminal, or input and output, on a process that runs."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Annotated

import typer
from grpc import aio

from innkeeper.cli import broken, completion, detach, output, refs, terminal, workload
from innkeeper.cli.errors import CliError
from innkeeper.cli.interrupts import Interrupts
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import find_vm
from innkeeper.v1 import processes_pb2, processes_pb2_grpc, types_pb2


def attach(
    vm: refs.VmArgument,
    process: Annotated[
        str,
        typer.Argument(
            metavar="CONTAINER[/EXEC]",
            help="The container's first process, or one of `exec`; else the one that runs.",
            autocompletion=completion.containers,
            show_default=False,
        ),
    ] = "",
    *,
    stdin: Annotated[
        bool,
        typer.Option(
            "-i/-n",
            "--stdin/--no-stdin",
            help="Pass our input on, or only look.",
            show_default="on",
        ),
    ] = True,
    sig_proxy: Annotated[
        bool,
        typer.Option(
            "--sig-proxy/--no-sig-proxy",
            help="Pass the first Ctrl-C or SIGTERM on, or leave at once.",
            show_default="on",
        ),
    ] = True,
    detach_keys: detach.KeysOption = detach.DEFAULT_KEYS,
) -> None:
    """Connects our input and output with a process that runs.

    Until it ends. First comes what is kept of its output: all that nobody has read yet,
    and a little before. The exit code is the process's, as of `innkeeper run`. On a
    terminal, ctrl-p ctrl-q leaves it running (code 0). Else the first Ctrl-C or SIGTERM
    is passed on to it, and a second one leaves it running (code 130, 143). Several may be
    attached at once; input is for one of them.

    \b
    Examples:
      innkeeper attach web
      innkeeper attach web main
      innkeeper attach --detach-keys ctrl-] web main/exec-0f1e2d3c
      innkeeper attach --no-stdin --no-sig-proxy web main
    """
    view = workload.View(
        stdin=stdin,
        keeps_input=True,
        keys=detach.parse_keys(detach_keys),
        from_kept=True,
        pass_signals=sig_proxy,
    )
    raise typer.Exit(wait_for(_attach(vm, process, view)))


async def _attach(vm_name: str, word: str, view: workload.View) -> int:
    named = refs.parse(word) if word else None
    vm = find_vm(vm_name)
    async with vm.channel() as channel, Interrupts() as interrupts:
        try:
            async with broken.explained(vm, channel):
                usage = f"innkeeper attach {vm_name} CONTAINER"
                process = named or refs.parse(await refs.only(channel, vm_name, usage))
                return await _show(vm_name, channel, process, view, interrupts)
        except (asyncio.CancelledError, BrokenPipeError) as error:
            return interrupts.code_of(error)


async def _show(
    vm: str,
    channel: aio.Channel,
    process: types_pb2.ProcessRef,
    view: workload.View,
    interrupts: Interrupts,
) -> int:
    has_terminal = await _has_terminal(channel, process)
    raw = has_terminal and view.stdin and terminal.is_ours()
    shown = replace(
        view,
        terminal=raw,
        keys=view.keys if raw else b"",
        leaving=f"SIGTERM was passed on to {refs.text(process)}; a second one leaves it running",
    )
    if raw:
        await _redraw(channel, process)
    elif output.err().is_terminal:
        _tell_way_out(process, view)
    try:
        return await workload.show(channel, process, shown, interrupts)
    except asyncio.CancelledError:
        if interrupts.ended_by is not None:
            detach.tell(vm, process)
        raise
    except detach.Detached:
        detach.tell(vm, process)
        return 0


def _tell_way_out(process: types_pb2.ProcessRef, view: workload.View) -> None:
    """There are no keys for it: what is typed is the process's, or nobody's."""
    target = refs.text(process)
    if view.pass_signals:
        output.note(f"Ctrl-C goes to {target}; a second one leaves it running")
    else:
        output.note(f"Ctrl-C leaves {target} running")


async def _redraw(channel: aio.Channel, process: types_pb2.ProcessRef) -> None:
    """A size that is none of ours: the right one comes next, and is a change for the
    program then, which draws its screen anew."""
    rows, columns = terminal.size()
    size = types_pb2.WindowSize(rows=rows + 1, columns=columns)
    request = processes_pb2.ResizeRequest(process=process, size=size)
    with contextlib.suppress(aio.AioRpcError):
        await processes_pb2_grpc.ProcessesStub(channel).Resize(request)


async def _has_terminal(channel: aio.Channel, process: types_pb2.ProcessRef) -> bool:
    """Raises CliError for a container that there is not, or that has not been started."""
    statuses = {each.id: each for each in await refs.containers(channel)}
    status = statuses.get(process.container_id)
    if status is None:
        known = ", ".join(statuses) or "none"
        raise CliError(f"no container {process.container_id}", hint=f"there are: {known}")
    if status.state == refs.CREATED:
        raise CliError(f"container {status.id} was created, and not started yet")
    if not process.exec_id or status.state not in refs.ALIVE:
        return status.terminal
    request = processes_pb2.ListProcessesRequest(container_id=status.id)
    answer = await processes_pb2_grpc.ProcessesStub(channel).List(request)
    return any(each.terminal for each in answer.processes if each.process == process)
