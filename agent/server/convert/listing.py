"""Processes of a container, as the kernel shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.server.convert import fields
from innkeeper.v1 import processes_pb2 as pb
from innkeeper.v1 import types_pb2 as types

if TYPE_CHECKING:
    from agent.core.model import ProcessRef
    from agent.core.usage import ProcessInfo


def process_info(info: ProcessInfo) -> pb.ProcessInfo:
    """A process, as the host gets to know it."""
    return pb.ProcessInfo(
        pid=info.pid,
        container_pid=info.container_pid,
        parent_pid=info.parent_pid,
        process=_reference(info.process),
        user_id=info.user_id,
        name=info.name,
        arguments=info.arguments,
        state=info.state,
        cpu_micros=info.cpu_micros,
        resident_bytes=info.resident_bytes,
        threads=info.threads,
        started_unix_micros=round(info.started * fields.MICROS),
        terminal=info.terminal,
    )


def _reference(ref: ProcessRef | None) -> types.ProcessRef | None:
    if ref is None:
        return None
    return types.ProcessRef(container_id=ref.container_id, exec_id=ref.exec_id)
