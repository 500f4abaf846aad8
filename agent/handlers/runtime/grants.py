"""Grants: which nodes of which devices a container gets, where, and with which rights.

A grant is one of three ways to a place in the container, the strongest first: the
path that the grant names; an entry of the specification at a path by which the host
knows the device; the node's own path in the guest. A place that a stronger way has
taken is not fought for, as long as the node has another one: that is how the paths
of two devices can be swapped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.core.errors import invalid
from agent.core.kinds import VfioInfo, VfioMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.core.errors import AgentError
    from agent.core.model import AttachedDevice, DeviceGrant, DeviceNode

ALL = "rwm"

_PERMISSIONS = re.compile(r"(?!.*(.).*\1)[rwm]{0,3}")

_NODE_MODE = 0o660
"""Of a node for which the specification says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A grant, the nodes that it gives, and how the host knows the device.

    `addresses` are pairs of its PCI address on the host and in the guest; `vfio` is
    set where it is for drivers in user space.
    """

    grant: DeviceGrant
    nodes: tuple[DeviceNode, ...]
    host_paths: tuple[str, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()
    vfio: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An entry of linux.devices that a grant may take: what was asked of the node there.

    `access` are the letters that the rules allowed for the entry's numbers.
    """

    path: str
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    access: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """One node of the guest at its path in the container."""

    node: DeviceNode
    path: str
    permissions: str = ALL
    mode: int = _NODE_MODE
    uid: int = 0
    gid: int = 0

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What tells two nodes apart in a directory."""
        return (self.path, self.node.type, self.node.major, self.node.minor)


class User(NamedTuple):
    """The process's user: a node that belongs to somebody else would be of no use to it."""

    uid: int = 0
    gid: int = 0

    @classmethod
    def of(cls, process: Mapping[str, Any]) -> User:
        user = process.get("user") or {}
        return cls(uid=user.get("uid") or 0, gid=user.get("gid") or 0)


ROOT = User()


def select(
    grant: DeviceGrant, nodes: Sequence[DeviceNode], host_paths: Sequence[str] = ()
) -> Granted:
    """What the grant gives of a device with these nodes; raises BAD_FIELD."""
    if not _PERMISSIONS.fullmatch(grant.permissions):
        raise _bad(grant, f"permissions {grant.permissions!r} are not letters of 'rwm'")
    given = tuple(nodes) if not grant.node else (_only(grant, nodes),)
    if grant.container_path:
        _check_path(grant, len(given))
    return Granted(grant=grant, nodes=given, host_paths=tuple(host_paths))


def grant_device(grant: DeviceGrant, device: AttachedDevice) -> Granted:
    """Raises BAD_FIELD."""
    host = device.request.host
    paths = tuple(clean(each.id) for each in host if each.type == "path")
    addresses = tuple((each.id.lower(), device.bdf) for each in host if each.type == "pci")
    info = device.info
    if not device.nodes and not host:
        problem = "it has no nodes in /dev (now), and nothing by which the host knows it"
        raise _bad(grant, problem, hint="there is nothing to give to a container")
    return replace(
        select(grant, device.nodes, paths),
        addresses=addresses if device.bdf else (),
        vfio=isinstance(info, VfioInfo) and info.mode is VfioMode.VFIO,
    )


def place(
    granted: Sequence[Granted], claims: Mapping[str, Claim], user: User
) -> tuple[PlacedNode, ...]:
    """Where all nodes of all grants go; raises BAD_FIELD when two want the same place."""
    spots = _Spots(granted)
    for number, each in enumerate(granted):
        if each.grant.container_path:
            spots.put(clean(each.grant.container_path), number, each.nodes[0])
    open_claims = claims.keys() - spots.at.keys()
    for number, each in enumerate(granted):
        for path in each.host_paths if each.nodes else ():
            if path in open_claims:
                spots.put(path, number, _named(each, path))
    for number, each in enumerate(granted):
        for node in each.nodes if not each.grant.container_path else ():
            spots.put_own(number, node)
    return tuple(_placed(path, spots, claims, user) for path in spots.at)


def effective(granted: Sequence[Granted], placed: Sequence[PlacedNode]) -> tuple[DeviceGrant, ...]:
    """The grants with the permissions that came of them."""
    letters = {each.node.path: each.permissions for each in placed}
    return tuple(
        replace(
            each.grant,
            permissions=each.grant.permissions
            or union(letters.get(node.path, "") for node in each.nodes)
            or ALL,
        )
        for each in granted
    )


