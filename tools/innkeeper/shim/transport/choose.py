"""Which transport a VM gets: the best that the host has."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.shim.transport import vhost_user
from innkeeper.shim.transport.stream import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable


class Kind(StrEnum):
    """The values of `--transport`; `auto` is none of them."""

    VSOCK = "vsock"
    VHOST_USER = "vhost-user-vsock"
    SERIAL = "serial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the host offers. A missing thing is a text: what is missing and how to get it."""

    vhost_vsock: Path | str
    vhost_user: Path | str

    @classmethod
    def look(
        cls, *, dev: Path = Path("/dev"), which: Callable[[str], str | None] = shutil.which
    ) -> Host:
        """This host, now."""
        program = which(vhost_user.PROGRAM)
        return cls(
            vhost_vsock=_usable(dev / "vhost-vsock"),
            vhost_user=Path(program)
            if program
            else f"{vhost_user.PROGRAM} is not on PATH: build it with"
            f" `cargo install --locked {vhost_user.PROGRAM}`",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A transport, why it was taken, and the program it needs (vhost-user only)."""

    kind: Kind
    why: str
    program: Path | None = None


def choose(wanted: str, host: Host, *, migratable: bool = False) -> Choice:
    """The transport for `wanted`: a Kind's value, or `auto` for the best.

    `migratable` VMs (templates) cannot have vhost-user devices. Raises
    TransportError when the wanted one is unknown or not to be had here.
    """
    if wanted == "auto":
        return _best(host, migratable=migratable)
    try:
        kind = Kind(wanted)
    except ValueError:
        known = ", ".join(["auto", *Kind])
        raise TransportError(f"transport {wanted!r}: unknown; these are known: {known}") from None
    missing = _missing(kind, host, migratable=migratable)
    if missing:
        raise TransportError(
            f"transport {kind}: {missing} (or take --transport serial, which always works)"
        )
    return _choice(kind, "asked for", host)


def _best(host: Host, *, migratable: bool) -> Choice:
    passed_over: list[str] = []
    for kind in Kind:
        missing = _missing(kind, host, migratable=migratable)
        if not missing:
            return _choice(kind, "; ".join(passed_over) or "the host's kernel has it", host)
        passed_over.append(f"no {kind}: {missing}")
    raise AssertionError("serial is never missing")


def _missing(kind: Kind, host: Host, *, migratable: bool) -> str:
    """What stands against this kind; empty for nothing."""
    match kind:
        case Kind.VSOCK:
            return host.vhost_vsock if isinstance(host.vhost_vsock, str) else ""
        case Kind.VHOST_USER if migratable:
            return "a VM with a vhost-user device cannot be saved as a template"
        case Kind.VHOST_USER:
            return host.vhost_user if isinstance(host.vhost_user, str) else ""
        case Kind.SERIAL:
            return ""


def _choice(kind: Kind, why: str, host: Host) -> Choice:
    program = host.vhost_user if kind is Kind.VHOST_USER else None
    return Choice(kind=kind, why=why, program=program if isinstance(program, Path) else None)


def _usable(device: Path) -> Path | str:
    if not device.exists():
        return f"{device} is not there: load the module vhost_vsock"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"{device} may not be opened: join its group (kvm), or run as root"
    return device
