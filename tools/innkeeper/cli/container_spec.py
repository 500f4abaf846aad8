"""A container's specification of what the command line asks for: plain OCI.

Only what was asked for is said; the guest fills in the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from innkeeper.cli import ocidefaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innkeeper.cli.limits import Limits
    from innkeeper.cli.security import Security
    from innkeeper.cli.volumes import Tmpfs

INIT = "/dev/init"
"""Where the small init is in the container: the one directory that is there in every root."""
_INIT_OF_GUEST = "/usr/bin/catatonit"
_KINDS = ("pid", "ipc", "uts", "network")
_OF_DOCKER = {"network": {"host": "sandbox", "none": "own"}}
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespaces:
    """Each "own" or "sandbox"."""

    pid: str = "own"
    ipc: str = "own"
    uts: str = "own"
    network: str = "sandbox"

    @property
    def shared(self) -> tuple[str, ...]:
        """Those that a sandbox was made with. Its network is the guest's, which a container
        has anyway."""
        return tuple(kind for kind in ("pid", "ipc", "uts") if getattr(self, kind) == "sandbox")

    def to_oci(self) -> list[dict[str, str]] | None:
        """None where it is as the guest has it anyway."""
        if self.network == "sandbox":
            return None
        return [{"type": kind} for kind in (*ocidefaults.NAMESPACES, "network")]


def parse_namespaces(words: Mapping[str, Any], *, with_vm: bool) -> Namespaces:
    """Raises typer.BadParameter."""
    found = {}
    for kind in _KINDS:
        word = words.get(kind) or ("sandbox" if kind == "network" else "own")
        word = _OF_DOCKER.get(kind, {}).get(word, word)
        if word not in ("own", "sandbox"):
            raise typer.BadParameter(f"--{kind} {word}: write own or sandbox")
        if word == "sandbox" and kind != "network" and not with_vm:
            raise typer.BadParameter(
                f"--{kind} sandbox: wants --vm, and a VM whose sandbox was created with it; a new"
                " VM has none"
            )
        found[kind] = word
    return Namespaces(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """All of a container but its process, its storages and its devices."""

    limits: Limits
    security: Security
    namespaces: Namespaces
    tmpfs: tuple[Tmpfs, ...] = ()
    hostname: str = ""
    read_only: bool = False
    init: bool = False

    def to_oci(self) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        if self.read_only:
            spec["root"] = {"path": "rootfs", "readonly": True}
        if self.hostname:
            spec["hostname"] = self.hostname
        if mounts := self._mounts():
            spec["mounts"] = mounts
        if linux := self._linux():
            spec["linux"] = linux
        return spec

    def _mounts(self) -> list[dict[str, Any]]:
        more = [each.to_oci() for each in self.tmpfs]
        if self.init:
            more.append(
                {
                    "destination": INIT,
                    "type": "bind",
                    "source": _INIT_OF_GUEST,
                    "options": ["bind", "ro"],
                }
            )
        privileged, shm = self.security.privileged, self.limits.shm
        if not (more or privileged or shm):
            return []
        return [*ocidefaults.mounts(writable_kernel=privileged, shm_size=shm), *more]

    def _linux(self) -> dict[str, Any]:
        linux = self.security.of_linux()
        resources = self.limits.to_oci()
        if self.security.privileged:
            resources["devices"] = [{"allow": True, "access": "rwm"}]
        if resources:
            linux["resources"] = resources
        if (namespaces := self.namespaces.to_oci()) is not None:
            linux["namespaces"] = namespaces
        return linux


def check(surroundings: Surroundings) -> None:
    """What fits together with nothing. Raises typer.BadParameter."""
    shared = surroundings.namespaces.shared
    if surroundings.hostname and "uts" in shared:
        raise typer.BadParameter("--hostname: with --uts sandbox the name is the sandbox's")
    if surroundings.init and "pid" in shared:
        raise typer.BadParameter("--init: with --pid sandbox process 1 is the sandbox's own init")
    name = surroundings.hostname
    if len(name.encode()) > _LONGEST_NAME or not name.isprintable() or " " in name:
        raise typer.BadParameter(f"--hostname {name}: is no host name of at most 64 bytes")
