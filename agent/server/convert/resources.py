"""CPUs and memory: what should be online, and what is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid
from agent.handlers.guest.resources import Amount, ResourcesRequest
from agent.server.convert import fields
from innkeeper.v1 import sandbox_pb2 as pb

if TYPE_CHECKING:
    from agent.handlers.guest.resources import ResourcesOnline

MOST_MEMORY: Final = 1 << 52
"""Bytes: the largest physical address of x86-64 and more than any guest has."""


def resources_request(message: pb.OnlineResourcesRequest) -> ResourcesRequest:
    """Raises BAD_FIELD: two amounts of one kind, nothing at all of one, a time out of range."""
    return ResourcesRequest(
        cpus=_amount(message, "cpus"),
        memory=_amount(message, "memory"),
        allow_offline=message.allow_offline,
        movable=message.movable,
        timeout=fields.seconds(message.timeout_seconds, "timeout_seconds"),
    )


def online_resources(told: ResourcesOnline) -> pb.OnlineResourcesResponse:
    """What is online, as the host gets to know it."""
    return pb.OnlineResourcesResponse(
        cpus_online=told.cpus_online,
        memory_online=told.memory_online,
        cpus_added=told.cpus_added,
        cpus_removed=told.cpus_removed,
        blocks_added=told.blocks_added,
        blocks_removed=told.blocks_removed,
        block_bytes=told.block_bytes,
        refused=told.refused,
    )


def _amount(message: pb.OnlineResourcesRequest, name: str) -> Amount | None:
    more = f"more_{name}"
    total_asked, more_asked = message.HasField(name), message.HasField(more)  # type: ignore[arg-type]
    if total_asked and more_asked:
        raise invalid(f"{name} and {more}: only one of them can be set", field=more)
    if not (total_asked or more_asked):
        return None
    field = more if more_asked else name
    number: int = getattr(message, field)
    if number > MOST_MEMORY:
        raise invalid(f"{field}: {number} is more than any guest has", field=field, value=number)
    if total_asked and not number:
        raise invalid(f"{name}: a guest can't be without; unset leaves it as it is", field=name)
    return Amount(number=number, more=more_asked)
