"""Environment variables that name devices by their PCI addresses on the host.

The SR-IOV device plugin of Kubernetes gives a container `PCIDEVICE_VENDOR_NAME`, a
list of addresses, and `PCIDEVICE_VENDOR_NAME_INFO`, JSON with an object for each
(sriov-network-device-plugin, pkg/resources/pool_stub.go). In the guest a device has
another address; what the grants tell of it is put in its place, all of a variable or
nothing, in the first process and in those that come later.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from agent.core.errors import invalid
from agent.core.pci import Bdf

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.handlers.runtime.grants import Granted

log = logging.getLogger(__name__)

_PREFIX = "PCIDEVICE_"
_INFO = "_INFO"
_VFIO = "vfio"


def translate_env(env: Sequence[str], granted: Sequence[Granted], container_id: str) -> list[str]:
    """The variables with the guest's addresses.

    An address that no granted device has on the host is an error where devices are for
    user space drivers (VFIO), which find them by it: raises BAD_FIELD. Elsewhere the
    variable stays as it is: the guest's kernel has the device, whatever its address.
    """
    known = {host: guest for each in granted for host, guest in each.addresses}
    names = {entry.partition("=")[0] for entry in env}
    changed: set[str] = set()
    found = list(env)
    for number, entry in enumerate(env):
        name, _, value = entry.partition("=")
        if _is_list(name, names) and (addresses := _addresses(value)):
            missing = [address for address in addresses if address not in known]
            if not missing:
                changed.add(name)
                found[number] = f"{name}={','.join(known[each] for each in addresses)}"
            elif any(each.vfio for each in granted):
                raise _unknown(name, missing)
            else:
                log.warning(
                    "container %s: %s stays as it is: no granted device is %s on the host",
                    *(container_id, name, ", ".join(missing)),
                )
    return [_info(entry, changed, granted) for entry in found]


def _is_list(name: str, names: set[str]) -> bool:
    """A resource may be called `x_info`: what a variable is its company tells."""
    base = name.removesuffix(_INFO)
    return name.startswith(_PREFIX) and (base == name or base not in names)


def _addresses(value: str) -> list[str]:
    """None of them where one is something else (an auxiliary device, "mlx5_core.sf.4")."""
    parts = [part.lower() for part in value.split(",")]
    return parts if all(Bdf.is_name(part) for part in parts) else []


def _info(entry: str, changed: set[str], granted: Sequence[Granted]) -> str:
    name, _, value = entry.partition("=")
    if not name.endswith(_INFO) or name.removesuffix(_INFO) not in changed:
        return entry
    try:
        told = json.loads(value)
        words = _words(granted)
        whole = {words.get(key, key): _parts(key, part, granted) for key, part in told.items()}
        text = json.dumps(_in_guest(whole, words), separators=(",", ":"), ensure_ascii=False)
    except (ValueError, AttributeError, RecursionError):
        log.warning("%s is not as the device plugin writes it, and stays as it is", name)
        return entry
    return f"{name}={text}"


def _words(granted: Iterable[Granted]) -> dict[str, str]:
    """What is called otherwise in the guest: addresses, and the nodes of IOMMU groups."""
    words: dict[str, str] = {}
    for each in granted:
        words.update(each.addresses)
        if each.vfio and each.nodes:
            words.update(dict.fromkeys(each.host_paths, each.nodes[0].path))
    return words


def _parts(address: str, told: Any, granted: Iterable[Granted]) -> Any:
    """Without what was said of VFIO, for a device that the guest's own driver has."""
    vfio = any(each.vfio for each in granted if address in dict(each.addresses))
    if vfio or not isinstance(told, dict):
        return told
    return {name: value for name, value in told.items() if name != _VFIO}


def _in_guest(value: Any, words: Mapping[str, str]) -> Any:
    """Every text once: an address of the guest may be another device's on the host."""
    match value:
        case str():
            return words.get(value, value)
        case list():
            return [_in_guest(each, words) for each in value]
        case dict():
            return {name: _in_guest(each, words) for name, each in value.items()}
        case _:
            return value


def _unknown(name: str, missing: Sequence[str]) -> Exception:
    return invalid(
        f"the variable {name} names {', '.join(missing)}, which no granted device is on the host",
        field="spec",
        hint="grant the devices, with their addresses on the host (Device.host, type pci)",
        variable=name,
        missing=",".join(missing),
    )
