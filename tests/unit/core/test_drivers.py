"""Loading the modules of devices that have no driver, when there is no udev to do it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.drivers import Drivers
from agent.core.errors import AgentError, Reason, timed_out
from agent.core.hotplug import HotplugBoard, Wish
from agent.core.kinds import BlockExpectation
from agent.core.pci import PciPath
from agent.core.places import find
from agent.core.tree import SysfsTree
from agent.core.verdict import Ready, Verdict
from agent.handlers.devices.base import Found
from agent.handlers.devices.block import BlockDevices
from tests.fakes.hotplug import FakeSlowFiles, turns
from tests.fakes.modprobe import FakeModprobe, unknown
from tests.fakes.sysfs import FakeSysfs
from tests.fakes.uevents import FakeUevents

pytestmark = [pytest.mark.unit, pytest.mark.devices]

# Mass storage, NVM, NVMe (PCI Code and ID Assignment: class 01, subclass 08, interface 02).
NVME = "pci:v00001B36d00000010sv00001AF4sd00001100bc01sc08i02"
# virtio 1.2, 5: device 2 is a block device; 0x1af4 is virtio's PCI vendor.
DISK = "virtio:d00000002v00001AF4"
ADDRESS = PciPath.parse("02/00")


class Bed:
    """A guest with a port, its board, and a modprobe to be told what it can do."""

    def __init__(self, base: Path) -> None:
        self.sysfs = FakeSysfs(base)
        self.port = self.sysfs.port_with_slot()
        self.kernel = FakeUevents()
        self.modprobe = FakeModprobe()
        self.tree = self.sysfs.tree
        self.drivers = Drivers(self.tree, run=self.modprobe, grace=0.0)
        self.board = HotplugBoard(
            tree=self.tree,
            source=self.kernel,
            files=FakeSlowFiles(),
            relooks=(),
            drivers=self.drivers,
        )

    def controller(self, alias: str = NVME) -> Path:
        """A function at 02/00 that no driver serves; nobody has announced it."""
        function = self.sysfs.function(self.port, "0000:01:00.0")
        self.sysfs.write(function / "modalias", alias)
        return function

    def announce(self, device: Path, alias: str = NVME, action: str = "add") -> None:
        self.kernel.send(action, self.sysfs.devpath(device), "pci", MODALIAS=alias)

    def bind(self, device: Path, driver: str = "nvme") -> None:
        self.sysfs.link(device / "driver", f"../../../bus/pci/drivers/{driver}")

    def serve(self, function: Path) -> None:
        """What the NVMe driver does once it is loaded."""
        self.bind(function)
        self.sysfs.disk(function / "nvme/nvme0", "nvme0n1", dev="259:0")
        self.kernel.send("add", self.sysfs.devpath(function) + "/nvme/nvme0/nvme0n1", "block")

    async def wait(self, deadline: Deadline) -> Found:
        return await self.board.wait(Wish(what="device d1", probe=probe), deadline)


def probe(tree: SysfsTree) -> Verdict[Found]:
    found = find(tree, ADDRESS)
    if not isinstance(found, Ready):
        return found
    return BlockDevices().probe(tree, found.result, BlockExpectation())


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    made = Bed(tmp_path)
    made.board.start()
    yield made
    made.board.close()
    await made.drivers.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_plugged_device_gets_its_module(bed: Bed) -> None:
    function = bed.controller()
    bed.modprobe.knows[NVME] = lambda: bed.bind(function)
    bed.announce(function)
    await turns()
    assert bed.modprobe.calls == [NVME]
    assert bed.tree.driver_notes == {}


async def test_a_driver_that_is_there_already_costs_no_modprobe(bed: Bed) -> None:
    """The kernel announces a device before it looks for a driver: binding comes after."""
    function = bed.controller()
    bed.announce(function)
    bed.bind(function)
    await turns()
    assert bed.modprobe.calls == []


@pytest.mark.parametrize("action", ["remove", "bind", "change", "move"])
async def test_only_what_is_new_is_looked_after(bed: Bed, action: str) -> None:
    bed.announce(bed.controller(), action=action)
    await turns()
    assert bed.modprobe.calls == []


async def test_a_device_that_came_before_us_is_looked_after_for_a_request(bed: Bed) -> None:
    """Nothing announces it any more; the wait for its disk finds it without a driver."""
    function = bed.controller()
    bed.modprobe.knows[NVME] = lambda: bed.serve(function)
    found = await bed.wait(Deadline.after(30.0))
    assert found.nodes[0].path.endswith("/dev/nvme0n1")
    assert bed.modprobe.calls == [NVME]


async def test_a_device_below_the_function_too(bed: Bed) -> None:
    """The function is virtio-pci's, which is built in; its virtio device waits for virtio_blk."""
    function = bed.controller(alias="pci:v00001AF4d00001042")
    bed.bind(function, "virtio-pci")
    virtio = bed.sysfs.virtio(function, "virtio3", driver=None)
    bed.sysfs.write(virtio / "modalias", DISK)

    def load() -> None:
        bed.bind(virtio, "virtio_blk")
        bed.sysfs.disk(virtio / "block", "vdb")
        bed.kernel.send("add", bed.sysfs.devpath(virtio) + "/block/vdb", "block")

    bed.modprobe.knows[DISK] = load
    assert (await bed.wait(Deadline.after(30.0))).nodes[0].path.endswith("/dev/vdb")


