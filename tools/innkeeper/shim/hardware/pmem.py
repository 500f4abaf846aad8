"""Persistent memory out of a file: virtio-pmem behind a PCI function, or an NVDIMM."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware import backing
from innkeeper.shim.hardware.base import (
    MEMORY_BLOCK,
    Backend,
    Hardware,
    Names,
    Place,
    Setting,
    bad_field,
)
from innkeeper.v1 import devices_pb2, host_pb2

if TYPE_CHECKING:
    from innkeeper.shim.qmp import Monitor, QemuRefusedError

# Huge pages of the host, which QEMU aligns such memory to.
_PAGE = 2 << 20


def parse(message: host_pb2.Pmem, device_id: str, setting: Setting) -> Hardware:
    if message.model == host_pb2.PMEM_MODEL_NVDIMM:
        _require_nvdimm(device_id, setting)
    backing.require_room(device_id, setting)
    unit: int
    make: type[VirtioPmem | Nvdimm]
    match message.model:
        case host_pb2.PMEM_MODEL_UNSPECIFIED | host_pb2.PMEM_MODEL_VIRTIO:
            unit, make = _PAGE, VirtioPmem
        case host_pb2.PMEM_MODEL_NVDIMM:
            unit, make = MEMORY_BLOCK, Nvdimm
        case _:
            raise bad_field("model", f"pmem model {message.model}: unknown")
    file, size = _file(message, unit)
    backing.require_fit(device_id, size, setting)
    return make(file=file, size=size, read_only=message.read_only, room=setting.room)


def _require_nvdimm(device_id: str, setting: Setting) -> None:
    if not setting.nvdimm:
        raise ShimError(
            Reason.NOT_PLUGGABLE,
            f"device {device_id}: this VM was started without support for NVDIMMs",
            hint="start it with --nvdimm and --max-memory, more than its memory",
            fields={"id": device_id},
        )


def _file(message: host_pb2.Pmem, unit: int) -> tuple[Path, int]:
    """The file and its size. Raises BAD_FIELD, FILE_NOT_FOUND."""
    path = Path(message.file)
    if not path.is_absolute() or "\0" in message.file:
        raise bad_field("file", f"pmem file {message.file!r}: not an absolute path")
    try:
        status = path.stat()
    except OSError as error:
        raise _missing(path, error.strerror or str(error)) from None
    if not stat.S_ISREG(status.st_mode):
        raise bad_field("file", f"pmem file {path}: not a regular file")
    if not os.access(path, os.R_OK if message.read_only else os.R_OK | os.W_OK):
        raise _missing(path, "may not be read" if message.read_only else "may not be written")
    if not status.st_size or status.st_size % unit:
        text = f"pmem file {path}: {status.st_size} bytes, not a multiple of {unit >> 20} MiB"
        raise bad_field("file", text, f"truncate --size=%{unit >> 20}M {path}")
    return path, status.st_size


def _missing(path: Path, why: str) -> ShimError:
    return ShimError(Reason.FILE_NOT_FOUND, f"pmem file {path}: {why}", fields={"file": path})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pmem(Hardware):
    in_turn: ClassVar[bool] = True
    not_removable: ClassVar[str] = "QEMU can't unplug persistent memory"

    file: Path
    size: int
    read_only: bool
    room: int
    """Bytes for all memory that comes."""

    @property
    def source(self) -> str:
        return str(self.file)

    async def resolve(self, names: Names, monitor: Monitor) -> Hardware:
        await backing.require_left(names.id, self.size, self.room, monitor)
        return self

    def backends(self, names: Names) -> tuple[Backend, ...]:
        properties: dict[str, object] = {
            "mem-path": str(self.file),
            "size": self.size,
            # Only what is shared gets back to the file.
            "share": not self.read_only,
            "readonly": self.read_only,
        }
        return (backing.backend("memory-backend-file", names, properties),)

    def guest(self) -> devices_pb2.Device:
        return devices_pb2.Device(
            host=[devices_pb2.HostTuple(type="path", id=self.source)],
            pmem=devices_pb2.PmemDevice(expect_size=self.size),
        )

    def explain(self, error: QemuRefusedError) -> ShimError:
        return backing.explain(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtioPmem(_Pmem):
    """virtio-pmem."""

    @property
    def driver(self) -> str:
        return "virtio-pmem-pci"

    def properties(self, names: Names) -> dict[str, object]:
        return {"memdev": names.backend}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvdimm(_Pmem):
    """An NVDIMM, told by ACPI."""

    place: ClassVar[Place] = Place.MACHINE

    @property
    def driver(self) -> str:
        return "nvdimm"

    def properties(self, names: Names) -> dict[str, object]:
        # The guest takes an unarmed NVDIMM for one that may not be written.
        return {"memdev": names.backend, "unarmed": self.read_only}
