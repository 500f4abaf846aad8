"""Standard output and input of a process, over each transport, against the port itself.

The same `dd` pumps in both: in a container with the agent, the relay, the daemon and gRPC
in between, and as all that a VM without an agent does (`rawvm.py`). The port's own speed
is what `cat` would have over it.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bench.figures import Sample
from bench.guest import start_script
from bench.meter import Meter
from bench.pump import PIECE
from innkeeper.shim.streams import ProcessStreams, StreamEnds
from innkeeper.v1 import containers_pb2, containers_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grpc import aio

    from bench.rawvm import RawPort
    from innkeeper.shim.streams import Source

PIECES: Final = 1024
"""Of `PIECE` bytes each: 32 MiB in one transfer."""

_SIZE: Final = PIECES * PIECE
_LIMIT: Final = 300.0
# Nothing is written before the reader is there: a line of input says so.
_OUT: Final = f"read line; exec dd if=/dev/zero bs={PIECE} count={PIECES}"
_INTO: Final = f"exec dd of=/dev/null bs={PIECE} count={PIECES} iflag=fullblock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes a second, one for each transfer."""

    out: list[float] = field(default_factory=list)
    into: list[float] = field(default_factory=list)


async def stream_rates(channel: aio.Channel, rounds: int) -> Rates:
    """Of a process in a container, fresh for each transfer."""
    rates = Rates()
    for _ in range(rounds):
        meter = Meter()
        await _run(channel, _OUT, Repeated(byte=b"\n", size=1), meter)
        rates.out.append(meter.rate(_SIZE))
        zeros = Repeated(byte=b"\0", size=_SIZE)
        ended = await _run(channel, _INTO, zeros, Meter())
        rates.into.append(_SIZE / (ended - zeros.began))
    return rates


async def port_rates(port: RawPort, rounds: int) -> Rates:
    """Of the port itself."""
    rates = Rates()
    for _ in range(rounds):
        rates.out.append(await port.out(PIECES))
        rates.into.append(await port.into(PIECES))
    return rates


def throughput_samples(transport: str, ours: Rates, port: Rates) -> Iterator[Sample]:
    """Of one transport; the ratios are those of the medians."""
    word, over = transport.replace("-", "_"), f"32 MiB over {transport}"
    for name, cat, mine, others in (
        ("stdout", "out", ours.out, port.out),
        ("stdin", "in", ours.into, port.into),
    ):
        for rate in mine:
            what = f"{name} of a process in a container, {over}, by Processes.Attach"
            yield Sample(name=f"{name}_mb_s_{word}", value=rate / 1e6, unit="MB/s", what=what)
        for rate in others:
            what = f"dd in the guest, {cat}, {over}, without agent, relay, daemon and gRPC"
            yield Sample(name=f"cat_{cat}_mb_s_{word}", value=rate / 1e6, unit="MB/s", what=what)
        yield Sample(
            name=f"{name}_to_cat_{word}",
            value=statistics.median(mine) / statistics.median(others),
            unit="x",
            what=f"{name} in times of what the port carries by itself, {over}, by the medians",
        )


@dataclass(slots=True, kw_only=True)
class Repeated:
    """A source of one byte, `size` times; `began` when it was first asked."""

    byte: bytes
    size: int
    began: float = 0.0

    async def read(self, limit: int) -> bytes:
        self.began = self.began or time.perf_counter()
        piece = min(limit, self.size)
        self.size -= piece
        return self.byte * piece


async def _run(channel: aio.Channel, script: str, source: Source, sink: Meter) -> float:
    """When it had ended. Raises RuntimeError for a script that failed."""
    name = await start_script(channel, script, storages=())
    ends = StreamEnds(stdout=sink, stderr=Meter(), source=source)
    async with asyncio.timeout(_LIMIT):
        status = await ProcessStreams(channel, name, ends).run()
    ended = time.perf_counter()
    stub = containers_pb2_grpc.ContainersStub(channel)
    await stub.Remove(containers_pb2.RemoveContainerRequest(id=name.container_id))
    if status.code:
        raise RuntimeError(f"{script}: exit status {status.code}")
    return ended
