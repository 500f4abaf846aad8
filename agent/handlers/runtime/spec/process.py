"""OCI's process object (config.md, section Process): checked, and filled where it is silent."""

from __future__ import annotations

import os
import resource
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from agent.handlers.runtime.spec.capabilities import check_capabilities
from agent.handlers.runtime.spec.members import (
    INT32,
    UINT16,
    UINT64,
    Json,
    among,
    bad_spec,
    listed,
    within,
)
from agent.handlers.runtime.spec.resources import check_cpu_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.core.errors import AgentError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_HIGHEST_ID = 2**32 - 2
"""The last one means "unchanged" to the kernel."""

_LONGEST_ARGUMENT = 131072
"""MAX_ARG_STRLEN of the kernel, 32 pages of 4 KiB, with the NUL at its end."""

_LONGEST_COMMAND_LINE = 2 * 1024 * 1024
"""A quarter of the usual stack limit of 8 MiB (execve(2)): arguments and environment together."""

_POINTER = 8

_MOST_BITS = 0o777
_OOM_SCORES = (-1000, 1000)
_NICE = (-20, 19)
_PRIORITIES = (0, 7)
"""Of ioprio_set(2); how many a class has, and which, is for the kernel to say."""

_LIMITS = tuple(
    f"RLIMIT_{name}"
    for name in (
        *("AS", "CORE", "CPU", "DATA", "FSIZE", "LOCKS", "MEMLOCK", "MSGQUEUE", "NICE"),
        *("NOFILE", "NPROC", "RSS", "RTPRIO", "RTTIME", "SIGPENDING", "STACK"),
    )
)
_POLICIES = tuple(
    f"SCHED_{name}" for name in ("OTHER", "FIFO", "RR", "BATCH", "ISO", "IDLE", "DEADLINE")
)
_SCHEDULER_FLAGS = tuple(
    f"SCHED_FLAG_{name}"
    for name in (
        *("RESET_ON_FORK", "RECLAIM", "DL_OVERRUN", "KEEP_POLICY", "KEEP_PARAMS"),
        *("UTIL_CLAMP_MIN", "UTIL_CLAMP_MAX"),
    )
)
_CLASSES = tuple(f"IOPRIO_CLASS_{name}" for name in ("RT", "BE", "IDLE"))

_OPEN_FILES = 1024

_INHERITED = (
    "cwd",
    "user",
    "env",
    "capabilities",
    "oomScoreAdj",
    "noNewPrivileges",
    "rlimits",
    "apparmorProfile",
    "selinuxLabel",
    "scheduler",
    "ioPriority",
    "execCPUAffinity",
)

_LABELS = ("apparmorProfile", "selinuxLabel")

