"""Namespaces that a container shares with the sandbox, in its specification.

What the specification says of such a namespace gives way; what it would change in one that is
not its own is refused, because all who share it would have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent.core.errors import invalid
from agent.handlers.runtime.holder import HOSTNAME, KINDS, SHARED_MEMORY
from agent.handlers.runtime.spec.members import bad_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NETWORK: Final = "network"
_ALL: Final = (*KINDS, NETWORK)

# Of a namespace, not of the guest as a whole: runtime-spec, config-linux.md, Sysctl, and
# the kernel's ipc/ipc_sysctl.c, ipc/mq_sysctl.c, kernel/utsname_sysctl.c.
_SYSCTLS: Final = {
    "ipc": ("kernel.shm", "kernel.msg", "kernel.sem", "kernel.auto_msgmni", "fs.mqueue."),
    "uts": ("kernel.hostname", "kernel.domainname"),
    "network": ("net.",),
}
_HINT: Final = "Sandbox.Create sets it for all, or the container does not share the namespace"
_SHM_OPTIONS: Final = ("rbind", "rprivate", "nosuid", "nodev", "noexec")


def check_shared(shared: Sequence[str], field: str = "shared_namespaces") -> tuple[str, ...]:
    """Raises BAD_FIELD for what can't be shared, or is there twice."""
    for kind in shared:
        if kind not in _ALL:
            known = ", ".join(_ALL)
            raise invalid(f"{field}: {kind[:20]!r} can't be shared; known: {known}", field=field)
    if len(set(shared)) != len(shared):
        raise invalid(f"{field}: one of them is there twice", field=field)
    return tuple(shared)


def check_own(kinds: Sequence[str], field: str = "shared_namespaces") -> tuple[str, ...]:
    """Those that a sandbox can have of its own. Raises BAD_FIELD."""
    if NETWORK in kinds:
        raise invalid(
            f"{field}: the network is the guest's own and can be shared in any case", field=field
        )
    return check_shared(kinds, field)


def share(config: dict[str, Any], shared: Sequence[str], paths: Mapping[str, str]) -> None:
    """Have the container join these namespaces.

    `config` is complete: its `linux.namespaces` are those that it gets. `paths` is what
    `NamespaceHolder.paths` gives. Raises BAD_SPEC for what the container would change in a
    namespace that is not its own.
    """
    _check_sysctls(config, shared)
    _check_network(config, shared)
    _take_hostname(config, shared, paths)
    kept = [each for each in config["linux"]["namespaces"] if each["type"] not in shared]
    joined = [{"type": kind, "path": paths[kind]} for kind in KINDS if kind in shared]
    config["linux"]["namespaces"] = [*kept, *joined]
    if "ipc" in shared and SHARED_MEMORY in paths:
        _bind_shared_memory(config, paths[SHARED_MEMORY])


def _check_sysctls(config: Mapping[str, Any], shared: Sequence[str]) -> None:
    for name in config["linux"].get("sysctl") or {}:
        dotted = name.replace("/", ".")
        for kind in shared:
            if dotted.startswith(_SYSCTLS.get(kind, ())):
                what = f"belongs to the namespace {kind}, which is the sandbox's"
                raise bad_spec(f"linux.sysctl.{name}"[:200], what, hint=_HINT)


def _check_network(config: Mapping[str, Any], shared: Sequence[str]) -> None:
    if NETWORK in shared and config["linux"].get("netDevices"):
        raise bad_spec(
            "linux.netDevices",
            "can't be moved: the container shares the guest's own network",
            hint="a container with a network namespace of its own can have interfaces",
        )


def _take_hostname(config: dict[str, Any], shared: Sequence[str], paths: Mapping[str, str]) -> None:
    """The runtime would set it in the namespace that it joins."""
    if "uts" not in shared:
        return
    hostname = config.pop("hostname", None)
    if hostname and hostname != paths[HOSTNAME]:
        what = f"is not {paths[HOSTNAME]!r}, the sandbox's, whose host name it shares"
        raise bad_spec("hostname", what, hint=_HINT)
    if config.pop("domainname", None):
        raise bad_spec("domainname", "would be that of all who share the namespace uts")


def _bind_shared_memory(config: dict[str, Any], directory: str) -> None:
    """POSIX shared memory is files: those who share "ipc" expect to share them too. One who
    mounts something else than a tmpfs there keeps it."""
    for mount in config["mounts"]:
        if mount["destination"].rstrip("/") == SHARED_MEMORY and mount.get("type") == "tmpfs":
            read_only = [word for word in mount.get("options") or () if word == "ro"]
            mount |= {
                "type": "bind",
                "source": directory,
                "options": [*_SHM_OPTIONS, *read_only],
            }
