"""The agent's side of plugging: sees what the fake QEMU has in its ports."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import grpc

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.plugged import GuestDisk
from innkeeper.v1 import devices_pb2
from tests.fakes.qmp import FakeQmp


def refusal(code: grpc.StatusCode, guest_reason: str) -> ShimError:
    """What `Guest` makes of an error of the agent's."""
    fields: dict[str, object] = {"guest_reason": guest_reason}
    error = ShimError(Reason.GUEST_REFUSED, f"the guest refused: {guest_reason}", fields=fields)
    error.code = code
    return error


@dataclass(slots=True)
class FakeGuestDevices:
    """An agent's table of devices; `qemu` says which are in the machine."""

    qemu: FakeQmp
    attached: dict[str, str] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    refuse: dict[str, ShimError] = field(default_factory=dict)
    """Call to the error that it raises."""
    holds: asyncio.Event = field(default_factory=asyncio.Event)
    """An attach answers only when it is set."""
    hangs: set[str] = field(default_factory=set)
    """Calls that never answer."""
    loses_answers: bool = False
    """The connection breaks after an attach was done, before its answer."""
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.holds.set()

    async def ready(self) -> None:
        self.calls.append("ready")

    async def attach_disk(self, disk: GuestDisk, timeout: float) -> devices_pb2.AttachedDevice:
        self._note("attach", disk.id)
        if disk.id in self.attached:
            raise refusal(grpc.StatusCode.ALREADY_EXISTS, "ID_IN_USE")
        async with asyncio.timeout(timeout):
            await self._until_present(disk)
            await self.holds.wait()
        self.attached[disk.id] = disk.pci_path
        if self.loses_answers:
            raise ShimError(Reason.AGENT_AWAY, "connection lost")
        return devices_pb2.AttachedDevice(
            device=devices_pb2.Device(id=disk.id), pci_path=disk.pci_path
        )

    async def has(self, disk: GuestDisk) -> bool:
        if "has" in self.refuse:
            raise self.refuse["has"]
        return self.attached.get(disk.id) == disk.pci_path

    async def prepare_detach(self, device_id: str) -> None:
        self._note("prepare", device_id)
        if "prepare" in self.hangs:
            await asyncio.Event().wait()
        self._known(device_id)
        self.leaving.add(device_id)

    async def cancel_detach(self, device_id: str) -> None:
        self._note("cancel", device_id)
        self._known(device_id)
        self.leaving.discard(device_id)

    async def complete_detach(self, device_id: str) -> None:
        self._note("complete", device_id)
        self._known(device_id)
        del self.attached[device_id]
        self.leaving.discard(device_id)

    def _note(self, call: str, device_id: str) -> None:
        self.calls.append(f"{call} {device_id}")
        if call in self.refuse:
            raise self.refuse[call]

    def _known(self, device_id: str) -> None:
        if device_id not in self.attached:
            raise refusal(grpc.StatusCode.NOT_FOUND, "UNKNOWN_DEVICE")

    async def _until_present(self, disk: GuestDisk) -> None:
        async with self.qemu.changed:
            while not self._is_present(disk):
                await self.qemu.changed.wait()

    def _is_present(self, disk: GuestDisk) -> bool:
        return any(device["serial"] == disk.serial for device in self.qemu.devices.values())
