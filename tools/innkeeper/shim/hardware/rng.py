"""A random number generator, fed from the host's /dev/urandom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.shim.hardware.base import Backend, Hardware, Names, Setting
from innkeeper.v1 import devices_pb2

if TYPE_CHECKING:
    from innkeeper.v1 import host_pb2

# The `period` of virtio-rng in milliseconds: its `max-bytes` are a second's.
_SECOND = 1000


def parse(message: host_pb2.Rng, _device_id: str, _setting: Setting) -> Hardware:
    return VirtioRng(bytes_per_second=message.bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtioRng(Hardware):
    """virtio-rng."""

    bytes_per_second: int = 0
    """0: no limit."""

    @property
    def driver(self) -> str:
        return "virtio-rng-pci"

    @property
    def source(self) -> str:
        return "/dev/urandom"

    def backends(self, names: Names) -> tuple[Backend, ...]:
        return (
            Backend(
                add="object-add",
                arguments={
                    "qom-type": "rng-random",
                    "id": names.backend,
                    "filename": self.source,
                },
                remove="object-del",
                removal={"id": names.backend},
            ),
        )

    def properties(self, names: Names) -> dict[str, object]:
        limit: dict[str, object] = {}
        if self.bytes_per_second:
            limit = {"max-bytes": self.bytes_per_second, "period": _SECOND}
        return {"rng": names.backend} | limit

    def guest(self) -> devices_pb2.Device:
        return devices_pb2.Device(rng=devices_pb2.RngDevice())
