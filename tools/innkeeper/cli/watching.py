"""Statistics of containers, round by round."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from innkeeper.cli import again, options
from innkeeper.v1 import containers_pb2, containers_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from grpc import aio

    from innkeeper.cli.usage import Reading, Readings
    from innkeeper.shim.client import Vm
    from innkeeper.v1.containers_pb2 import ContainerStats

_SHORTEST, _LONGEST = 0.1, 3600.0
IntervalOption = Annotated[
    float, typer.Option("--interval", metavar="SECONDS", help="From one reading to the next.")
]


def check_interval(seconds: float) -> float:
    """Raises typer.BadParameter."""
    options.check_seconds("--interval", seconds)
    if not _SHORTEST <= seconds <= _LONGEST:
        raise typer.BadParameter(
            f"--interval {seconds:g}: not possible, {_SHORTEST:g} to {_LONGEST:g} seconds"
        )
    return seconds


async def rounds(
    vm: Vm, channel: aio.Channel, ids: Sequence[str], readings: Readings, interval: float
) -> AsyncGenerator[list[Reading], None]:
    """One list each interval, in the order of `ids`, for as long as one of the containers is
    there. Raises aio.AioRpcError, CliError."""
    seen: set[str] = set()
    async with aclosing(again.stream(vm, channel, lambda: _watch(channel, ids, interval))) as told:
        async for stats in told:
            if stats.id in seen:
                # One that was removed meanwhile is not waited for.
                yield readings.of(each for each in ids if each in seen)
                seen = set()
            seen.add(stats.id)
            readings.take(stats)
            if seen.issuperset(ids):
                yield readings.of(ids)
                seen = set()


def _watch(
    channel: aio.Channel, ids: Sequence[str], interval: float
) -> aio.UnaryStreamCall[containers_pb2.WatchStatsRequest, ContainerStats]:
    request = containers_pb2.WatchStatsRequest(ids=ids, interval_seconds=interval)
    return containers_pb2_grpc.ContainersStub(channel).WatchStats(request)
