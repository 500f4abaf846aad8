"""Everything that a plug touches, as fakes: a QEMU at the wire, an agent's table, ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from innkeeper.shim import hardware, topology
from innkeeper.shim.hardware import Setting
from innkeeper.shim.helpers import Helpers
from innkeeper.shim.plug import Plugger
from innkeeper.shim.plugged import Wanted
from innkeeper.shim.table import Table
from innkeeper.shim.topology import Layout, PortPool
from innkeeper.v1 import host_pb2
from tests.fakes.guest_devices import FakeGuestDevices
from tests.fakes.qmp import FakeQmp, connected

LIMIT = 10.0
GIB = 1 << 30
SETTING = Setting(vm="web", max_memory=4 * GIB, room=3 * GIB, nvdimm=True, more_cpus=4)


@dataclass(slots=True)
class PlugBench:
    """Everything that a transaction touches."""

    qemu: FakeQmp
    guest: FakeGuestDevices
    table: Table
    plugger: Plugger
    content: host_pb2.DiskFile
    setting: Setting = SETTING

    @property
    def ports(self) -> PortPool:
        return self.table.ports

    async def plug(self, device_id: str = "data", timeout: float = LIMIT) -> str:
        usable = await self.plugger.plug((self.wanted(device_id),), timeout)
        return usable.attached[0].pci_path

    def wanted(self, device_id: str, **kind: Any) -> Wanted:
        """A disk unless said otherwise: a field of `Hardware`."""
        message = host_pb2.Hardware(**kind or {"disk": host_pb2.Disk(content=self.content)})
        return Wanted(id=device_id, hardware=hardware.parse(message, device_id, self.setting))

    def states(self) -> dict[str, str]:
        return {function.id: str(plug.state) for function, plug in self.plugger.list()}

    def assert_untouched(self) -> None:
        """Both sides are as at the start."""
        assert self.qemu.nodes == set()
        assert self.qemu.objects == self.qemu.netdevs == self.qemu.chardevs == {}
        assert self.qemu.devices == {}
        assert self.guest.attached == {}
        assert len(self.ports.free) == len(self.ports.ports)
        assert self.states() == {}

    async def plug_kinds(
        self, *kinds: tuple[str, dict[str, Any]], timeout: float = LIMIT, port: str = ""
    ) -> list[str]:
        """One plug of several functions; the paths of what came."""
        wanted = [self.wanted(name, **kind) for name, kind in kinds]
        usable = await self.plugger.plug(wanted, timeout, port)
        return [each.pci_path for each in usable.attached]

    def disk(self) -> dict[str, Any]:
        return {"disk": host_pb2.Disk(content=self.content)}

    async def until_idle(self) -> None:
        """What is due in the background has happened: a question goes there and back,
        behind every event that was sent before."""
        for _ in range(3):
            await self.plugger._monitor.execute("query-status")


@contextlib.asynccontextmanager
async def plug_bench(folder: Path) -> AsyncIterator[PlugBench]:
    """With two ports; leaves no task behind."""
    image = folder / "disk.img"
    image.write_bytes(bytes(1024))
    qemu = FakeQmp()
    guest = FakeGuestDevices(qemu)
    ports = PortPool(ports=topology.build(Layout(ports=2)).ports)
    before = asyncio.all_tasks()
    async with connected(qemu) as monitor:
        table = Table(ports)
        helpers = Helpers(folder / "qemu.log")
        plugger = Plugger(monitor, guest, table, helpers)
        made = PlugBench(qemu, guest, table, plugger, host_pb2.DiskFile(file=str(image)))
        made.setting = replace(SETTING, directory=folder, shared_memory=True)
        yield made
        await plugger.close()
        await helpers.close()
    assert asyncio.all_tasks() - before - {asyncio.current_task()} == set()
