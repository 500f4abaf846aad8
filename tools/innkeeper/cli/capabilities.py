"""`--cap-add`, `--cap-drop`, `--privileged`: a process's capabilities, capabilities(7)."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import typer

from innkeeper.cli import ocidefaults

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALL = "ALL"
_PREFIX = "CAP_"

EVERY = tuple(
    f"{_PREFIX}{name}"
    for name in (
        *("AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF"),
        *("CHECKPOINT_RESTORE", "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER"),
        *("FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN"),
        *("MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST"),
        *("NET_RAW", "PERFMON", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYSLOG"),
        *("SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT"),
        *("SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG"),
        *("WAKE_ALARM",),
    )
)
"""All of Linux 6.12 (include/uapi/linux/capability.h)."""


def chosen(
    added: Sequence[str], dropped: Sequence[str], *, privileged: bool = False
) -> tuple[str, ...] | None:
    """Sorted; None where nothing was said. What is dropped by its name is never there;
    ALL dropped leaves those that are added. Raises typer.BadParameter."""
    more, less = _named("--cap-add", added), _named("--cap-drop", dropped)
    if not (more or less or privileged):
        return None
    base = set(EVERY if privileged else ocidefaults.CAPABILITIES)
    if _ALL in less:
        base = set()
    if _ALL in more:
        base = set(EVERY)
    return tuple(sorted((base - (less - more) | more) - {_ALL} - _taken(less, more)))


def to_oci(names: Sequence[str]) -> dict[str, list[str]]:
    """Not in the inheritable set, or a program of another user could get them."""
    return {which: list(names) for which in ("bounding", "effective", "permitted")}


def _taken(less: set[str], more: set[str]) -> set[str]:
    """--cap-add ALL --cap-drop X: all but X."""
    return less - {_ALL} if _ALL in more else set()


def _named(option: str, words: Sequence[str]) -> set[str]:
    found = set()
    for word in words:
        name = word.upper()
        if name != _ALL and not name.startswith(_PREFIX):
            name = _PREFIX + name
        if name != _ALL and name not in EVERY:
            raise typer.BadParameter(f"{option} {word}: is no capability{_near(name)}")
        found.add(name)
    return found


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, EVERY, n=1)
    return f"; did you mean {near[0].removeprefix(_PREFIX)}?" if near else ", see capabilities(7)"
