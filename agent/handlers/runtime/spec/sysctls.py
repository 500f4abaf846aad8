"""OCI's linux.sysctl: only what belongs to a namespace that is the container's own.

Anything else is the whole guest's, or the sandbox's: a container does not set it. The rule
is the same as crun's, and one stricter: a namespace that is given by a path is not the
container's own either (crun 1.21 would set it there).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from agent.handlers.runtime.spec.members import Json, bad_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

_IPC = {
    *("kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall"),
    *("kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced"),
}
"""Those of ipc_namespaces(7), with all of fs.mqueue."""

_HOSTNAME = "kernel.hostname"
_DOMAINNAME = "kernel.domainname"

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:@.-]*")
_HINT = "Sandbox.Create has `sysctls` for the guest as a whole"


def check_sysctl(sysctl: Json) -> None:
    """The names and values themselves. Raises BAD_SPEC."""
    for name in sysctl.members():
        value = sysctl.need(name)
        value.text()
        if not _parts(name):
            raise bad_spec(value.place[:200], "is no name of a sysctl")


def check_sysctls(linux: Mapping[str, Any]) -> None:
    """Whether each has a namespace of the container's own. Raises BAD_SPEC.

    `linux` is a checked one. What is shared with the sandbox: spec_namespaces.py.
    """
    own = {each["type"] for each in linux.get("namespaces") or () if not each.get("path")}
    if linux.get("namespaces") is None:
        own = {"ipc", "uts"}
    for name in linux.get("sysctl") or {}:
        place = f"linux.sysctl.{name}"[:200]
        kind = _namespace(name)
        if kind is None:
            raise bad_spec(place, "belongs to no namespace, but to the whole guest", hint=_HINT)
        if kind not in own:
            problem = f"the container has no {kind} namespace of its own to set it in"
            raise bad_spec(place, problem, hint=f'linux.namespaces needs {{"type": "{kind}"}}')


def _namespace(name: str) -> str | None:
    parts = _parts(name)
    dotted = ".".join(parts)
    if parts[:1] == ["net"] and len(parts) > 1:
        return "network"
    if dotted in _IPC or parts[:2] == ["fs", "mqueue"]:
        return "ipc"
    if dotted == _HOSTNAME:
        raise bad_spec(f"linux.sysctl.{name}", "is what `hostname` is for")
    return "uts" if dotted == _DOMAINNAME else None


def _parts(name: str) -> list[str]:
    """Components as sysctl(8) reads a name, none when it is no name.

    The separator that comes first counts; crun takes both, so a name with ".." could lead
    anywhere below /proc/sys.
    """
    slash, dot = name.find("/"), name.find(".")
    slashed = slash >= 0 and (dot < 0 or slash < dot)
    parts = name.split("/" if slashed else ".")
    good = all(_PART.fullmatch(part) and ".." not in part for part in parts)
    return parts if good else []
