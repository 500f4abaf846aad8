"""What containers use."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid
from agent.core.names import check_id
from agent.server.convert import fields
from agent.server.limits import STATS_CONTAINERS
from innkeeper.v1 import containers_pb2 as pb

if TYPE_CHECKING:
    from agent.core.usage import ContainerStats

INTERVAL: Final = 1.0
"""Seconds between two messages of a container when nothing was asked for (containers.proto)."""

_SHORTEST, _LONGEST = 0.1, 3600.0


def container_stats(stats: ContainerStats) -> pb.ContainerStats:
    """The members have the names of the message's fields, but for the time."""
    members = asdict(stats)
    at = members.pop("at")
    return pb.ContainerStats(at_unix_micros=round(at * fields.MICROS), **members)


def watched(asked: pb.WatchStatsRequest) -> tuple[str, ...]:
    """Which containers, each once."""
    fields.at_most(STATS_CONTAINERS, asked.ids, "ids")
    return tuple(dict.fromkeys(check_id("container", each) for each in asked.ids))


def interval(asked: pb.WatchStatsRequest) -> float:
    """Seconds between two messages; raises BAD_FIELD."""
    value = asked.interval_seconds
    if value == 0:
        return INTERVAL
    # The comparison is false for what is not a number, too.
    if not _SHORTEST <= value <= _LONGEST:
        raise invalid(
            f"interval_seconds: {value} is not {_SHORTEST} to {_LONGEST:.0f}",
            field="interval_seconds",
        )
    return value
