"""A disk behind a PCI function of its own: virtio-blk, or NVMe with one namespace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from innkeeper.shim.disks import DiskFile, serial_for
from innkeeper.shim.hardware import content
from innkeeper.shim.hardware.base import Backend, Hardware, Names, Setting, bad_field
from innkeeper.v1 import devices_pb2, host_pb2

if TYPE_CHECKING:
    from innkeeper.shim.errors import ShimError
    from innkeeper.shim.qmp import QemuRefusedError

# NVME_MAX_VFS of QEMU.
_MOST_FUNCTIONS = 127


def parse(message: host_pb2.Disk, device_id: str, _setting: Setting) -> Hardware:
    file = content.parse(message.content)
    match message.model:
        case host_pb2.DISK_MODEL_UNSPECIFIED | host_pb2.DISK_MODEL_VIRTIO:
            if message.virtual_functions:
                raise bad_field("virtual_functions", "virtual_functions: of NVMe disks only")
            return VirtioDisk(file=file, serial=serial_for(device_id))
        case host_pb2.DISK_MODEL_NVME:
            functions = message.virtual_functions
            if functions > _MOST_FUNCTIONS:
                text = f"virtual_functions {functions}: at most {_MOST_FUNCTIONS}"
                raise bad_field("virtual_functions", text)
            serial = serial_for(device_id)
            if functions:
                return NvmeFunctionsDisk(file=file, serial=serial, functions=functions)
            return NvmeDisk(file=file, serial=serial)
        case _:
            raise bad_field("model", f"disk model {message.model}: unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Disk(Hardware):
    file: DiskFile
    serial: str

    @property
    def source(self) -> str:
        return str(self.file.path)

    @property
    def disk_file(self) -> DiskFile:
        return self.file

    def backends(self, names: Names) -> tuple[Backend, ...]:
        return (content.backend(self.file, names),)

    def properties(self, names: Names) -> dict[str, object]:
        return {"drive": names.backend, "serial": self.serial}

    def guest(self) -> devices_pb2.Device:
        return devices_pb2.Device(
            host=[devices_pb2.HostTuple(type="path", id=self.source)],
            block=devices_pb2.BlockDevice(expect_serial=self.serial),
        )

    def explain(self, error: QemuRefusedError) -> ShimError:
        return content.explain(self.file, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtioDisk(_Disk):
    """virtio-blk."""

    @property
    def driver(self) -> str:
        return "virtio-blk-pci"


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmeDisk(_Disk):
    """One controller, one namespace."""

    express: ClassVar[bool] = True

    @property
    def driver(self) -> str:
        return "nvme"


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmeFunctionsDisk(_Disk):
    """The same with virtual functions (SR-IOV), which QEMU has only for a controller
    in a subsystem, whose namespace is a device of its own."""

    express: ClassVar[bool] = True
    not_pluggable: ClassVar[str] = "QEMU has no hot-plug for an NVMe disk with virtual functions"
    not_removable: ClassVar[str] = not_pluggable

    functions: int

    @property
    def driver(self) -> str:
        return "nvme"

    def backends(self, names: Names) -> tuple[Backend, ...]:
        subsystem = Backend(
            add="device_add",
            arguments={"driver": "nvme-subsys", "id": f"{names.backend}-subsystem"},
            remove="device_del",
            removal={"id": f"{names.backend}-subsystem"},
        )
        return (*_Disk.backends(self, names), subsystem)

    def properties(self, names: Names) -> dict[str, object]:
        """Each virtual function needs two queues and an interrupt of its own, and
        the physical one keeps two queues and an interrupt (QEMU's nvme.rst)."""
        return {
            "serial": self.serial,
            "subsys": f"{names.backend}-subsystem",
            "sriov_max_vfs": self.functions,
            "sriov_vq_flexible": 2 * self.functions,
            "sriov_vi_flexible": self.functions,
            "max_ioqpairs": 2 * self.functions + 2,
            "msix_qsize": self.functions + 2,
        }

    def children(self, names: Names) -> tuple[dict[str, object], ...]:
        return ({"driver": "nvme-ns", "bus": names.device, "drive": names.backend},)
