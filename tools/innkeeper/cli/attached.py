"""What a device became in the guest, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innkeeper.cli import output
from innkeeper.v1 import devices_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innkeeper.v1 import sandbox_pb2


def where(device: devices_pb2.AttachedDevice) -> str:
    """ "PCI path 02/00, 0000:01:00.0, /dev/vdb, 64 MiB"."""
    path = f"PCI path {device.pci_path}" if device.pci_path else ""
    parts = [path, device.pci_bdf, device.bus_address]
    parts += [node.path for node in device.nodes]
    parts += _told(device)
    return ", ".join(part for part in parts if part)


def _told(device: devices_pb2.AttachedDevice) -> Iterator[str]:
    """What is of its kind alone, and not among its nodes."""
    match device.WhichOneof("info"):
        case "block":
            yield output.size(device.block.size)
        case "pmem":
            yield output.size(device.pmem.size)
            yield "DAX" if device.pmem.dax else ""
        case "nic":
            yield f"{device.nic.name} ({device.nic.mac})"
        case "vfio":
            yield from _vfio(device.vfio)
        case "gpu":
            yield f"{device.gpu.vendor} {device.gpu.model}".strip()
        case "rng":
            current = ", the current source" if device.rng.current else ""
            yield f"{device.rng.name}{current}"
        case "fpga":
            yield device.fpga.fme
            yield from device.fpga.ports


def _vfio(vfio: devices_pb2.VfioInfo) -> Iterator[str]:
    if vfio.mode == devices_pb2.VFIO_MODE_VFIO:
        yield f"group {vfio.group}" + (" without an IOMMU" if vfio.no_iommu else "")


def online(told: sandbox_pb2.OnlineResourcesResponse) -> str:
    """ "CPUs 0-2 and 640 MiB are online"."""
    cpus = ranges([int(number) for number in told.cpus_online])
    return f"CPUs {cpus} and {output.size(told.memory_online)} are online"


def ranges(numbers: list[int]) -> str:
    """As the kernel writes lists: "0-2,5"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