_CAPABILITIES = tuple(
    f"CAP_{name}"
    for name in [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "NET_RAW",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
"""What container engines give by default; not in the inheritable set, or a
program of another user could get them (CVE-2022-24769)."""


def check_process(process: Json) -> None:
    """Raises BAD_SPEC with the place of what is wrong."""
    arguments = process.need("args")
    if not arguments.texts() or not arguments.texts()[0]:
        raise bad_spec(arguments.place, "names no program")
    process.fits(_SHAPE)
    _check_lengths(process)


def has_terminal(process: dict[str, Any]) -> bool:
    return bool(process.get("terminal"))


def container_defaults(process: dict[str, Any]) -> dict[str, Any]:
    """The process with what a container's first process usually has, where it is silent."""
    terminal = ["TERM=xterm"] if has_terminal(process) else []
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    defaults = {
        "cwd": "/",
        "user": {"uid": 0, "gid": 0},
        "env": [f"PATH={PATH}", *terminal],
        "capabilities": {
            which: list(_CAPABILITIES) for which in ("bounding", "effective", "permitted")
        },
        # Not the agent's own, which has as many as there may be: programs that use select(2)
        # or close all descriptors they could have expect the usual limit.
        "rlimits": [
            {
                "type": "RLIMIT_NOFILE",
                "soft": min(_OPEN_FILES, most_files),
                "hard": most_files,
            }
        ],
        # Not the agent's own, which is protected from the out-of-memory killer.
        "oomScoreAdj": 0,
    }
    return without_empty({**defaults, **_present(process)})


def exec_defaults(process: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """The process of an exec; where it is silent it is as the container's first."""
    own = _present(process)
    inherited = {name: first[name] for name in _INHERITED if name in first}
    if has_terminal(own) and "env" not in own and not _names_terminal(inherited["env"]):
        inherited["env"] = [*inherited["env"], "TERM=xterm"]
    return without_empty({**inherited, **own})


def added(environment: Sequence[str], more: Sequence[str]) -> list[str]:
    """`more` in place of variables of the same names, and behind the others."""
    names = {entry.partition("=")[0] for entry in more}
    kept = [entry for entry in environment if entry.partition("=")[0] not in names]
    return [*kept, *more]


def without_empty(process: dict[str, Any]) -> dict[str, Any]:
    """Without names that are empty, which mean none: crun asks the kernel for them."""
    empty = {name for name in _LABELS if process.get(name) == ""}
    return {name: value for name, value in process.items() if name not in empty}


def _names_terminal(environment: list[str]) -> bool:
    return any(entry.startswith("TERM=") for entry in environment)


def _present(process: dict[str, Any]) -> dict[str, Any]:
    """Without members that are null, which means absent."""
    return {name: value for name, value in process.items() if value is not None}


def _check_environment(environment: Json) -> None:
    for entry in environment.items():
        name, equals, _ = entry.text().partition("=")
        if not name or not equals:
            raise bad_spec(entry.place, f"{entry.text()[:60]!a} is not NAME=value")


def _check_user(user: Json) -> None:
    user.fits(
        {
            "uid": _check_user_id,
            "gid": _check_user_id,
            "additionalGids": listed(_check_user_id),
            "umask": within((0, _MOST_BITS)),
            "username": Json.text,
        }
    )


def _check_user_id(number: Json) -> None:
    number.number(0, _HIGHEST_ID)


def _check_limits(limits: Json) -> None:
    """crun takes the last one of a kind; the specification has an error for two."""
    seen: set[str] = set()
    for limit in limits.items():
        kind = limit.need("type")
        soft, hard = (limit.need(name).number(*UINT64) for name in ("soft", "hard"))
        if kind.one_of(*_LIMITS) in seen:
            raise bad_spec(kind.place, f"{kind.text()} is there twice")
        if soft > hard:
            raise bad_spec(limit.place, f"the soft limit {soft} is above the hard one {hard}")
        seen.add(kind.text())


def _check_scheduler(scheduler: Json) -> None:
    scheduler.need("policy").one_of(*_POLICIES)
    scheduler.fits(
        {
            "nice": within(_NICE),
            "priority": within(INT32),
            "flags": listed(among(*_SCHEDULER_FLAGS)),
            "runtime": within(UINT64),
            "deadline": within(UINT64),
            "period": within(UINT64),
        }
    )


def _check_io_priority(priority: Json) -> None:
    priority.need("class").one_of(*_CLASSES)
    priority.check("priority", within(_PRIORITIES))


def _check_affinity(affinity: Json) -> None:
    affinity.fits({"initial": check_cpu_list, "final": check_cpu_list})


def _check_console(size: Json) -> None:
    for name in ("height", "width"):
        size.need(name).number(*UINT16)


def _check_lengths(process: Json) -> None:
    """The kernel would refuse at the very end, in the container, where nobody can say so well."""
    total = 0
    for member in ("args", "env"):
        listed = process.get(member)
        for entry in listed.items() if listed is not None else ():
            size = len(os.fsencode(entry.text())) + 1
            if size > _LONGEST_ARGUMENT:
                raise _too_long(entry.place, size - 1, _LONGEST_ARGUMENT - 1)
            total += size + _POINTER
    if total > _LONGEST_COMMAND_LINE:
        raise _too_long(process.place or "process", total, _LONGEST_COMMAND_LINE)


def _too_long(place: str, size: int, limit: int) -> AgentError:
    problem = f"{size} bytes are more than the {limit} that the kernel passes to a program (E2BIG)"
    return bad_spec(place, problem, hint="pass it in a file or on standard input")


_SHAPE = MappingProxyType(
    {
        "env": _check_environment,
        "cwd": Json.path,
        "terminal": Json.flag,
        "consoleSize": _check_console,
        "user": _check_user,
        "capabilities": check_capabilities,
        "rlimits": _check_limits,
        "noNewPrivileges": Json.flag,
        "oomScoreAdj": within(_OOM_SCORES),
        "apparmorProfile": Json.text,
        "selinuxLabel": Json.text,
        "scheduler": _check_scheduler,
        "ioPriority": _check_io_priority,
        "execCPUAffinity": _check_affinity,
    }
)
