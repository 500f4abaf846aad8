"""Latency of the smallest call, one after the other over one connection."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.figures import Sample, milliseconds, percentile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grpc import aio

_SHARES = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
_WARM_UP = 20


async def health_checks(channel: aio.Channel, count: int) -> list[float]:
    """Seconds of each of `count` health checks, through the daemon's proxy."""
    stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
    request = health_pb2.HealthCheckRequest()
    taken = []
    for _ in range(_WARM_UP + count):
        began = time.perf_counter()
        await stub.Check(request, timeout=30)
        taken.append(time.perf_counter() - began)
    return taken[_WARM_UP:]


def call_samples(taken: list[float]) -> Iterator[Sample]:
    for name, share in _SHARES:
        what = f"Health.Check through the daemon, {share:.1%} of {len(taken)} calls are not above"
        yield milliseconds(f"health_check_{name}_ms", percentile(taken, share), what)
