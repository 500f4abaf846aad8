"""Devices: requests and what they became."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.holding import Holder, HolderKind
from agent.core.model import AttachedDevice, DeviceRequest, DeviceState, HostTuple
from agent.core.names import check_id
from agent.server.convert import addresses, fields, kinds
from agent.server.limits import DEVICE_BATCH, MODULES
from innkeeper.v1 import devices_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

_NONE = -1


def device_requests(devices: Iterable[pb.Device]) -> tuple[DeviceRequest, ...]:
    """A batch: 1 to 64 devices with different ids."""
    requests = tuple(
        device_request(device, f"devices[{index}]") for index, device in enumerate(devices)
    )
    if not 1 <= len(requests) <= DEVICE_BATCH:
        raise invalid(
            f"devices: 1 to {DEVICE_BATCH} are possible in one call, not {len(requests)}",
            field="devices",
        )
    ids = [request.id for request in requests]
    if twice := {device_id for device_id in ids if ids.count(device_id) > 1}:
        raise invalid(f"devices: {', '.join(sorted(twice))} is there twice", field="devices")
    return requests


def device_request(device: pb.Device, field: str) -> DeviceRequest:
    """One device of the batch; `field` is where it stands in the request."""
    return DeviceRequest(
        id=check_id("device", device.id),
        address=addresses.address(device.address, f"{field}.address"),
        kind=kinds.expectation(device, field),
        host=tuple(HostTuple(type=host.type, id=host.id) for host in device.host),
        load_modules=kinds.names(device.load_modules, f"{field}.load_modules", MODULES),
        timeout=fields.seconds(device.timeout_seconds, f"{field}.timeout_seconds"),
    )


_STATES = {
    DeviceState.ATTACHED: pb.DEVICE_STATE_ATTACHED,
    DeviceState.LEAVING: pb.DEVICE_STATE_LEAVING,
    DeviceState.VANISHED: pb.DEVICE_STATE_VANISHED,
}


def attached_device(attached: AttachedDevice) -> pb.AttachedDevice:
    """A device that is usable, as the host gets to know it."""
    return pb.AttachedDevice(
        device=_as_asked(attached.request),
        pci_path=str(attached.pci_path or ""),
        pci_bdf=attached.bdf,
        sysfs_path=attached.sysfs_path,
        driver=attached.driver,
        numa_node=_NONE if attached.numa_node is None else attached.numa_node,
        iommu_group=_NONE if attached.iommu_group is None else attached.iommu_group,
        nodes=[
            pb.DeviceNode(path=n.path, type=n.type.value, major=n.major, minor=n.minor)
            for n in attached.nodes
        ],
        state=_STATES[attached.state],
        users=sorted(attached.users),
        pci_id=attached.pci_id,
        pci_class=attached.pci_class,
        bus_address=attached.bus_address,
        **kinds.info_message(attached.info),  # type: ignore[arg-type]
    )


def _as_asked(request: DeviceRequest) -> pb.Device:
    return pb.Device(
        id=request.id,
        address=addresses.as_asked(request.address),
        host=[pb.HostTuple(type=host.type, id=host.id) for host in request.host],
        timeout_seconds=request.timeout or 0,
        load_modules=request.load_modules,
        **kinds.kind_message(request.kind),  # type: ignore[arg-type]
    )


_HOLDERS = {
    HolderKind.STORAGE: pb.HOLDER_KIND_STORAGE,
    HolderKind.CONTAINER: pb.HOLDER_KIND_CONTAINER,
    HolderKind.MOUNT: pb.HOLDER_KIND_MOUNT,
    HolderKind.DESCRIPTOR: pb.HOLDER_KIND_DESCRIPTOR,
    HolderKind.SWAP: pb.HOLDER_KIND_SWAP,
    HolderKind.STACKED: pb.HOLDER_KIND_STACKED,
    HolderKind.NETWORK_NAMESPACE: pb.HOLDER_KIND_NETWORK_NAMESPACE,
}


def holder(found: Holder) -> pb.DeviceHolder:
    """One who uses a device."""
    return pb.DeviceHolder(
        kind=_HOLDERS[found.kind],
        name=found.name,
        path=found.path,
        pid=found.pid,
        command=found.command,
    )
