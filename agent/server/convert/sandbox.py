"""The sandbox: what it is made of, its description and its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid
from agent.core.names import check_id
from agent.core.sandbox import KernelModule, SandboxWish, check_hostname
from agent.handlers.guest.describe import AGENT_VERSION, FEATURES, PROTOCOL
from agent.handlers.guest.modules import check_module
from agent.handlers.runtime.exitdetails import end_of
from agent.handlers.runtime.spec.namespaces import check_own
from agent.server.convert import fields
from agent.server.convert.dns import dns_wish
from agent.server.convert.life import thresholds
from agent.server.convert.processes import exit_status
from agent.server.convert.sysctls import values_of
from agent.server.limits import SANDBOX_MODULES
from innkeeper.v1 import sandbox_pb2

if TYPE_CHECKING:
    from agent.core.model import Event
    from agent.core.network import DnsWish
    from agent.handlers.guest.describe import Description
    from innkeeper.v1 import network_pb2, types_pb2


_PARAMETERS: Final = 64


def sandbox_wish(asked: sandbox_pb2.CreateSandboxRequest) -> SandboxWish:
    """What to set up. Raises BAD_ID and BAD_FIELD."""
    hostname = check_hostname(asked.hostname)
    return SandboxWish(
        id=check_id("sandbox", asked.id),
        hostname=hostname,
        dns=_dns(asked.dns, hostname) if asked.HasField("dns") else None,
        modules=_modules(asked),
        sysctls=tuple(sorted(values_of(asked.sysctls, "sysctls").items())),
        shared_namespaces=tuple(sorted(check_own(asked.shared_namespaces))),
        guest_hooks=_directory(asked.guest_hooks),
        pressure=thresholds(asked.pressure, "pressure"),
        timeout=fields.seconds(asked.timeout_seconds, "timeout_seconds"),
    )


def _dns(asked: network_pb2.ApplyDnsRequest, hostname: str) -> DnsWish:
    wish = dns_wish(asked)
    if wish.hostname not in ("", hostname):
        raise invalid(
            f"dns.hostname: {wish.hostname!r} is not {hostname!r}, the sandbox's own",
            field="dns.hostname",
        )
    return wish


def _modules(asked: sandbox_pb2.CreateSandboxRequest) -> tuple[KernelModule, ...]:
    fields.at_most(SANDBOX_MODULES, asked.modules, "modules")
    found = []
    for at, each in enumerate(asked.modules):
        fields.at_most(_PARAMETERS, each.parameters, f"modules[{at}].parameters")
        module = KernelModule(name=each.name, parameters=tuple(each.parameters))
        check_module(module, f"modules[{at}]")
        found.append(module)
    return tuple(found)


def _directory(path: str) -> str:
    return fields.absolute_path(path, "guest_hooks") if path else ""


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
    """The end that the details tell."""
    return exit_status(end_of(happened.details, happened.at))
