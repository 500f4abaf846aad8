"""Devices in an OCI specification: what a container may touch, and the nodes it sees.

OCI's default devices (config-linux.md, "Default Devices") are always allowed,
also where the specification brings rules of its own: a shell can't live without
/dev/null. Everything else is refused unless the host's rules or a grant say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.core.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.core.model import DeviceGrant, DeviceNode

_REFUSE_ALL = {"allow": False, "access": "rwm"}

_DEFAULTS: tuple[tuple[int | None, int | None, str], ...] = (
    (None, None, "m"),  # a node that can't be opened does no harm
    (1, 3, "rwm"),  # null
    (1, 5, "rwm"),  # zero
    (1, 7, "rwm"),  # full
    (1, 8, "rwm"),  # random
    (1, 9, "rwm"),  # urandom
    (5, 0, "rwm"),  # tty
    (5, 1, "rwm"),  # console
    (5, 2, "rwm"),  # ptmx
    (136, None, "rwm"),  # pts/*
)

_PERMISSIONS = re.compile(r"(?!.*(.).*\1)[rwm]{1,3}")

_NODE_MODE = 0o660


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedNode:
    """One node of a granted device, at its path in the container."""

    node: DeviceNode
    path: str
    permissions: str


def granted_nodes(grant: DeviceGrant, nodes: Sequence[DeviceNode]) -> tuple[GrantedNode, ...]:
    """The nodes of one grant; raises BAD_FIELD."""
    permissions = grant.permissions or "rwm"
    if not _PERMISSIONS.fullmatch(permissions):
        raise invalid(
            f"device {grant.device_id}: permissions {permissions!r} are not letters of 'rwm'",
            field="permissions",
            id=grant.device_id,
        )
    if grant.container_path is None or grant.container_path == "":
        return tuple(
            GrantedNode(node=node, path=node.path, permissions=permissions) for node in nodes
        )
    _check_container_path(grant, len(nodes))
    return (GrantedNode(node=nodes[0], path=grant.container_path, permissions=permissions),)


def add_devices(spec: dict[str, Any], granted: Sequence[GrantedNode]) -> None:
    """Put rules for all, and the granted nodes, into `spec`."""
    _refuse_same_path(granted)
    linux = spec["linux"]
    user = spec["process"]["user"]
    paths = {node.path for node in granted}
    listed = [entry for entry in linux.get("devices") or [] if entry.get("path") not in paths]
    linux["devices"] = listed + [_device(node, user) for node in granted]
    resources = linux["resources"] = dict(linux.get("resources") or {})
    own = resources.get("devices") or []
    rules = own if _starts_with_refusal(own) else [_REFUSE_ALL, *own]
    resources["devices"] = [*rules, *_default_rules(), *map(_rule, granted)]


def _check_container_path(grant: DeviceGrant, count: int) -> None:
    path = grant.container_path or ""
    if count != 1:
        raise invalid(
            f"device {grant.device_id} has {count} nodes: a path in the container is only"
            " possible for one",
            field="container_path",
            id=grant.device_id,
        )
    parts = path.split("/")
    if parts[0] != "" or len(parts) < 2 or {"", ".", ".."} & set(parts[1:]):
        raise invalid(
            f"device {grant.device_id}: {path!r} is not an absolute path without '.' and '..'",
            field="container_path",
            id=grant.device_id,
        )


def _refuse_same_path(granted: Sequence[GrantedNode]) -> None:
    seen: set[str] = set()
    for each in granted:
        if each.path in seen:
            raise invalid(f"two granted devices have the path {each.path}", field="devices")
        seen.add(each.path)


def _starts_with_refusal(rules: Sequence[dict[str, Any]]) -> bool:
    if not rules:
        return False
    first = rules[0]
    everything = first.get("type") in (None, "", "a") and first.get("major") in (None, -1)
    return not first.get("allow") and everything


def _default_rules() -> list[dict[str, Any]]:
    rules = [_allow("c", major, minor, access) for major, minor, access in _DEFAULTS]
    return [*rules, _allow("b", None, None, "m")]


def _rule(granted: GrantedNode) -> dict[str, Any]:
    node = granted.node
    return _allow(node.type.value, node.major, node.minor, granted.permissions)


def _allow(kind: str, major: int | None, minor: int | None, access: str) -> dict[str, Any]:
    numbers = {"major": major, "minor": minor}
    present = {name: number for name, number in numbers.items() if number is not None}
    return {"allow": True, "type": kind, **present, "access": access}


def _device(granted: GrantedNode, user: dict[str, Any]) -> dict[str, Any]:
    """The node belongs to the process's user, or a grant to it would be of no use."""
    return {
        "path": granted.path,
        "type": granted.node.type.value,
        "major": granted.node.major,
        "minor": granted.node.minor,
        "fileMode": _NODE_MODE,
        "uid": user.get("uid", 0),
        "gid": user.get("gid", 0),
    }