async def expired(bed: Bed) -> str:
    """The evidence of a wait that looks after modprobe has had its turn, and expires."""
    task = asyncio.ensure_future(bed.wait(Deadline.after(30.0)))
    await turns()
    task.cancel()
    await asyncio.wait([task])
    with pytest.raises(AgentError) as caught:
        await bed.wait(Deadline.after(0.0))
    assert caught.value.reason is Reason.DEVICE_NOT_READY
    return caught.value.fields["evidence"]


async def test_without_a_module_the_error_says_so(bed: Bed) -> None:
    bed.controller()
    evidence = await expired(bed)
    assert "it has no driver" in evidence
    assert f"no driver for 0000:01:00.0: no module matches its alias {NVME}" in evidence


async def test_what_modprobe_complains_about_is_in_the_error(bed: Bed) -> None:
    bed.controller()
    said = "modprobe: ERROR: could not insert 'nvme': Cannot allocate memory"
    bed.modprobe.fails[NVME] = said
    evidence = await expired(bed)
    assert f"modprobe -b -- {NVME}: exit status 1: {said}" in evidence


async def test_a_modprobe_that_hangs_is_in_the_error(bed: Bed) -> None:
    bed.controller()
    bed.modprobe.fails[NVME] = timed_out("modprobe: didn't end in time and was killed")
    assert "didn't end in time" in await expired(bed)


async def test_a_module_that_does_not_take_the_device_is_in_the_error(bed: Bed) -> None:
    """A driver may refuse a device at its probe, and says so only in the kernel's log."""
    bed.controller()
    bed.modprobe.knows[NVME] = lambda: None
    assert f"modprobe found a module for {NVME}, but no driver took the device" in await expired(
        bed
    )


async def test_ten_devices_of_a_kind_are_one_call(bed: Bed) -> None:
    for number in range(10):
        function = bed.sysfs.function(bed.port, f"0000:01:{number:02x}.0")
        bed.sysfs.write(function / "modalias", NVME)
        bed.announce(function)
    await turns(40)
    assert bed.modprobe.calls == [NVME]


async def test_looking_again_while_it_loads_is_one_call(bed: Bed) -> None:
    """A wait probes at every event near its device."""
    function = bed.controller()
    bed.modprobe.proceed.clear()
    task = asyncio.ensure_future(bed.wait(Deadline.after(30.0)))
    for _ in range(3):
        await turns()
        bed.announce(function, action="change")
    bed.modprobe.knows[NVME] = lambda: bed.serve(function)
    bed.modprobe.proceed.set()
    await task
    assert bed.modprobe.calls == [NVME]


async def test_what_failed_is_tried_again_for_a_new_device_only(bed: Bed) -> None:
    function = bed.controller()
    await expired(bed)
    bed.drivers.look_after(function)
    await turns()
    assert bed.modprobe.calls == [NVME]
    bed.announce(function)
    await turns()
    assert bed.modprobe.calls == [NVME, NVME]


async def test_one_after_the_other(bed: Bed) -> None:
    """However many devices come, no more than one modprobe runs."""
    bed.modprobe.proceed.clear()
    aliases = [f"pci:v00001B36d{number:08X}" for number in range(3)]
    for number, alias in enumerate(aliases):
        function = bed.sysfs.function(bed.port, f"0000:01:{number:02x}.0")
        bed.sysfs.write(function / "modalias", alias)
        bed.announce(function, alias)
    await turns()
    assert len(bed.modprobe.calls) == 1
    bed.modprobe.proceed.set()
    await turns(40)
    assert sorted(bed.modprobe.calls) == aliases


async def test_lost_events_mean_looking_at_all_devices(bed: Bed) -> None:
    bed.controller()
    bed.tree.driver_notes[NVME] = unknown(NVME)
    bed.kernel.overflow()
    await turns()
    assert bed.modprobe.calls == [NVME]


async def test_a_device_that_leaves_at_once_is_nobodys(bed: Bed) -> None:
    function = bed.controller()
    bed.announce(function)
    bed.sysfs.remove(function)
    await turns()
    assert bed.modprobe.calls == []


async def test_closing_gives_up_what_is_being_loaded(bed: Bed) -> None:
    bed.modprobe.proceed.clear()
    bed.announce(bed.controller())
    await turns()
    assert bed.modprobe.calls == [NVME]
    await bed.drivers.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
