"""`innkeeper stats`: what containers use, as figures."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from innkeeper.cli import grids, output, records, refs, usage, watching
from innkeeper.cli.descriptors import FdSink
from innkeeper.cli.errors import CliError
from innkeeper.cli.interrupts import Interrupts
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import find_vm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from grpc import aio

    from innkeeper.cli.usage import Reading

_READINGS_FOR_ONCE = 2


def stats(
    vm: refs.VmArgument,
    containers: refs.AnyContainersArgument = None,
    *,
    once: Annotated[
        bool, typer.Option("--once", "--no-stream", help="One table, of two readings.")
    ] = False,
    interval: watching.IntervalOption = 1,
    json: Annotated[
        bool, typer.Option("--json", help="Everything that the kernel counts, as JSON lines.")
    ] = False,
) -> None:
    """Shows what containers use, as a table or as JSON lines.

    CPU, memory, processes, network and disks, until Ctrl-C.

    CPU is the share of one CPU between two readings (two busy ones are 200). MEMORY is
    without the page cache that the kernel would give up first. What went through
    network and disks is since the container's start; `top` shows rates. To a pipe goes
    a line for each container and reading, with tabs.

    \b
    Examples:
      innkeeper stats web
      innkeeper stats web main db --interval 5
      innkeeper stats --once web
      innkeeper stats --json web | jq -c '{id, cpu_percent, memory_used_bytes}'
    """
    watching.check_interval(interval)
    raise typer.Exit(wait_for(_stats(vm, containers or [], interval, once=once, json=json)))


async def _stats(vm_name: str, names: list[str], interval: float, *, once: bool, json: bool) -> int:
    vm = find_vm(vm_name)
    async with vm.channel() as channel, Interrupts() as interrupts:
        ids = names or await _running(channel, vm_name)
        rounds = watching.rounds(vm, channel, ids, usage.Readings(), interval)
        try:
            async with aclosing(rounds) as told:
                await _tell(told, once=once, json=json)
        except (asyncio.CancelledError, BrokenPipeError) as error:
            return interrupts.code_of(error)
    return 0


async def _tell(told: AsyncIterator[list[Reading]], *, once: bool, json: bool) -> None:
    if once:
        await _say_once(told, json=json)
    elif json or not output.out().is_terminal:
        await _say_lines(told, json=json)
    else:
        await _show(told)


async def _running(channel: aio.Channel, vm: str) -> list[str]:
    found = refs.ids_in(await refs.containers(channel), refs.ALIVE)
    if not found:
        raise CliError(
            f"VM {vm}: no container runs", hint=f"all that there are: innkeeper ps -a {vm}"
        )
    return found


async def second(told: AsyncIterator[list[Reading]]) -> list[Reading]:
    """The round in which each container has two readings, or the last that there is."""
    last: list[Reading] = []
    count = 0
    async for readings in told:
        last = readings
        count += 1
        if count == _READINGS_FOR_ONCE:
            break
    return last


async def _say_once(told: AsyncIterator[list[Reading]], *, json: bool) -> None:
    found = await second(told)
    if json:
        await FdSink(1, "stdout").write(_json_lines(found))
    else:
        output.table(usage.TOTALS, [each.row(rates=False) for each in found])


async def _say_lines(told: AsyncIterator[list[Reading]], *, json: bool) -> None:
    sink = FdSink(1, "stdout")
    if not json:
        await sink.write(_line(usage.TOTALS))
    async for found in told:
        lines = _json_lines(found) if json else b"".join(_line(e.row(rates=False)) for e in found)
        await sink.write(lines)


def _json_lines(found: Sequence[Reading]) -> bytes:
    return b"".join(f"{records.line(each.record())}\n".encode() for each in found)


def _line(cells: Sequence[str]) -> bytes:
    return ("\t".join(cells) + "\n").encode()


async def _show(told: AsyncIterator[list[Reading]]) -> None:
    """A table that stays in its place."""
    with Live(console=output.out(), auto_refresh=False) as live:
        async for found in told:
            rows = [each.row(rates=False) for each in found]
            live.update(grids.grid(usage.TOTALS, rows), refresh=True)