def clean(path: str) -> str:
    """A path without '//' and '.', which name the same place; '..' is left to the kernel."""
    return "/" + "/".join(name for name in path.split("/") if name not in ("", "."))


def union(letters: Iterable[str]) -> str:
    """In the usual order."""
    found = set("".join(letters))
    return "".join(letter for letter in ALL if letter in found)


class _Spots:
    """Who has which place; grants by their number in the list. Devices may share a node
    (a control node of all GPUs), and then they share its place."""

    def __init__(self, granted: Sequence[Granted]) -> None:
        self.granted = granted
        self.at: dict[str, list[tuple[int, DeviceNode]]] = {}
        self._paths: dict[tuple[int, DeviceNode], list[str]] = {}

    def put(self, path: str, number: int, node: DeviceNode) -> None:
        if not self._add(path, number, node):
            others = ", ".join(self._device(other) for other, _ in self.at[path])
            raise _bad(
                self.granted[number].grant,
                f"its place {path} in the container is that of {others} already",
            )

    def put_own(self, number: int, node: DeviceNode) -> None:
        """Give way where the node has a place already."""
        if not self.paths(number, node):
            self.put(clean(node.path), number, node)
        else:
            self._add(clean(node.path), number, node)

    def paths(self, number: int, node: DeviceNode) -> list[str]:
        return self._paths.get((number, node), [])

    def _add(self, path: str, number: int, node: DeviceNode) -> bool:
        there = self.at.setdefault(path, [])
        if (number, node) in there:
            return True
        devices = {self._device(other) for other, _ in there}
        same = all(_numbers(other) == _numbers(node) for _, other in there)
        if not same or self._device(number) in devices:
            return False
        there.append((number, node))
        self._paths.setdefault((number, node), []).append(path)
        return True

    def _device(self, number: int) -> str:
        return self.granted[number].grant.device_id


def _placed(path: str, spots: _Spots, claims: Mapping[str, Claim], user: User) -> PlacedNode:
    claim = claims.get(path, Claim(path=path))
    at = spots.at[path]
    letters = (_permissions(number, node, spots, claims) for number, node in at)
    return PlacedNode(
        node=at[0][1],
        path=path,
        permissions=union(letters),
        mode=_NODE_MODE if claim.mode is None else claim.mode,
        uid=user.uid if claim.uid is None else claim.uid,
        gid=user.gid if claim.gid is None else claim.gid,
    )


def _permissions(number: int, node: DeviceNode, spots: _Spots, claims: Mapping[str, Claim]) -> str:
    """Rights belong to a node and not to a path: at all its places they are the same."""
    asked = spots.granted[number].grant.permissions
    if asked:
        return asked
    paths = spots.paths(number, node)
    return union(claims[path].access for path in paths if path in claims) or ALL


def _named(granted: Granted, path: str) -> DeviceNode:
    """The node that a path of the host means; the first is the device's own."""
    return next((node for node in granted.nodes if clean(node.path) == path), granted.nodes[0])


def _numbers(node: DeviceNode) -> tuple[str, int, int]:
    return (node.type, node.major, node.minor)


def _only(grant: DeviceGrant, nodes: Sequence[DeviceNode]) -> DeviceNode:
    wanted = clean(grant.node or "")
    for node in nodes:
        if clean(node.path) == wanted:
            return node
    there = ", ".join(node.path for node in nodes) or "none"
    raise _bad(grant, f"it has no node {wanted}: its nodes are {there}", field="node")


def _check_path(grant: DeviceGrant, count: int) -> None:
    path = grant.container_path or ""
    if count != 1:
        raise _bad(
            grant,
            f"it has {count} nodes: a path in the container is only possible for one",
            field="container_path",
            hint="name the node",
        )
    parts = path.split("/")
    if parts[0] != "" or len(parts) < 2 or {"", ".", ".."} & set(parts[1:]):
        raise _bad(
            grant,
            f"{path!r} is not an absolute path without '.' and '..'",
            field="container_path",
        )


def _bad(
    grant: DeviceGrant, problem: str, *, field: str = "devices", hint: str | None = None
) -> AgentError:
    return invalid(
        f"device {grant.device_id}: {problem}", field=field, hint=hint, id=grant.device_id
    )
