"""Interfaces that a container asks for: those of its request, and `linux.netDevices`.

The runtime (crun 1.21) knows no `netDevices` and would leave them out without saying so;
the agent moves them itself. Rules: OCI runtime specification 1.3, config-linux.md, section
Network Devices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.core.errors import AgentError, invalid
from agent.core.network import InterfaceGrant
from agent.handlers.network.names import NAME_BYTES, check_name
from agent.handlers.runtime.spec.members import Json, bad_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEMPLATE = "%d"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedInterfaces:
    """`lent` come back when the container is gone, `moved` do not."""

    lent: tuple[InterfaceGrant, ...] = ()
    moved: tuple[InterfaceGrant, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lent or self.moved)


def check_net_devices(devices: Json) -> None:
    """Raises BAD_SPEC with the place of what is wrong."""
    names: list[str] = []
    for name in devices.members():
        device = devices.need(name)
        device.members()
        _check(name, device.place)
        new = device.get("name")
        if new is not None and new.text():
            _check_new(new)
        names.append(name if new is None or not new.text() else new.text())
    for name, count in Counter(names).items():
        if count > 1 and not name.endswith(_TEMPLATE):
            raise bad_spec(devices.place, f"two of them would have the name {name}")


def wanted_interfaces(
    spec: Mapping[str, Any], lent: tuple[InterfaceGrant, ...]
) -> WantedInterfaces:
    """All that a container shall get. `spec` is a checked one.

    Raises BAD_FIELD where the container has no network namespace of its own, or two
    interfaces would have one name in it; BAD_SPEC where `netDevices` has no namespace to
    go to. One that is given by a path may have devices moved into it, as the
    specification has it, but lends none: it is another's, and when it ends is not ours to see.
    """
    linux = spec.get("linux") or {}
    devices = linux.get("netDevices") or {}
    moved = tuple(
        InterfaceGrant(name=name, container_name=device.get("name") or "")
        for name, device in devices.items()
    )
    namespace = _network_namespace(linux)
    if moved and namespace is None:
        raise bad_spec("linux.netDevices", "the container has no network namespace", hint=_HINT)
    if lent and (namespace is None or namespace.get("path")):
        raise invalid(
            "interfaces: the container has no network namespace of its own",
            hint=_HINT,
            field="interfaces",
        )
    _check_names((*lent, *moved))
    return WantedInterfaces(lent=lent, moved=moved)


_HINT = 'linux.namespaces needs {"type": "network"}'


def _network_namespace(linux: Mapping[str, Any]) -> Mapping[str, Any] | None:
    namespaces = linux.get("namespaces") or ()
    return next((each for each in namespaces if each["type"] == "network"), None)


def _check_names(grants: tuple[InterfaceGrant, ...]) -> None:
    names = Counter(grant.container_name or grant.name for grant in grants)
    for name, count in names.items():
        if count > 1 and not name.endswith(_TEMPLATE):
            raise invalid(
                f"interfaces: two of them would have the name {name} in the container",
                field="interfaces",
            )


def _check_new(new: Json) -> None:
    """A name, or a template for one: %d at its end, for a number of the kernel's choice."""
    text = new.text()
    if not text.endswith(_TEMPLATE):
        _check(text, new.place)
        return
    stem = text.removesuffix(_TEMPLATE)
    _check(f"{stem}0", new.place)
    if len(text.encode()) > NAME_BYTES:
        raise bad_spec(new.place, f"{text!r} has more than {NAME_BYTES} bytes")


def _check(name: str, place: str) -> None:
    try:
        check_name(name, place)
    except AgentError as error:
        raise bad_spec(place[:200], error.message, hint=error.hint) from error
