"""Capabilities by name and number (include/uapi/linux/capability.h)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from agent.handlers.runtime.spec.members import bad_spec

if TYPE_CHECKING:
    from agent.handlers.runtime.spec.members import Json

_IN_ORDER = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID"),
    *("SETUID", "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST"),
    *("NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO"),
    *("SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE"),
    *("SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE"),
    *("AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM"),
    *("BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE"),
)

NUMBERS = MappingProxyType({f"CAP_{name}": number for number, name in enumerate(_IN_ORDER)})

SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")


def check_capabilities(capabilities: Json) -> None:
    """Raises BAD_SPEC with the place of what is wrong.

    crun 1.21 leaves out a name that it does not know, and an ambient capability that the
    kernel refuses, without a word; what the kernel has for rules is in capabilities(7).
    """
    for name in SETS:
        capabilities.check(name, lambda names: names.each(_check_name))
    _check_within(capabilities, "effective", "permitted")
    _check_within(capabilities, "ambient", "permitted")
    _check_within(capabilities, "ambient", "inheritable")


def _check_name(name: Json) -> None:
    if name.text() not in NUMBERS:
        raise bad_spec(
            name.place,
            f"{name.text()[:40]!a} is no capability",
            hint="names are those of capabilities(7), such as CAP_NET_RAW",
        )


def _check_within(capabilities: Json, inner: str, outer: str) -> None:
    small, big = capabilities.get(inner), capabilities.get(outer)
    allowed = set(big.texts()) if big is not None else set()
    for name in small.items() if small is not None else ():
        if name.text() not in allowed:
            problem = f"{name.text()} is not in the {outer} set, so no process can have it"
            raise bad_spec(name.place, problem)
