"""OCI's process object (config.md, section Process): checked, and filled where it is silent."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Any

from agent.handlers.runtime.specjson import Json, bad_spec

if TYPE_CHECKING:
    from agent.core.errors import AgentError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_HIGHEST_ID = 2**32 - 2
"""The last one means "unchanged" to the kernel."""

_LONGEST_ARGUMENT = 131072
"""MAX_ARG_STRLEN of the kernel, 32 pages of 4 KiB, with the NUL at its end."""

_LONGEST_COMMAND_LINE = 2 * 1024 * 1024
"""A quarter of the usual stack limit of 8 MiB (execve(2)): arguments and environment together."""

_POINTER = 8

_NOT_DONE = "execCPUAffinity"

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
)

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
    process.check("env", _check_environment)
    process.check("cwd", Json.path)
    process.check("terminal", Json.flag)
    process.check("user", _check_user)
    process.check("capabilities", _check_capabilities)
    if process.get(_NOT_DONE) is not None:
        raise bad_spec(f"{process.place}.{_NOT_DONE}".strip("."), "the runtime can't do that")
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
    return {**defaults, **_present(process)}


def exec_defaults(process: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """The process of an exec; where it is silent it is as the container's first."""
    own = _present(process)
    inherited = {name: first[name] for name in _INHERITED if name in first}
    if has_terminal(own) and "env" not in own and not _names_terminal(inherited["env"]):
        inherited["env"] = [*inherited["env"], "TERM=xterm"]
    return {**inherited, **own}


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
    user.check("uid", _check_user_id)
    user.check("gid", _check_user_id)
    user.check("additionalGids", lambda groups: groups.each(_check_user_id))


def _check_user_id(number: Json) -> None:
    number.number(0, _HIGHEST_ID)


def _check_capabilities(capabilities: Json) -> None:
    for name in capabilities.members():
        capabilities.check(name, Json.texts)


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
