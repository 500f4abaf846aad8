"""How an attached device is written to the state directory, and read back."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from agent.core import addresses, kinds
from agent.core.model import (
    AttachedDevice,
    DeviceNode,
    DeviceRequest,
    DeviceState,
    HostTuple,
    NodeType,
)
from agent.core.pci import PciPath

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

_EXPECTATIONS: dict[str, type[kinds.Expectation]] = {
    "block": kinds.BlockExpectation,
    "vfio": kinds.VfioExpectation,
    "nic": kinds.NicExpectation,
    "gpu": kinds.GpuExpectation,
    "fpga": kinds.FpgaExpectation,
    "rng": kinds.RngExpectation,
    "pmem": kinds.PmemExpectation,
    "common": kinds.CommonExpectation,
}

_INFOS: dict[str, type[kinds.Info]] = {
    "block": kinds.BlockInfo,
    "vfio": kinds.VfioInfo,
    "nic": kinds.NicInfo,
    "gpu": kinds.GpuInfo,
    "fpga": kinds.FpgaInfo,
    "rng": kinds.RngInfo,
    "pmem": kinds.PmemInfo,
    "common": kinds.CommonInfo,
}


def to_record(device: AttachedDevice) -> dict[str, Any]:
    """The device as plain values; users are not saved."""
    request = device.request
    return {
        "state": device.state.value,
        "request": {
            "id": request.id,
            "address": [addresses.kind_of(request.address), str(request.address)],
            "kind": _tagged(request.kind, _EXPECTATIONS),
            "host": [asdict(name) for name in request.host],
            "load_modules": list(request.load_modules),
            "timeout": request.timeout,
        },
        "pci_path": str(device.pci_path) if device.pci_path else None,
        "nodes": [{**asdict(node), "type": node.type.value} for node in device.nodes],
        "info": _tagged(device.info, _INFOS),
        **{name: getattr(device, name) for name in _PLAIN},
    }


_PLAIN = (
    "bdf",
    "sysfs_path",
    "driver",
    "numa_node",
    "iommu_group",
    "pci_id",
    "pci_class",
    "bus_address",
)


def from_record(record: Mapping[str, Any]) -> AttachedDevice:
    """Raises KeyError, TypeError, ValueError or AgentError for another shape."""
    path = record["pci_path"]
    return AttachedDevice(
        request=_request(record["request"]),
        pci_path=None if path is None else PciPath.parse(path),
        nodes=tuple(
            DeviceNode(**{**node, "type": NodeType(node["type"])}) for node in record["nodes"]
        ),
        info=_untagged(record["info"], _INFOS),
        state=DeviceState(record["state"]),
        **{name: record[name] for name in _PLAIN},
    )


def _request(record: Mapping[str, Any]) -> DeviceRequest:
    kind, text = record["address"]
    return DeviceRequest(
        id=record["id"],
        address=addresses.parse(kind, text),
        kind=_untagged(record["kind"], _EXPECTATIONS),
        host=tuple(HostTuple(**name) for name in record["host"]),
        load_modules=tuple(record["load_modules"]),
        timeout=record["timeout"],
    )


def _tagged(value: Any, table: Mapping[str, type[Any]]) -> dict[str, Any]:
    tag = next(name for name, each in table.items() if type(value) is each)
    return {"class": tag, **asdict(value)}


def _untagged(record: Mapping[str, Any], table: Mapping[str, type[T]]) -> T:
    """JSON has no tuples and no enums: a list was a tuple, VFIO's mode one of its modes."""
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in record.items()
        if name != "class"
    }
    if record["class"] == "vfio":
        values["mode"] = kinds.VfioMode(record["mode"])
    return table[record["class"]](**values)


_MODES: dict[str, Callable[[str], kinds.Mode]] = {
    "vfio": kinds.VfioMode,
    "driver": kinds.DriverName,
    "mig": kinds.MigProfile,
}


def mode_record(mode: kinds.Mode | None) -> list[str] | None:
    """A mode as its kind and text."""
    match mode:
        case None:
            return None
        case kinds.VfioMode():
            return ["vfio", mode.value]
        case kinds.DriverName(name):
            return ["driver", name]
        case kinds.MigProfile(name):
            return ["mig", name]


def mode_of(record: list[str] | None) -> kinds.Mode | None:
    """Raises KeyError, ValueError for another shape."""
    if record is None:
        return None
    kind, text = record
    return _MODES[kind](text)
