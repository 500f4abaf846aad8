"""The sandbox: what Sandbox.Create asked for, and what that changed in the guest. One per VM.

It is kept in the state directory, so a restarted agent still refuses a second sandbox, and
takes back what an earlier agent had begun and not finished.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

from agent.core.errors import invalid
from agent.core.life import PressureResource, PressureThreshold

if TYPE_CHECKING:
    from agent.core.network import DnsWish
    from agent.core.state import StateStore

log = logging.getLogger(__name__)

_KIND, _KEY = "sandbox", "sandbox"

# RFC 1123 section 2.1: labels of letters, digits and inner hyphens, at most 63.
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LONGEST_HOSTNAME: Final = 64  # __NEW_UTS_LEN in include/uapi/linux/utsname.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How the sandbox is called; an empty host name left the guest's as it was."""

    id: str
    hostname: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelModule:
    """A module by name or alias, with "parameter=value" each."""

    name: str
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxWish:
    """Sandbox.Create; `sysctls` are pairs of name and value, by name."""

    id: str
    hostname: str = ""
    dns: DnsWish | None = None
    modules: tuple[KernelModule, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    shared_namespaces: tuple[str, ...] = ()
    guest_hooks: str = ""
    pressure: tuple[PressureThreshold, ...] = ()
    timeout: float | None = field(default=None, compare=False)

    @property
    def identity(self) -> Identity:
        return Identity(id=self.id, hostname=self.hostname)

    @property
    def fingerprint(self) -> str:
        """Tells the same request from another one, without keeping its values."""
        text = repr(dataclasses.replace(self, timeout=None))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What Create has changed and somebody has to take back.

    Each part is noted before it is changed, so it may be of something that was not done.
    `sysctls` are paths below /proc/sys with what they held; `hostname` is the former one;
    `dns_before` is the resolver's former record, when DNS is `dns_changed`.
    """

    modules: tuple[str, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    hostname: str | None = None
    dns_changed: bool = False
    dns_before: dict[str, Any] | None = None

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for data of another shape."""
        before, hostname = data["dns_before"], data["hostname"]
        return cls(
            modules=tuple(map(str, data["modules"])),
            sysctls=tuple((str(path), str(value)) for path, value in data["sysctls"]),
            hostname=None if hostname is None else str(hostname),
            dns_changed=bool(data["dns_changed"]),
            dns_before=None if before is None else dict(before),
        )


NOTHING_MADE: Final = Made()


class SandboxPhase(StrEnum):
    """CREATING is taken back by the next agent; GONE is a sandbox that left something behind."""

    CREATING = "creating"
    CREATED = "created"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """What is saved. `hooks` is the guest's hooks as handlers/runtime/hooks.py has them."""

    identity: Identity
    fingerprint: str
    phase: SandboxPhase
    made: Made = NOTHING_MADE
    hooks: dict[str, Any] | None = None
    pressure: tuple[PressureThreshold, ...] = ()

    def to_data(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for data of another shape."""
        return cls(
            identity=Identity(**data["identity"]),
            fingerprint=str(data["fingerprint"]),
            phase=SandboxPhase(data["phase"]),
            made=Made.from_data(data["made"]),
            hooks=data["hooks"],
            pressure=tuple(map(_threshold, data["pressure"])),
        )


class Sandbox:
    """Holds the record; `current` is None before Create and after Destroy."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self.record = _restored(state)

    @property
    def current(self) -> Identity | None:
        if self.record is None or self.record.phase is not SandboxPhase.CREATED:
            return None
        return self.record.identity

    def save(self, record: SandboxRecord) -> None:
        """Raises NO_SPACE, and then the record is what it was."""
        self._state.save(_KIND, _KEY, record.to_data())
        self.record = record

    def forget(self) -> None:
        """Another sandbox may be created then."""
        self._state.delete(_KIND, _KEY)
        self.record = None


def check_hostname(name: str) -> str:
    """An RFC 1123 name of at most 64 bytes, or nothing; raises BAD_FIELD.

    It gets into files (resolv.conf, hosts) and prompts, so nothing else may.
    """
    if name and (len(name) > _LONGEST_HOSTNAME or not _HOSTNAME.fullmatch(name)):
        raise invalid(
            f"hostname: {name[:80]!r} is not an RFC 1123 name of at most {_LONGEST_HOSTNAME} bytes",
            field="hostname",
        )
    return name


def _restored(state: StateStore) -> SandboxRecord | None:
    saved = state.load(_KIND, _KEY)
    if saved is None:
        return None
    try:
        return SandboxRecord.from_data(saved)
    except (KeyError, TypeError, ValueError) as error:
        log.warning("the saved state of the sandbox is of another shape: %r", error)
        return None


def _threshold(data: dict[str, Any]) -> PressureThreshold:
    return PressureThreshold(**{**data, "resource": PressureResource(data["resource"])})
