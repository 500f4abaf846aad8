"""What survives the agent of a container and of a process: values, and their JSON."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from agent.core.life import (
    USUAL_STREAMS,
    EndCause,
    LogOptions,
    OutOfMemory,
    PressureResource,
    PressureThreshold,
    StreamOptions,
    WhenFull,
)
from agent.core.model import (
    ContainerRequest,
    ContainerUpdate,
    DeviceGrant,
    DeviceNode,
    ExecRequest,
    NodeType,
    ProcessExit,
    ProcessRef,
)
from agent.handlers.runtime.grants import ROOT, Claim, Granted, User


class Phase(StrEnum):
    """How far a container's last operation has come.

    It is saved before the step it names, so that a restarted agent knows what
    may be half done: CREATING is taken back, STARTING is asked of the runtime,
    REMOVING is finished.
    """

    CREATING = "creating"
    CREATED = "created"
    STARTING = "starting"
    STARTED = "started"
    REMOVING = "removing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """A container; `storages` and `devices` are the ids of what it holds.

    `layer`, `bound`: its bundle holds a writable layer, or its root mounted once more.
    `rules` and `claims` are what the specification said of devices (spec_devices.py),
    `owner` is whom it gives them to.
    `incoming` are the grants of an update from its beginning to its end: an agent
    that finds them takes that update back.
    `lent`: it may have interfaces of the sandbox; `etc` are the files of /etc that are the
    sandbox's (etcfiles.py). `created` and `started` are in seconds of the wall clock, 0 before;
    `arguments` are those of its first process, cut short.
    """

    KIND = "containers"

    id: str
    fingerprint: str
    cgroup: str
    phase: Phase
    storages: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    layer: bool = False
    bound: bool = False
    granted: tuple[Granted, ...] = ()
    incoming: tuple[Granted, ...] | None = None
    rules: tuple[dict[str, Any], ...] = ()
    claims: tuple[Claim, ...] = ()
    owner: User = ROOT
    exclusive_cpus: int = 0
    lent: bool = False
    etc: tuple[str, ...] = ()
    created: float = 0.0
    started: float = 0.0
    arguments: tuple[str, ...] = ()
    terminal: bool = False
    pressure: tuple[PressureThreshold, ...] = ()

    @property
    def key(self) -> str:
        return self.id

    def to_data(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for data of another shape."""
        return cls(
            id=str(data["id"]),
            fingerprint=str(data["fingerprint"]),
            cgroup=str(data["cgroup"]),
            phase=Phase(data["phase"]),
            storages=tuple(map(str, data["storages"])),
            devices=tuple(map(str, data["devices"])),
            layer=bool(data["layer"]),
            bound=bool(data["bound"]),
            granted=_granted(data["granted"]),
            incoming=None if data["incoming"] is None else _granted(data["incoming"]),
            rules=tuple(dict(rule) for rule in data["rules"]),
            claims=tuple(Claim(**claim) for claim in data["claims"]),
            owner=User(*map(int, data["owner"])),
            exclusive_cpus=int(data["exclusive_cpus"]),
            lent=bool(data["lent"]),
            etc=tuple(map(str, data["etc"])),
            created=float(data.get("created", 0)),
            started=float(data.get("started", 0)),
            arguments=tuple(map(str, data.get("arguments", ()))),
            terminal=bool(data.get("terminal", False)),
            pressure=tuple(_threshold(each) for each in data.get("pressure", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """A process, from the intent to make it to its exit.

    `after` is the journal's sequence before the runtime was asked; `pid` is 0
    until it is known; `input_end` is the length of its whole input, once told. `sent` says
    of each fatal signal that the agent has sent it, by number, why.
    """

    KIND = "processes"

    container_id: str
    exec_id: str = ""
    fingerprint: str
    cgroup: str
    terminal: bool
    after: int
    pid: int = 0
    input_end: int | None = None
    exit: ProcessExit | None = None
    streams: StreamOptions = USUAL_STREAMS
    sent: dict[int, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return key_of(self.ref)

    @property
    def ref(self) -> ProcessRef:
        return ProcessRef(container_id=self.container_id, exec_id=self.exec_id)

    def to_data(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for data of another shape."""
        end, ended = data["input_end"], data["exit"]
        return cls(
            container_id=str(data["container_id"]),
            exec_id=str(data["exec_id"]),
            fingerprint=str(data["fingerprint"]),
            cgroup=str(data["cgroup"]),
            terminal=bool(data["terminal"]),
            after=int(data["after"]),
            pid=int(data["pid"]),
            input_end=None if end is None else int(end),
            exit=None if ended is None else exit_of(ended),
            streams=_streams(data.get("streams", {})),
            sent={int(number): str(why) for number, why in data.get("sent", {}).items()},
        )


def key_of(process: ProcessRef) -> str:
    """The name of its file; ids have no colon."""
    return f"{process.container_id}:{process.exec_id or '-'}"


def exit_of(data: dict[str, Any]) -> ProcessExit:
    """What `dataclasses.asdict` made of one; raises KeyError, TypeError or ValueError."""
    cause, kill = data.get("cause"), data.get("out_of_memory")
    nested = {
        "cause": None if cause is None else EndCause(cause),
        "out_of_memory": None if kill is None else OutOfMemory(**kill),
    }
    return ProcessExit(**{**data, **nested})


def _streams(data: dict[str, Any]) -> StreamOptions:
    log = data.get("log")
    return StreamOptions(
        window=int(data.get("window", USUAL_STREAMS.window)),
        when_full=WhenFull(data.get("when_full", USUAL_STREAMS.when_full)),
        log=None if log is None else LogOptions(**log),
    )


def _threshold(data: dict[str, Any]) -> PressureThreshold:
    return PressureThreshold(**{**data, "resource": PressureResource(data["resource"])})


def _granted(data: list[dict[str, Any]]) -> tuple[Granted, ...]:
    return tuple(
        Granted(
            grant=DeviceGrant(**each["grant"]),
            nodes=tuple(_node(node) for node in each["nodes"]),
            host_paths=tuple(map(str, each["host_paths"])),
            addresses=tuple((str(host), str(guest)) for host, guest in each["addresses"]),
            vfio=bool(each["vfio"]),
        )
        for each in data
    )


def _node(data: dict[str, Any]) -> DeviceNode:
    return DeviceNode(**{**data, "type": NodeType(data["type"])})


def fingerprint(request: ContainerRequest | ContainerUpdate | ExecRequest) -> str:
    """Tells the same request from another one, without keeping it: specifications are big."""
    request = dataclasses.replace(request, timeout=None)
    match request:
        case ContainerRequest():
            request = dataclasses.replace(request, spec=_digest(request.spec))
        case ExecRequest():
            request = dataclasses.replace(request, process=_digest(request.process))
    return _digest(repr(request).encode("utf-8", "surrogatepass")).hex()


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
