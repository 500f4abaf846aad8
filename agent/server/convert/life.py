"""How a process's output is kept, and thresholds of pressure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid
from agent.core.life import (
    LogOptions,
    PressureResource,
    PressureThreshold,
    StreamOptions,
    WhenFull,
)
from agent.server.convert import fields
from agent.server.limits import PRESSURE_THRESHOLDS
from innkeeper.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

_BUFFER: Final = (64 << 10, 64 << 20)
_LOG_BYTES: Final = (4096, 256 << 20)
_LOG_FILES: Final = (1, 16)
# psi.rst: what the kernel takes as a window.
_WINDOW: Final = (500_000, 10_000_000)

_WHEN_FULL: Final = {
    pb.WHEN_FULL_UNSPECIFIED: WhenFull.WAIT,
    pb.WHEN_FULL_WAIT: WhenFull.WAIT,
    pb.WHEN_FULL_DROP: WhenFull.DROP,
}

_RESOURCES: Final = {
    pb.PRESSURE_RESOURCE_CPU: PressureResource.CPU,
    pb.PRESSURE_RESOURCE_MEMORY: PressureResource.MEMORY,
    pb.PRESSURE_RESOURCE_IO: PressureResource.IO,
}


def stream_options(asked: pb.StreamOptions, field: str) -> StreamOptions:
    """What is unset is as usual. Raises BAD_FIELD."""
    usual = StreamOptions()
    when_full = _WHEN_FULL.get(asked.when_full)
    if when_full is None:
        raise invalid(f"{field}.when_full: {asked.when_full} is not known", field=field)
    return StreamOptions(
        window=_or_usual(asked.buffer_bytes, usual.window, _BUFFER, f"{field}.buffer_bytes"),
        when_full=when_full,
        log=_log(asked.log, f"{field}.log") if asked.HasField("log") else None,
    )


def _log(asked: pb.OutputLog, field: str) -> LogOptions:
    usual = LogOptions()
    return LogOptions(
        max_bytes=_or_usual(asked.max_bytes, usual.max_bytes, _LOG_BYTES, f"{field}.max_bytes"),
        files=_or_usual(asked.files, usual.files, _LOG_FILES, f"{field}.files"),
    )


def _or_usual(value: int, usual: int, range_: tuple[int, int], field: str) -> int:
    return fields.within(value, *range_, field) if value else usual


def thresholds(asked: Sequence[pb.PressureThreshold], field: str) -> tuple[PressureThreshold, ...]:
    """Raises BAD_FIELD, also for one that is there twice."""
    fields.at_most(PRESSURE_THRESHOLDS, asked, field)
    found = tuple(_threshold(each, f"{field}[{at}]") for at, each in enumerate(asked))
    fields.no_doubles(found, field)
    return found


def _threshold(asked: pb.PressureThreshold, field: str) -> PressureThreshold:
    resource = _RESOURCES.get(asked.resource)
    if resource is None:
        raise invalid(f"{field}.resource: {asked.resource} is not known", field=f"{field}.resource")
    window = fields.within(asked.window_micros, *_WINDOW, f"{field}.window_micros")
    return PressureThreshold(
        resource=resource,
        full=asked.full,
        stall=fields.within(asked.stall_micros, 1, window, f"{field}.stall_micros"),
        window=window,
    )
