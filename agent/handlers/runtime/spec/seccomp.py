"""OCI's linux.seccomp, checked (config-linux.md, section Seccomp).

crun leaves out system calls that its library has no number for, as the specification has
it (the annotation run.oci.seccomp_fail_unknown_syscall makes that an error).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.handlers.runtime.spec.members import (
    UINT32,
    UINT64,
    Json,
    among,
    bad_spec,
    listed,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTIFY = "SCMP_ACT_NOTIFY"

ACTIONS = tuple(
    f"SCMP_ACT_{name}"
    for name in (
        *("KILL", "KILL_PROCESS", "KILL_THREAD", "TRAP", "ERRNO", "TRACE", "ALLOW", "LOG"),
        "NOTIFY",
    )
)

_OPERATORS = tuple(f"SCMP_CMP_{name}" for name in ("NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"))

_ARCHITECTURES = tuple(
    f"SCMP_ARCH_{name}"
    for name in (
        *("X86", "X86_64", "X32", "ARM", "AARCH64", "MIPS", "MIPS64", "MIPS64N32"),
        *("MIPSEL", "MIPSEL64", "MIPSEL64N32", "PPC", "PPC64", "PPC64LE", "S390", "S390X"),
        *("PARISC", "PARISC64", "RISCV64", "LOONGARCH64", "M68K", "SH", "SHEB"),
    )
)

_FLAGS = tuple(
    f"SECCOMP_FILTER_FLAG_{name}" for name in ("TSYNC", "LOG", "SPEC_ALLOW", "WAIT_KILLABLE_RECV")
)

_LAST_ARGUMENT = 5


def check_seccomp(seccomp: Json) -> None:
    """Raises BAD_SPEC with the place of what is wrong."""
    seccomp.need("defaultAction").one_of(*ACTIONS)
    seccomp.fits(
        {
            "defaultErrnoRet": within(UINT32),
            "architectures": listed(among(*_ARCHITECTURES)),
            "flags": listed(among(*_FLAGS)),
            "listenerPath": Json.text,
            "listenerMetadata": Json.text,
            "syscalls": listed(_check_rule),
        }
    )
    listener = seccomp.get("listenerPath")
    if listener is None or not listener.text():
        _check_unheard(seccomp)


def actions(seccomp: Json) -> Iterator[Json]:
    """Every action of a checked profile."""
    yield seccomp.need("defaultAction")
    rules = seccomp.get("syscalls")
    for rule in rules.items() if rules is not None else ():
        yield rule.need("action")


def _check_unheard(seccomp: Json) -> None:
    """crun 1.21 starts such a container, and the calls fail with ENOSYS."""
    for action in actions(seccomp):
        if action.text() == NOTIFY:
            raise bad_spec(action.place, f"{NOTIFY} needs linux.seccomp.listenerPath")


def _check_rule(rule: Json) -> None:
    names = rule.need("names")
    if not names.texts():
        raise bad_spec(names.place, "names no system call")
    rule.need("action").one_of(*ACTIONS)
    rule.check("errnoRet", within(UINT32))
    rule.check("args", lambda arguments: arguments.each(_check_argument))


def _check_argument(argument: Json) -> None:
    argument.need("index").number(0, _LAST_ARGUMENT)
    argument.need("value").number(*UINT64)
    argument.check("valueTwo", within(UINT64))
    argument.need("op").one_of(*_OPERATORS)
