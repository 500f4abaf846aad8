"""A device manager on a fake guest, with a state directory that survives it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.core.addresses import NodePath
from agent.core.deadlines import Deadline
from agent.core.events import EventLog
from agent.core.holding import Holder
from agent.core.hotplug import RELOOKS
from agent.core.kinds import BlockExpectation, BlockInfo
from agent.core.model import AttachedDevice, DeviceNode, DeviceRequest
from agent.core.pci import parse_address
from agent.core.state import StateStore
from agent.handlers.devices import CLASSES
from agent.handlers.devices.base import DeviceClass, Found
from agent.handlers.devices.manager import DeviceManager
from tests.fakes.hotplug import Bench, bench


class FakeUsers:
    """What a search for the users of a device finds."""

    def __init__(self) -> None:
        self.found: tuple[Holder, ...] = ()
        self.nodes: dict[str, list[str]] = {}

    async def of(
        self, device: AttachedDevice, nodes: Iterable[DeviceNode], deadline: Deadline
    ) -> tuple[Holder, ...]:
        self.nodes[device.request.id] = [Path(node.path).name for node in nodes]
        return self.found


class DeviceBench:
    """The manager, the guest it is in, and what it told."""

    def __init__(self, guest: Bench, classes: tuple[DeviceClass[Any], ...]) -> None:
        self.guest = guest
        self.sysfs = guest.sysfs
        self.board = guest.board
        self.state = StateStore(guest.sysfs.roots.state)
        self.events = EventLog(self.state)
        self.guest.files.effect = self.kernel
        self.users = FakeUsers()
        self.classes = classes
        self.devices = self.new_manager()

    def kernel(self, path: Path, _text: str) -> None:
        """What the kernel makes of a write to sysfs."""
        if path.name == "remove":
            self.guest.announce("remove", path.parent, "pci")
            self.sysfs.take_out(path.parent)
        elif path.name == "rescan" and path.parent.parent.name == "pci_bus":
            for function in self.sysfs.rescan(path.parent):
                self.guest.announce("add", function, "pci")

    def new_manager(self) -> DeviceManager:
        """As after a restart of the agent: nothing but what was saved."""
        return DeviceManager(
            board=self.board,
            state=self.state,
            events=self.events,
            default_timeout=30.0,
            classes=self.classes,
            holders=self.users,
        )

    def told(self) -> list[tuple[str, str]]:
        return [(event.kind, event.subject) for event in self.events._ring]


@asynccontextmanager
async def device_bench(
    base: Path,
    *,
    acpi: bool = True,
    relooks: tuple[float, ...] = RELOOKS,
    classes: tuple[DeviceClass[Any], ...] = CLASSES,
) -> AsyncIterator[DeviceBench]:
    async with bench(base, acpi=acpi, relooks=relooks) as guest:
        made = DeviceBench(guest, classes)
        try:
            yield made
        finally:
            await made.devices.close()


def request(
    device_id: str = "d1", address: str = "02/00", *, timeout: float | None = None, **kind: object
) -> DeviceRequest:
    return DeviceRequest(
        id=device_id,
        address=NodePath.parse(address) if address[0] == "/" else parse_address(address),
        kind=BlockExpectation(**kind),  # type: ignore[arg-type]
        timeout=timeout,
    )


def disk_of(device: AttachedDevice | Found) -> BlockInfo:
    """What is told of a disk."""
    assert isinstance(device.info, BlockInfo), device
    return device.info
