"""The words of plugging: what is asked of the guest, and a plugged disk's record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Protocol

from innkeeper.shim.disks import serial_for

if TYPE_CHECKING:
    from innkeeper.shim.disks import DiskFile
    from innkeeper.shim.topology import Port
    from innkeeper.v1 import devices_pb2


class GuestDevices(Protocol):
    """The agent's side; every call raises `ShimError`."""

    async def ready(self) -> None:
        """Returns when the agent answers."""

    async def attach_disk(self, disk: GuestDisk, timeout: float) -> devices_pb2.AttachedDevice:
        """Waits until the disk is usable."""

    async def has(self, disk: GuestDisk) -> bool:
        """Whether the disk is in the agent's table: its id, at its place."""

    async def prepare_detach(self, device_id: str) -> None:
        """Refuses when the device is in use; lets nobody new in."""

    async def cancel_detach(self, device_id: str) -> None:
        """Undoes `prepare_detach`."""

    async def complete_detach(self, device_id: str) -> None:
        """Forgets a device that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestDisk:
    """What the guest is told to wait for."""

    id: str
    pci_path: str
    serial: str
    host_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """A disk that the guest can use now."""

    attached: devices_pb2.AttachedDevice
    micros: int
    """From `device_add` to the guest's answer."""


class DeviceState(StrEnum):
    PLUGGING = "plugging"
    PLUGGED = "plugged"
    UNPLUGGING = "unplugging"
    LEAVING = "leaving"


class Fate(Enum):
    """What QEMU tells about a device."""

    REMOVED = auto()
    KEPT = auto()
    """The guest's kernel refused to release it."""
    QEMU_GONE = auto()


@dataclass(slots=True, kw_only=True)
class PluggedDisk:
    """One record of the table; it lives from admission until the port is free again."""

    id: str
    file: DiskFile
    port: Port
    node: str
    state: DeviceState = DeviceState.PLUGGING
    step: str = "starting"
    """What is being waited for, for the error when time is up."""
    asked_for: bool = False
    """QEMU and the agent were asked to take it, whatever came of it."""
    fate: asyncio.Future[Fate] = field(default_factory=lambda: new_fate())
    """What has become of it since it was last plugged, or last refused to go."""

    @property
    def qemu_id(self) -> str:
        """QEMU's ids begin with a letter, ours need not."""
        return f"dev-{self.id}"

    @property
    def guest(self) -> GuestDisk:
        return GuestDisk(
            id=self.id,
            pci_path=self.port.pci_path,
            serial=serial_for(self.id),
            host_file=str(self.file.path),
        )

    def frontend(self) -> dict[str, object]:
        """`device_add`'s arguments."""
        return {
            "driver": "virtio-blk-pci",
            "id": self.qemu_id,
            "bus": self.port.bus,
            "addr": f"{self.port.slot:02x}",
            "drive": self.node,
            "serial": serial_for(self.id),
        }


def new_fate() -> asyncio.Future[Fate]:
    return asyncio.get_running_loop().create_future()


def settle(fate: asyncio.Future[Fate], told: Fate) -> None:
    if not fate.done():
        fate.set_result(told)
