"""virtio-scsi: a controller in a port, and disks on it that come and go by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from innkeeper.shim.disks import DiskFile, serial_for
from innkeeper.shim.hardware import content
from innkeeper.shim.hardware.base import Backend, Hardware, Names, Place, Setting, bad_field
from innkeeper.v1 import devices_pb2, host_pb2

if TYPE_CHECKING:
    from innkeeper.shim.errors import ShimError
    from innkeeper.shim.qmp import QemuRefusedError

# VIRTIO_SCSI_MAX_TARGET and VIRTIO_SCSI_MAX_LUN of QEMU.
_LAST_TARGET = 255
_LAST_LUN = 16383


def parse_controller(
    _message: host_pb2.ScsiController, _device_id: str, _setting: Setting
) -> Hardware:
    return ScsiController()


def parse_disk(message: host_pb2.ScsiDisk, device_id: str, _setting: Setting) -> Hardware:
    if not message.controller:
        raise bad_field("controller", f"SCSI disk {device_id}: no controller given")
    for name, last in (("target", _LAST_TARGET), ("lun", _LAST_LUN)):
        if getattr(message, name) > last:
            raise bad_field(name, f"{name} {getattr(message, name)}: not possible", f"0 to {last}")
    return ScsiDisk(
        file=content.parse(message.content),
        serial=serial_for(device_id),
        controller=message.controller,
        target=message.target,
        lun=message.lun,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScsiController(Hardware):
    """A host adapter without disks."""

    @property
    def driver(self) -> str:
        return "virtio-scsi-pci"

    def guest(self) -> devices_pb2.Device:
        return devices_pb2.Device(common=devices_pb2.CommonDevice())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScsiDisk(Hardware):
    """A disk on a controller that is plugged in already."""

    place: ClassVar[Place] = Place.CONTROLLER

    file: DiskFile
    serial: str
    controller: str
    """Id of the controller's device."""
    target: int
    lun: int

    @property
    def driver(self) -> str:
        return "scsi-hd"

    @property
    def source(self) -> str:
        return str(self.file.path)

    @property
    def disk_file(self) -> DiskFile:
        return self.file

    @property
    def unit(self) -> tuple[int, int]:
        return self.target, self.lun

    def backends(self, names: Names) -> tuple[Backend, ...]:
        return (content.backend(self.file, names),)

    def properties(self, names: Names) -> dict[str, object]:
        return {
            "drive": names.backend,
            "serial": self.serial,
            "channel": 0,
            "scsi-id": self.target,
            "lun": self.lun,
        }

    def guest(self) -> devices_pb2.Device:
        return devices_pb2.Device(
            host=[devices_pb2.HostTuple(type="path", id=self.source)],
            block=devices_pb2.BlockDevice(expect_serial=self.serial),
        )

    def explain(self, error: QemuRefusedError) -> ShimError:
        return content.explain(self.file, error)
