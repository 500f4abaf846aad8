"""How an attached device is written to the state directory, and read back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from agent.core.model import (
    AttachedDevice,
    BlockExpectation,
    BlockInfo,
    DeviceNode,
    DeviceRequest,
    DeviceState,
    HostTuple,
    NodeType,
)
from agent.core.pci import PciPath, parse_address


def to_record(device: AttachedDevice, instance: str) -> dict[str, Any]:
    """`instance` tells this device from a later one at the same place; users are not saved."""
    request = device.request
    return {
        "instance": instance,
        "state": device.state.value,
        "request": {
            "id": request.id,
            "address": str(request.address),
            "kind": {"class": "block", **asdict(request.kind)},
            "host": [asdict(name) for name in request.host],
            "timeout": request.timeout,
        },
        "pci_path": str(device.pci_path),
        "bdf": device.bdf,
        "sysfs_path": device.sysfs_path,
        "driver": device.driver,
        "numa_node": device.numa_node,
        "iommu_group": device.iommu_group,
        "nodes": [{**asdict(node), "type": node.type.value} for node in device.nodes],
        "info": asdict(device.info),
    }


def from_record(record: dict[str, Any]) -> tuple[AttachedDevice, str]:
    """The device and its instance; raises KeyError, TypeError or ValueError on another shape."""
    device = AttachedDevice(
        request=_request(record["request"]),
        pci_path=PciPath.parse(record["pci_path"]),
        bdf=record["bdf"],
        sysfs_path=record["sysfs_path"],
        driver=record["driver"],
        numa_node=record["numa_node"],
        iommu_group=record["iommu_group"],
        nodes=tuple(
            DeviceNode(**{**node, "type": NodeType(node["type"])}) for node in record["nodes"]
        ),
        info=BlockInfo(**record["info"]),
        state=DeviceState(record["state"]),
    )
    return device, record["instance"]


def _request(record: dict[str, Any]) -> DeviceRequest:
    kind = {name: value for name, value in record["kind"].items() if name != "class"}
    return DeviceRequest(
        id=record["id"],
        address=parse_address(record["address"]),
        kind=BlockExpectation(**kind),
        host=tuple(HostTuple(**name) for name in record["host"]),
        timeout=record["timeout"],
    )
