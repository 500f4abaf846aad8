"""The sandbox: its description and its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.model import ProcessExit
from agent.handlers.guest.describe import AGENT_VERSION, FEATURES, PROTOCOL
from agent.server.convert import fields
from agent.server.convert.processes import exit_status
from innkeeper.v1 import sandbox_pb2

if TYPE_CHECKING:
    from agent.core.model import Event
    from agent.handlers.guest.describe import Description
    from innkeeper.v1 import types_pb2


def description(told: Description) -> sandbox_pb2.DescribeSandboxResponse:
    """What the guest is, as the host gets to know it."""
    return sandbox_pb2.DescribeSandboxResponse(
        agent_version=AGENT_VERSION,
        protocol=PROTOCOL,
        kernel=told.kernel,
        runtime=told.runtime,
        features=FEATURES,
        limits=_limits(told),
        boot_phases=[
            sandbox_pb2.BootPhase(name=name, at_micros=round(at * fields.MICROS))
            for name, at in told.phases
        ],
        sandbox_id=told.sandbox_id,
        agent_restarts=told.agent_restarts,
        init_command_line=told.init_command_line,
        boot_id=told.boot_id,
        agent_pid=told.agent_pid,
        memory=[
            sandbox_pb2.ProcessMemory(
                name=one.name, resident=one.resident, proportional=one.proportional
            )
            for one in told.memory
        ],
    )


def _limits(told: Description) -> sandbox_pb2.Limits:
    limits = told.limits
    return sandbox_pb2.Limits(
        message_bytes=limits.message_bytes,
        stream_window_bytes=limits.stream_window_bytes,
        event_ring=limits.event_ring,
        objects=limits.objects,
        processes_per_container=limits.processes_per_container,
    )


# Where the agent tells more apart than the protocol's kinds do, the details say it.
_TOLD_APART = {
    "DEVICE_DETACHED": ("DEVICE_GONE", {"asked": "yes"}),
    "DEVICE_VANISHED": ("DEVICE_GONE", {"asked": "no"}),
    "DEVICE_LOST": ("DEVICE_GONE", {"asked": "no"}),
    "STORAGE_DETACHED": ("STORAGE_GONE", {"asked": "yes"}),
    "STORAGE_LOST": ("STORAGE_GONE", {"asked": "no"}),
}


def event(happened: Event) -> sandbox_pb2.Event:
    """An event; a kind that the protocol has no word for goes without one."""
    own = happened.kind.upper().replace("-", "_")
    word, details = _TOLD_APART.get(own, (own, {}))
    known = sandbox_pb2.EventKind.DESCRIPTOR.values_by_name.get(f"EVENT_KIND_{word}")
    kind = sandbox_pb2.EVENT_KIND_UNSPECIFIED if known is None else known.number
    return sandbox_pb2.Event(
        sequence=happened.sequence,
        at_unix_micros=round(happened.at * fields.MICROS),
        kind=sandbox_pb2.EventKind.ValueType(kind),
        subject=happened.subject,
        details=details | happened.details,
        exit=_exit(happened) if kind == sandbox_pb2.EVENT_KIND_PROCESS_EXITED else None,
    )


def _exit(happened: Event) -> types_pb2.ExitStatus:
    """The end that the details tell: `code`, and `signal` when one ended it."""
    details = happened.details
    code, signal = int(details.get("code", 0)), int(details.get("signal", 0))
    return exit_status(ProcessExit(code=code, signal=signal, at=happened.at))
