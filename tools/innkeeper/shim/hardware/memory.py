"""More memory: a DIMM that can go again, or virtio-mem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from innkeeper.shim.hardware import backing
from innkeeper.shim.hardware.base import (
    MEMORY_BLOCK,
    Backend,
    Growth,
    Hardware,
    Names,
    Place,
    Setting,
    bad_field,
)
from innkeeper.shim.sizes import in_words
from innkeeper.v1 import host_pb2

if TYPE_CHECKING:
    from innkeeper.shim.errors import ShimError
    from innkeeper.shim.qmp import Monitor, QemuRefusedError


def parse(message: host_pb2.Memory, device_id: str, setting: Setting) -> Hardware:
    backing.require_room(device_id, setting)
    size = message.size
    if not size or size % MEMORY_BLOCK:
        hint = f"a whole number of {MEMORY_BLOCK >> 20} MiB"
        raise bad_field("size", f"memory of {in_words(size)}: not possible", hint)
    backing.require_fit(device_id, size, setting)
    match message.model:
        case host_pb2.MEMORY_MODEL_UNSPECIFIED | host_pb2.MEMORY_MODEL_DIMM:
            return Dimm(size=size, shared=setting.shared_memory, room=setting.room)
        case host_pb2.MEMORY_MODEL_VIRTIO:
            return VirtioMem(size=size, shared=setting.shared_memory, room=setting.room)
        case _:
            raise bad_field("model", f"memory model {message.model}: unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory(Hardware):
    in_turn: ClassVar[bool] = True

    size: int
    shared: bool
    room: int
    """Bytes for all memory that comes."""

    @property
    def growth(self) -> Growth:
        return Growth(memory=self.size)

    async def resolve(self, names: Names, monitor: Monitor) -> Hardware:
        await backing.require_left(names.id, self.size, self.room, monitor)
        return self

    def backends(self, names: Names) -> tuple[Backend, ...]:
        if self.shared:
            properties: dict[str, object] = {"size": self.size, "share": True}
            return (backing.backend("memory-backend-memfd", names, properties),)
        return (backing.backend("memory-backend-ram", names, {"size": self.size}),)

    def properties(self, names: Names) -> dict[str, object]:
        return {"memdev": names.backend}

    def explain(self, error: QemuRefusedError) -> ShimError:
        return backing.explain(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimm(_Memory):
    """pc-dimm: the guest's kernel takes its blocks offline when it is asked to go."""

    place: ClassVar[Place] = Place.MACHINE

    @property
    def driver(self) -> str:
        return "pc-dimm"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtioMem(_Memory):
    """virtio-mem: a PCI function that tells the guest how much of it to use."""

    not_removable: ClassVar[str] = "QEMU can't unplug virtio-mem, only shrink it"

    @property
    def driver(self) -> str:
        return "virtio-mem-pci"

    def properties(self, names: Names) -> dict[str, object]:
        return _Memory.properties(self, names) | {"requested-size": self.size}
