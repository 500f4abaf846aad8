"""Addresses of devices: the protocol's oneof and ours, each way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.addresses import (
    Address,
    CcwAddress,
    MacAddress,
    MmioAddress,
    NodePath,
    ScsiAddress,
)
from agent.core.errors import Reason, invalid
from agent.core.pci import Bdf, PciPath
from innkeeper.v1 import devices_pb2

if TYPE_CHECKING:
    from innkeeper.v1.devices_pb2 import DeviceAddress


def address(told: DeviceAddress, field: str) -> Address:
    """Raises BAD_ADDRESS, also when none is set."""
    match told.WhichOneof("address"):
        case "pci_path":
            return PciPath.parse(told.pci_path)
        case "pci_bdf":
            return Bdf.parse(told.pci_bdf)
        case "scsi":
            return _scsi(told.scsi)
        case "ccw":
            return CcwAddress.parse(told.ccw)
        case "mmio":
            return MmioAddress.parse(told.mmio)
        case "path":
            return NodePath.parse(told.path)
        case "mac":
            return MacAddress.parse(told.mac)
        case _:
            raise invalid(f"{field}: no address is set", reason=Reason.BAD_ADDRESS, field=field)


def as_asked(address: Address) -> DeviceAddress:
    """The address as the host gave it, in its canonical text."""
    match address:
        case PciPath():
            return devices_pb2.DeviceAddress(pci_path=str(address))
        case Bdf():
            return devices_pb2.DeviceAddress(pci_bdf=str(address))
        case ScsiAddress():
            return devices_pb2.DeviceAddress(scsi=_as_scsi(address))
        case CcwAddress():
            return devices_pb2.DeviceAddress(ccw=str(address))
        case MmioAddress():
            return devices_pb2.DeviceAddress(mmio=str(address))
        case NodePath():
            return devices_pb2.DeviceAddress(path=str(address))
        case MacAddress():
            return devices_pb2.DeviceAddress(mac=str(address))


def _scsi(told: devices_pb2.ScsiAddress) -> ScsiAddress:
    return ScsiAddress(
        channel=told.channel,
        target=told.target,
        lun=told.lun,
        host=told.host if told.HasField("host") else None,
        adapter=PciPath.parse(told.adapter_pci_path) if told.adapter_pci_path else None,
    )


def _as_scsi(address: ScsiAddress) -> devices_pb2.ScsiAddress:
    return devices_pb2.ScsiAddress(
        adapter_pci_path=str(address.adapter) if address.adapter else "",
        host=address.host,
        channel=address.channel,
        target=address.target,
        lun=address.lun,
    )
