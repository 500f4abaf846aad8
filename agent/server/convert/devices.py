"""Devices: requests and what they became."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.errors import Reason, invalid
from agent.core.model import (
    AttachedDevice,
    BlockExpectation,
    DeviceRequest,
    DeviceState,
    HostTuple,
)
from agent.core.names import check_id
from agent.core.pci import Bdf, PciAddress, PciPath
from agent.server.convert import fields
from agent.server.limits import DEVICE_BATCH
from agent.server.routing import not_built
from innkeeper.v1 import devices_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

_NONE = -1


def device_requests(devices: Iterable[devices_pb2.Device]) -> tuple[DeviceRequest, ...]:
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


def device_request(device: devices_pb2.Device, field: str) -> DeviceRequest:
    """One device of the batch; `field` is where it stands in the request."""
    return DeviceRequest(
        id=check_id("device", device.id),
        address=_address(device.address, f"{field}.address"),
        kind=_kind(device, field),
        host=tuple(HostTuple(type=host.type, id=host.id) for host in device.host),
        timeout=fields.seconds(device.timeout_seconds, f"{field}.timeout_seconds"),
    )


def _address(address: devices_pb2.DeviceAddress, field: str) -> PciAddress:
    match address.WhichOneof("address"):
        case "pci_path":
            return PciPath.parse(address.pci_path)
        case "pci_bdf":
            return Bdf.parse(address.pci_bdf)
        case None:
            raise invalid(f"{field}: no address is set", reason=Reason.BAD_ADDRESS, field=field)
        case other:
            raise not_built(f"{field}: a device by its {other} address")


def _kind(device: devices_pb2.Device, field: str) -> BlockExpectation:
    match fields.choice(device, "kind", field):
        case "block":
            serial = fields.plain_text(device.block.expect_serial, f"{field}.block.expect_serial")
            return BlockExpectation(serial=serial or None, size=device.block.expect_size or None)
        case other:
            raise not_built(f"{field}: a device of the kind {other}")


_STATES = {
    DeviceState.ATTACHED: devices_pb2.DEVICE_STATE_ATTACHED,
    DeviceState.LEAVING: devices_pb2.DEVICE_STATE_LEAVING,
    DeviceState.VANISHED: devices_pb2.DEVICE_STATE_VANISHED,
}


def attached_device(attached: AttachedDevice) -> devices_pb2.AttachedDevice:
    """A device that is usable, as the host gets to know it."""
    return devices_pb2.AttachedDevice(
        device=_as_asked(attached.request),
        pci_path=str(attached.pci_path),
        pci_bdf=attached.bdf,
        sysfs_path=attached.sysfs_path,
        driver=attached.driver,
        numa_node=_NONE if attached.numa_node is None else attached.numa_node,
        iommu_group=_NONE if attached.iommu_group is None else attached.iommu_group,
        nodes=[
            devices_pb2.DeviceNode(path=n.path, type=n.type.value, major=n.major, minor=n.minor)
            for n in attached.nodes
        ],
        state=_STATES[attached.state],
        users=sorted(attached.users),
        block=devices_pb2.BlockInfo(
            size=attached.info.size,
            logical_block_size=attached.info.logical_block_size,
            read_only=attached.info.read_only,
            model=attached.info.model,
            serial=attached.info.serial,
        ),
    )


def _as_asked(request: DeviceRequest) -> devices_pb2.Device:
    text = str(request.address)
    by_path = isinstance(request.address, PciPath)
    pb = devices_pb2.DeviceAddress
    return devices_pb2.Device(
        id=request.id,
        address=pb(pci_path=text) if by_path else pb(pci_bdf=text),
        host=[devices_pb2.HostTuple(type=host.type, id=host.id) for host in request.host],
        timeout_seconds=request.timeout or 0,
        block=devices_pb2.BlockDevice(
            expect_serial=request.kind.serial or "", expect_size=request.kind.size or 0
        ),
    )
