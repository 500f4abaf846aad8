"""A device manager on a fake guest, with a state directory that survives it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.core.events import EventLog
from agent.core.hotplug import RELOOKS
from agent.core.model import BlockExpectation, DeviceRequest
from agent.core.pci import parse_address
from agent.core.state import StateStore
from agent.handlers.devices.manager import DeviceManager
from tests.fakes.hotplug import Bench, bench


class DeviceBench:
    """The manager, the guest it is in, and what it told."""

    def __init__(self, guest: Bench) -> None:
        self.guest = guest
        self.sysfs = guest.sysfs
        self.board = guest.board
        self.state = StateStore(guest.sysfs.roots.state)
        self.events = EventLog(self.state)
        self.devices = self.new_manager()

    def new_manager(self) -> DeviceManager:
        """As after a restart of the agent: nothing but what was saved."""
        return DeviceManager(
            board=self.board, state=self.state, events=self.events, default_timeout=30.0
        )

    def told(self) -> list[tuple[str, str]]:
        return [(event.kind, event.subject) for event in self.events._ring]


@asynccontextmanager
async def device_bench(
    base: Path, *, acpi: bool = True, relooks: tuple[float, ...] = RELOOKS
) -> AsyncIterator[DeviceBench]:
    async with bench(base, acpi=acpi, relooks=relooks) as guest:
        made = DeviceBench(guest)
        try:
            yield made
        finally:
            await made.devices.close()


def request(
    device_id: str = "d1", address: str = "02/00", *, timeout: float | None = None, **kind: object
) -> DeviceRequest:
    return DeviceRequest(
        id=device_id,
        address=parse_address(address),
        kind=BlockExpectation(**kind),  # type: ignore[arg-type]
        timeout=timeout,
    )
