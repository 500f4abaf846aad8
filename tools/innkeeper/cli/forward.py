"""`innkeeper forward`: ports and sockets between this host and a VM, while it runs."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

import typer

from innkeeper.cli import forward_specs, hints, output
from innkeeper.cli.errors import CliError
from innkeeper.cli.interrupts import Interrupts
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import find_vm
from innkeeper.shim.forwarding import record
from innkeeper.shim.forwarding.forwards import Forwards

if TYPE_CHECKING:
    from innkeeper.shim.client import Vm
    from innkeeper.shim.forwarding.words import Forward, ForwardState


def forward(
    vm: Annotated[
        str, typer.Argument(metavar="VM", help="Name of a VM that runs.", callback=hints.about)
    ],
    specs: Annotated[
        list[str] | None, typer.Argument(metavar="[HOST:GUEST...]", help="The same as with -L.")
    ] = None,
    publish: forward_specs.PublishOption = None,
    forward: forward_specs.ForwardOption = None,
    reverse: forward_specs.ReverseOption = None,
) -> None:
    """Forwards ports and unix sockets between this host and a VM, until Ctrl-C.

    Works without any NIC in the VM, on every transport; the VM goes on afterwards. Each
    side is a PORT, ADDR:PORT, [IPV6]:PORT or a socket's /PATH; in the guest also
    CONTAINER@ and one of these, for a container's own network and files. What
    listens comes first, as with ssh's -L and -R; 'LISTEN->TARGET' (quoted) is the same
    and takes paths with a colon. A PORT alone listens on 127.0.0.1 of this host, so
    that nobody else's machine gets in: write 0.0.0.0:PORT or *:PORT to let them. Port 0
    is one that is free. UDP is not forwarded.

    `vm start` and `run` take the same -p, -L and -R, for as long as the VM lives.

    \b
    Examples:
      innkeeper forward web 8080:80
      innkeeper forward web -p 0.0.0.0:8000-8002:9000-9002
      innkeeper forward web ./docker.sock:/run/docker.sock
      innkeeper forward web 5432:db@/run/postgresql/.s.PGSQL.5432
      innkeeper forward web -R /run/ssh-agent.sock:$SSH_AUTH_SOCK
      innkeeper forward web -R 5000:registry.example:5000
    """
    wanted = forward_specs.parse_all(publish, [*(specs or []), *(forward or [])], reverse)
    if not wanted:
        raise typer.BadParameter("say what to forward, as in: innkeeper forward web 8080:80")
    raise typer.Exit(wait_for(_forward(vm, wanted)))


async def _forward(name: str, wanted: tuple[Forward, ...]) -> int:
    """The exit code; raises what is in errors.EXPECTED."""
    vm = find_vm(name)
    async with Interrupts() as interrupts:
        forwards = Forwards(wanted, patient=False)
        try:
            await _serve(vm, forwards)
        except asyncio.CancelledError as error:
            return interrupts.code_of(error)
        finally:
            forwards.close()
    return 0


async def _serve(vm: Vm, forwards: Forwards) -> None:
    async with vm.channel() as channel, asyncio.TaskGroup() as group:
        group.create_task(forwards.serve(channel, note=output.note))
        await forwards.settled()
        for state in forwards.states:
            output.say(described(vm.name, state))
        await _ended(vm)
        raise CliError(f"VM {vm.name}: has ended, and its forwards with it")


def described(vm: str, state: ForwardState) -> str:
    """A forward in words, the listener first."""
    trouble = f" (not yet: {state.trouble})" if state.trouble else ""
    if state.reverse:
        return f"{state.listen} in {vm} -> {state.target} on this host{trouble}"
    return f"{state.listen} on this host -> {state.target} in {vm}"


def tell_chosen(vm: Vm, forwards: tuple[Forward, ...]) -> None:
    """On stderr, where a port was left to us: stdout is the command's."""
    if any(not each.listen.path and each.listen.port == 0 for each in forwards):
        for state in record.read(vm.directory):
            output.note(described(vm.name, state))


async def _ended(vm: Vm) -> None:
    """Until the VM's daemon has ended, and the VM with it."""
    try:
        daemon = os.pidfd_open(vm.daemon_pid)
    except ProcessLookupError:
        return
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(daemon, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(daemon)
        os.close(daemon)
