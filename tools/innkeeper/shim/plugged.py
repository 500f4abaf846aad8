"""The words of plugging: what is asked of the guest, and the record of one plug."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Any, Protocol

from innkeeper.shim.hardware import Growth, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innkeeper.shim.hardware import Backend, Hardware, Names
    from innkeeper.shim.topology import Port
    from innkeeper.v1 import devices_pb2, sandbox_pb2


class GuestDevices(Protocol):
    """The agent's side; every call raises `ShimError`."""

    async def ready(self) -> None:
        """Returns when the agent answers."""

    async def attach(
        self, devices: Sequence[devices_pb2.Device], timeout: float
    ) -> tuple[devices_pb2.AttachedDevice, ...]:
        """Waits until all of them are usable."""

    async def has(self, device: devices_pb2.Device) -> bool:
        """Whether the device is in the agent's table: its id, at its place."""

    async def prepare_detach(self, device_id: str) -> None:
        """Refuses when the device is in use; lets nobody new in."""

    async def cancel_detach(self, device_id: str) -> None:
        """Undoes `prepare_detach`."""

    async def complete_detach(self, device_id: str) -> None:
        """Forgets a device that is gone."""

    async def storages_of(self, tag: str) -> tuple[str, ...]:
        """Ids of the storages that a share is mounted as."""

    async def online_now(self) -> sandbox_pb2.OnlineResourcesResponse:
        """What is online; changes nothing."""

    async def online(
        self, *, cpus: int, memory: int, timeout: float
    ) -> sandbox_pb2.OnlineResourcesResponse:
        """Waits until so many CPUs and bytes are online in all; 0 is as many as are now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One function of a plug, as asked for."""

    id: str
    hardware: Hardware
    guest: devices_pb2.Device | None = None
    """What the caller wants the agent to make of it, instead of the hardware's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """What the guest can use now."""

    attached: tuple[devices_pb2.AttachedDevice, ...]
    """In the order of the request; of what is no device there only the id."""
    micros: int
    """From the first `device_add` to the guest's answer."""
    online: sandbox_pb2.OnlineResourcesResponse | None = None


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


@dataclass(slots=True, kw_only=True, eq=False)
class Part:
    """One device in QEMU."""

    arguments: dict[str, object]
    """`device_add`'s."""
    silent: bool = False
    """See `Hardware.silent`."""
    asked: bool = False
    """QEMU was asked to take it, whatever came of it."""
    fate: asyncio.Future[Fate] = field(default_factory=lambda: new_fate())
    """What has become of it since it was last plugged, or last refused to go."""
    why_kept: str = ""
    is_held: bool = False
    """It is out of the machine, and something in QEMU still refers to it."""

    @property
    def qemu_id(self) -> str:
        return str(self.arguments["id"])

    def is_(self, fate: Fate) -> bool:
        return self.fate.done() and self.fate.result() is fate

    def settle(self, fate: Fate) -> None:
        if not self.fate.done():
            self.fate.set_result(fate)


@dataclass(slots=True, kw_only=True, eq=False)
class Function:
    """One function of a plug."""

    id: str
    hardware: Hardware
    names: Names
    place: dict[str, object]
    """`device_add`'s arguments that say where it goes."""
    pci_path: str = ""
    device: devices_pb2.Device | None = None
    """What the agent is asked for; None for what is no device in the guest."""

    def parts(self) -> list[Part]:
        return [
            Part(arguments=words | self.place, silent=self.hardware.silent)
            for words in self.hardware.parts(self.names)
        ]


@dataclass(slots=True, kw_only=True, eq=False)
class Plug:
    """What came with one request; it lives from admission until its place is free again."""

    functions: tuple[Function, ...]
    port: Port | None = None
    state: DeviceState = DeviceState.PLUGGING
    step: str = "starting"
    """What is being waited for, for the error when time is up."""
    asked_for: bool = False
    """QEMU and the agent were asked to take it, whatever came of it."""
    removing: bool = False
    """The guest was asked to let go of it."""
    failure: str = ""
    """What it stands on has ended, and how."""
    stuck: str = ""
    """Why the guest's kernel could never let go of it."""
    opened: list[Backend] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    """In the order in which QEMU gets them: function 0 last, as the slot comes
    alive with it."""

    @property
    def id(self) -> str:
        return self.functions[0].id

    @property
    def name(self) -> str:
        return "device " + "+".join(function.id for function in self.functions)

    @property
    def where(self) -> str:
        return self.functions[0].pci_path or "its place"

    @property
    def fields(self) -> dict[str, object]:
        """For errors."""
        known: dict[str, object] = {"id": self.id}
        if self.functions[0].pci_path:
            known["pci_path"] = self.functions[0].pci_path
        return known

    @property
    def devices(self) -> tuple[devices_pb2.Device, ...]:
        return tuple(each.device for each in self.functions if each.device is not None)

    @property
    def growth(self) -> Growth:
        return sum((each.hardware.growth for each in self.functions), Growth())

    @property
    def in_turn(self) -> bool:
        return any(each.hardware.in_turn for each in self.functions)

    @property
    def not_removable(self) -> str:
        reasons = (self.stuck, *(each.hardware.not_removable for each in self.functions))
        return next((why for why in reasons if why), "")

    @property
    def goes_whole(self) -> bool:
        """Its parts share a slot, which the guest gives up as a whole."""
        return self.functions[0].hardware.place is Place.PORT

    def renew_parts(self) -> None:
        self.parts = [part for each in reversed(self.functions) for part in each.parts()]
        self.removing = False

    @property
    def is_settled(self) -> bool:
        """Whether QEMU has told something of one of its parts."""
        return any(part.fate.done() for part in self.parts)

    def has_part(self, fate: Fate) -> bool:
        return any(part.is_(fate) for part in self.parts)

    def part(self, qemu_id: object) -> Part | None:
        return next((part for part in self.parts if part.qemu_id == qemu_id), None)

    async def until_settled(self) -> None:
        """Returns when QEMU has told of every part that it was asked to take."""
        pending: set[asyncio.Future[Any]] = {part.fate for part in self.parts if part.asked}
        if pending:
            await asyncio.wait(pending)


def new_fate() -> asyncio.Future[Fate]:
    return asyncio.get_running_loop().create_future()
