"""`--device`: which device of the VM, where in the container, and with which rights.

A device is named by the id under which it is attached, by its place in the guest (BDF or
PCI path), by a node of the guest, or by the address or node that the host knows it by.
What is in the guest and attached under no id yet is attached for the container.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.cli.errors import CliError
from innkeeper.v1 import containers_pb2, devices_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from innkeeper.cli.options import GrantOption

_VFIO = "/dev/vfio/"
_CONTROL = "/dev/vfio/vfio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the container gets, and what has to be attached in the guest before that."""

    grants: tuple[containers_pb2.DeviceGrant, ...]
    attach: tuple[devices_pb2.Device, ...] = ()


def resolve(
    options: Sequence[GrantOption],
    attached: Sequence[devices_pb2.AttachedDevice],
    container: str,
    *,
    everything: bool = False,
) -> Wanted:
    """`everything`: all that is attached and has nodes, as a privileged container gets it.
    Raises CliError."""
    grants: list[containers_pb2.DeviceGrant] = []
    attach: list[devices_pb2.Device] = []
    for number, option in enumerate(options, 1):
        device_id = _id_of(option, attached)
        if not device_id:
            attach.append(_to_attach(option, f"{container}-device{number}"[-64:], attached))
            device_id = attach[-1].id
        node = option.device if option.kind == "node" and not _is_group(option.device) else ""
        grants.append(_grant(option, device_id, _node_of(device_id, node, attached)))
    if everything:
        named = {grant.device_id for grant in grants}
        grants += [
            containers_pb2.DeviceGrant(device_id=each.device.id)
            for each in attached
            if each.nodes and each.device.id not in named
        ]
    return Wanted(grants=tuple(grants), attach=tuple(attach))


def _grant(option: GrantOption, device_id: str, node: str) -> containers_pb2.DeviceGrant:
    return containers_pb2.DeviceGrant(
        device_id=device_id,
        container_path=option.path,
        permissions=option.permissions,
        node=node,
    )


def _id_of(option: GrantOption, attached: Iterable[devices_pb2.AttachedDevice]) -> str:
    """Empty when nothing attached is that. The guest's own words go before the host's."""
    found = list(attached)
    if option.kind == "id":
        return option.device
    for is_it in (_in_guest, _on_host):
        for each in found:
            if is_it(each, option):
                return each.device.id
    return ""


def _in_guest(each: devices_pb2.AttachedDevice, option: GrantOption) -> bool:
    match option.kind:
        case "bdf":
            return each.pci_bdf == option.device
        case "pci_path":
            return bool(each.pci_path) and _steps(each.pci_path) == _steps(option.device)
        case _:
            return option.device in {node.path for node in each.nodes}


def _on_host(each: devices_pb2.AttachedDevice, option: GrantOption) -> bool:
    kinds = {"bdf": "pci", "node": "path"}
    return any(
        host.type == kinds.get(option.kind) and host.id.lower() == option.device.lower()
        for host in each.device.host
    )


def _steps(path: str) -> str:
    """The form in which the guest tells it: function 0 and the first root are left out."""
    return re.sub(r"\.0(?=/|$)", "", path.lower()).removeprefix("0000:00/")


def _node_of(device_id: str, node: str, attached: Iterable[devices_pb2.AttachedDevice]) -> str:
    """Only a node that the guest has; one by which the host knows the device is not its."""
    for each in attached:
        if each.device.id == device_id:
            return node if node in {known.path for known in each.nodes} else ""
    return ""


def _is_group(node: str) -> bool:
    """A group is of no use without the control node, which the device has with it."""
    return node.startswith(_VFIO) and node != _CONTROL


def _to_attach(
    option: GrantOption, device_id: str, attached: Sequence[devices_pb2.AttachedDevice]
) -> devices_pb2.Device:
    if option.kind == "node" and option.device.startswith(_VFIO):
        known = ", ".join(sorted({n.path for each in attached for n in each.nodes})) or "none"
        raise CliError(
            f"--device {option.device}: no attached device has this node; nodes: {known}",
            hint="a function is bound to vfio-pci by: innkeeper device attach VM vfio ...",
        )
    device = devices_pb2.Device(id=device_id, common=devices_pb2.CommonDevice())
    match option.kind:
        case "bdf":
            device.address.pci_bdf = option.device
        case "pci_path":
            device.address.pci_path = option.device
        case _:
            device.address.path = option.device
    return device
