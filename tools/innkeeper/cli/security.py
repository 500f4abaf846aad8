"""What a container's process may do: capabilities, --security-opt, --ulimit, --sysctl."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from innkeeper.cli import capabilities

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNCONFINED = "unconfined"
_LARGEST_PROFILE = 1 << 20
_INFINITY = 2**64 - 1
"""RLIM_INFINITY, getrlimit(2)."""
_USUAL_FILES = {"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 524_288}
_ULIMITS = (
    *("as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile"),
    *("nproc", "rss", "rtprio", "rttime", "sigpending", "stack"),
)
_VALUE = r"-1|unlimited|[0-9]{1,19}"
_ULIMIT = re.compile(rf"(?P<name>[a-z]+)=(?P<soft>{_VALUE})(:(?P<hard>{_VALUE}))?")
_OF_A_CONTAINER = re.compile(
    r"kernel\.(shm\w+|msg\w+|sem|domainname)|fs\.mqueue\.\w+|(?P<net>net\..+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Empty members leave it to the guest."""

    capabilities: tuple[str, ...] | None = None
    privileged: bool = False
    no_new_privileges: bool = False
    apparmor: str = ""
    seccomp: Mapping[str, Any] | None = None
    unmasked: bool = False
    rlimits: tuple[Mapping[str, Any], ...] = ()
    sysctls: Mapping[str, str] | None = None

    def of_process(self) -> dict[str, Any]:
        """Members of OCI's process object."""
        found: dict[str, Any] = {}
        if self.capabilities is not None:
            found["capabilities"] = capabilities.to_oci(self.capabilities)
        if self.no_new_privileges:
            found["noNewPrivileges"] = True
        if self.apparmor:
            found["apparmorProfile"] = self.apparmor
        if self.rlimits:
            found["rlimits"] = [dict(each) for each in self.rlimits]
        return found

    def of_linux(self) -> dict[str, Any]:
        """Members of OCI's linux object, but for resources."""
        found: dict[str, Any] = {}
        if self.seccomp is not None:
            found["seccomp"] = dict(self.seccomp)
        if self.privileged or self.unmasked:
            found |= {"maskedPaths": [], "readonlyPaths": []}
        if self.sysctls:
            found["sysctl"] = dict(self.sysctls)
        return found


def parse(words: Mapping[str, Any]) -> Security:
    """Of `--cap-add` and so on. Raises typer.BadParameter."""
    privileged = bool(words.get("privileged"))
    return Security(
        capabilities=capabilities.chosen(
            words.get("cap_add") or (), words.get("cap_drop") or (), privileged=privileged
        ),
        privileged=privileged,
        rlimits=_rlimits(words.get("ulimit") or ()),
        sysctls=_sysctls(words.get("sysctl") or (), network=words.get("network") or ""),
        **_options(words.get("security_opt") or ()),
    )


def _options(texts: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.replace(":", "=", 1).partition("=")
        match name, value:
            case "no-new-privileges", "" | "true" | "false":
                found["no_new_privileges"] = value != "false"
            case "seccomp", _ if value:
                found["seccomp"] = None if value == _UNCONFINED else _profile(value)
            case "apparmor", _ if value:
                found["apparmor"] = "" if value == _UNCONFINED else value
            case "systempaths", "unconfined":
                found["unmasked"] = True
            case _:
                known = "no-new-privileges, seccomp=FILE|unconfined, apparmor=PROFILE|unconfined"
                raise typer.BadParameter(
                    f"--security-opt {text}: write one of {known}, systempaths=unconfined"
                )
    return found


def _profile(file: str) -> dict[str, Any]:
    """OCI's own form, config-linux.md (Seccomp): what the runtime gets is what the file has."""
    path, option = Path(file), "--security-opt seccomp"
    try:
        if path.stat().st_size > _LARGEST_PROFILE:
            raise typer.BadParameter(f"{option}: {file}: too large")
        profile = json.loads(path.read_bytes())
    except OSError as error:
        raise typer.BadParameter(f"{option}: {file}: {error.strerror}") from None
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {file}: is no JSON: {error}") from None
    if not isinstance(profile, dict) or "defaultAction" not in profile:
        raise typer.BadParameter(f"{option}: {file}: has no defaultAction")
    return _without_conditions(profile, option, file)


def _without_conditions(profile: dict[str, Any], option: str, file: str) -> dict[str, Any]:
    """Docker's own profiles have members that its daemon resolves, and that OCI does not know."""
    for member in ("archMap",):
        if member in profile:
            raise typer.BadParameter(f"{option}: {file}: {member} is docker's own; OCI has none")
    for rule in profile.get("syscalls") or ():
        if isinstance(rule, dict) and (rule.get("includes") or rule.get("excludes")):
            raise typer.BadParameter(
                f"{option}: {file}: includes and excludes are docker's own; OCI has none"
            )
    return profile


def _rlimits(texts: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    """With the usual number of open files where it is not said: a list is the whole list."""
    found: dict[str, Mapping[str, Any]] = {}
    for text in texts:
        match = _ULIMIT.fullmatch(text)
        if match is None or match["name"] not in _ULIMITS:
            raise typer.BadParameter(
                f"--ulimit {text}: write NAME=SOFT[:HARD], as in nofile=1024:4096; names:"
                f" {', '.join(_ULIMITS)}"
            )
        soft, hard = _number(match["soft"]), _number(match["hard"] or match["soft"])
        if soft > hard:
            raise typer.BadParameter(f"--ulimit {text}: the soft limit is above the hard one")
        kind = f"RLIMIT_{match['name'].upper()}"
        found[kind] = {"type": kind, "soft": soft, "hard": hard}
    if found:
        found.setdefault("RLIMIT_NOFILE", _USUAL_FILES)
    return tuple(found.values())


def _number(text: str) -> int:
    return _INFINITY if text in ("-1", "unlimited") else min(int(text), _INFINITY)


def _sysctls(texts: Sequence[str], *, network: str) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        match = _OF_A_CONTAINER.fullmatch(name)
        if not equals or match is None:
            why = "is the guest's, not a container's" if equals else "write NAME=VALUE"
            raise typer.BadParameter(
                f"--sysctl {text}: {why}; a container has kernel.shm*, kernel.msg*, kernel.sem,"
                " fs.mqueue.*, and net.* with --network own"
            )
        if match["net"] and network not in ("own", "none"):
            raise typer.BadParameter(
                f"--sysctl {text}: wants --network own: the container has the guest's network"
            )
        found[name] = value
    return found
