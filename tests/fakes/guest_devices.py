"""The agent's side of plugging: sees what the fake QEMU has in its ports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.v1 import devices_pb2, sandbox_pb2
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
    """Id to place."""
    asked: list[devices_pb2.Device] = field(default_factory=list)
    """Every device that an attach named."""
    cpus: int = 1
    memory: int = 512 << 20
    wanted: list[tuple[int, int]] = field(default_factory=list)
    """The totals of CPUs and memory that were asked for."""
    mounted: dict[str, list[str]] = field(default_factory=dict)
    """Storages by the tag of their share."""
    leaving: set[str] = field(default_factory=set)
    refuse: dict[str, ShimError] = field(default_factory=dict)
    """Call, or call and id with a blank between, to the error that it raises."""
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

    async def attach(
        self, devices: Sequence[devices_pb2.Device], timeout: float
    ) -> tuple[devices_pb2.AttachedDevice, ...]:
        for device in devices:
            self._note("attach", device.id)
            self.asked.append(device)
            if device.id in self.attached:
                raise refusal(grpc.StatusCode.ALREADY_EXISTS, "ID_IN_USE")
        async with asyncio.timeout(timeout):
            await self._until_present(devices)
            await self.holds.wait()
        for device in devices:
            self.attached[device.id] = place_of(device)
        if self.loses_answers:
            raise ShimError(Reason.AGENT_AWAY, "connection lost")
        return tuple(
            devices_pb2.AttachedDevice(device=device, pci_path=device.address.pci_path)
            for device in devices
        )

    async def has(self, device: devices_pb2.Device) -> bool:
        if "has" in self.refuse:
            raise self.refuse["has"]
        return self.attached.get(device.id) == place_of(device)

    async def storages_of(self, tag: str) -> tuple[str, ...]:
        self._note("storages", tag)
        return tuple(self.mounted.get(tag, ()))

    async def online_now(self) -> sandbox_pb2.OnlineResourcesResponse:
        return self._online()

    async def online(
        self, *, cpus: int, memory: int, timeout: float
    ) -> sandbox_pb2.OnlineResourcesResponse:
        self._note("online", f"{cpus} {memory}")
        self.wanted.append((cpus, memory))
        async with asyncio.timeout(timeout):
            await self.holds.wait()
        self.cpus, self.memory = max(cpus, self.cpus), max(memory, self.memory)
        return self._online()

    def _online(self) -> sandbox_pb2.OnlineResourcesResponse:
        return sandbox_pb2.OnlineResourcesResponse(
            cpus_online=range(self.cpus), memory_online=self.memory
        )

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
        for key in (call, f"{call} {device_id}"):
            if key in self.refuse:
                raise self.refuse[key]

    def _known(self, device_id: str) -> None:
        if device_id not in self.attached:
            raise refusal(grpc.StatusCode.NOT_FOUND, "UNKNOWN_DEVICE")

    async def _until_present(self, devices: Sequence[devices_pb2.Device]) -> None:
        async with self.qemu.changed:
            while not all(f"dev-{device.id}" in self.qemu.devices for device in devices):
                await self.qemu.changed.wait()


def place_of(device: devices_pb2.Device) -> str:
    """An address in words."""
    kind = device.address.WhichOneof("address")
    if kind == "scsi":
        scsi = device.address.scsi
        return f"{scsi.adapter_pci_path} {scsi.target}:{scsi.lun}"
    return str(getattr(device.address, kind)) if kind else ""
