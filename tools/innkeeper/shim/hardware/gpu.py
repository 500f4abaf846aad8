"""Graphics devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from innkeeper.shim.hardware.base import Hardware, Names, Setting, bad_field
from innkeeper.v1 import devices_pb2, host_pb2


def parse(message: host_pb2.Gpu, _device_id: str, _setting: Setting) -> Hardware:
    match message.model:
        case host_pb2.GPU_MODEL_UNSPECIFIED | host_pb2.GPU_MODEL_BOCHS:
            return BochsDisplay()
        case host_pb2.GPU_MODEL_VIRTIO:
            return VirtioGpu()
        case _:
            raise bad_field("model", f"GPU model {message.model}: unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class BochsDisplay(Hardware):
    """A frame buffer: a card node, no render node.

    Something in QEMU (seen with 7.2 and 10.0) keeps a reference to it: it leaves the machine,
    and DEVICE_DELETED never comes. QEMU then also ends itself when another is put into
    the same port, since the old one's memory has that name still.
    """

    flavour: ClassVar[str] = "generic"
    silent: ClassVar[bool] = True
    roomy: ClassVar[bool] = True

    @property
    def driver(self) -> str:
        return "bochs-display"

    def guest(self) -> devices_pb2.Device:
        return devices_pb2.Device(gpu=devices_pb2.GpuDevice(expect_pci_id="1234:1111"))


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtioGpu(Hardware):
    """Card and render node. QEMU's displays can't come or go while it runs, so
    its device class takes no hot-plug."""

    flavour: ClassVar[str] = "generic"
    not_pluggable: ClassVar[str] = "QEMU has no hot-plug for virtio-gpu"
    not_removable: ClassVar[str] = not_pluggable

    @property
    def driver(self) -> str:
        return "virtio-gpu-pci"

    def properties(self, names: Names) -> dict[str, object]:  # noqa: ARG002 - it has no backend
        return {"romfile": ""}

    def guest(self) -> devices_pb2.Device:
        gpu = devices_pb2.GpuDevice(expect_pci_id="1af4:1050", expect_render_node=True)
        return devices_pb2.Device(gpu=gpu)
