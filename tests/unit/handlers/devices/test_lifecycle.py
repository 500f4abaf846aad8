"""What a class changes for its device is taken back, whichever way the device goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from agent.core.addresses import ScsiAddress
from agent.core.errors import AgentError, Code, Reason
from agent.core.holding import Holder, HolderKind
from agent.core.kinds import (
    BlockExpectation,
    CommonExpectation,
    CommonInfo,
    DriverName,
    RngExpectation,
    VfioMode,
)
from agent.core.model import AttachedDevice, DeviceRequest, DeviceState
from agent.core.pci import parse_address
from agent.core.places import Place
from agent.core.tree import SysfsTree
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices.base import DeviceClass, Found, Taken
from agent.handlers.devices.block import BlockDevices
from agent.handlers.devices.job import Hands, Job
from tests.fakes.devices import DeviceBench, device_bench, request

pytestmark = [pytest.mark.unit, pytest.mark.devices]

BDF = "0000:01:00.0"


class Switched(DeviceClass[RngExpectation]):
    """A class that changes one thing, and notes what it is asked to do."""

    name = "rng"
    expectation = RngExpectation

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.problem: AgentError | None = None
        self.stuck: str | None = None

    def probe(self, tree: SysfsTree, place: Place, expected: RngExpectation) -> Verdict[Found]:
        return Ready(Found(nodes=(), info=CommonInfo()))

    async def take(self, job: Job[RngExpectation]) -> Taken:
        sighting = await job.until(self.probe)
        self.notes.append("changed")
        job.undo.push("change it back", lambda: self.notes.append("undone"))
        if self.problem is not None:
            raise self.problem
        return Taken(sighting=sighting, kept={"former": "a"})

    async def give_back(
        self, hands: Hands, device: AttachedDevice, kept: Mapping[str, str]
    ) -> None:
        self.notes.append(f"given back: {dict(kept)}")

    def removable(self, device: AttachedDevice) -> str | None:
        return self.stuck


@pytest.fixture
def switched() -> Switched:
    return Switched()


@pytest.fixture
async def lab(tmp_path: Path, switched: Switched) -> AsyncIterator[DeviceBench]:
    async with device_bench(tmp_path, classes=(switched, BlockDevices())) as made:
        made.sysfs.function(made.sysfs.port_with_slot(), BDF, driver="virtio-pci")
        yield made
    assert asyncio.all_tasks() == {asyncio.current_task()}


RNG = DeviceRequest(id="r1", address=parse_address("02/00"), kind=RngExpectation())
GIVEN_BACK = "given back: {'former': 'a'}"


async def refused(awaitable: object, reason: Reason) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await awaitable  # type: ignore[misc]
    assert caught.value.reason is reason, caught.value
    return caught.value


async def test_a_failure_half_way_is_undone(lab: DeviceBench, switched: Switched) -> None:
    switched.problem = AgentError("no", code=Code.FAILED_PRECONDITION, reason=Reason.DRIVER_REFUSED)
    await refused(lab.devices.attach(RNG), Reason.DRIVER_REFUSED)
    assert switched.notes == ["changed", "undone"]
    assert lab.devices.list() == ()


async def test_a_full_run_directory_is_a_failure_too(
    lab: DeviceBench, switched: Switched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        await refused(lab.devices.attach(RNG), Reason.NO_SPACE)
    assert switched.notes == ["changed", "undone"]


async def test_before_an_unplug_it_is_given_back_and_taken_out(
    lab: DeviceBench, switched: Switched
) -> None:
    device = await lab.devices.attach(RNG)
    await lab.devices.prepare_detach("r1")
    assert switched.notes == ["changed", GIVEN_BACK]
    assert not is_there(device)
    assert lab.guest.files.writes == [(Path(device.sysfs_path) / "remove", "1\n")]
    await lab.devices.detach("r1", 1.0)
    assert lab.devices.list() == ()


async def test_an_unplug_that_does_not_come_makes_it_usable_again(
    lab: DeviceBench, switched: Switched
) -> None:
    await lab.devices.attach(RNG)
    await lab.devices.prepare_detach("r1")
    await lab.devices.cancel_detach("r1")
    assert switched.notes == ["changed", GIVEN_BACK, "changed"]
    assert lab.devices.get("r1").state is DeviceState.ATTACHED


async def test_a_released_device_stays_where_it_is(lab: DeviceBench, switched: Switched) -> None:
    device = await lab.devices.attach(RNG)
    await lab.devices.release_device("r1")
    assert switched.notes == ["changed", GIVEN_BACK]
    assert is_there(device)
    assert (lab.devices.list(), lab.guest.files.writes) == ((), [])
    assert lab.state.load_all("devices") == {}
    await lab.devices.attach(RNG)


async def test_what_a_new_agent_takes_over_it_can_give_back(
    lab: DeviceBench, switched: Switched
) -> None:
    await lab.devices.attach(RNG)
    new = lab.new_manager()
    await new.restore()
    await new.release_device("r1")
    assert switched.notes == ["changed", GIVEN_BACK]
    await new.close()


def is_there(device: AttachedDevice) -> bool:
    return Path(device.sysfs_path).is_dir()


USERS = (
    Holder(kind=HolderKind.MOUNT, name="/dev/vdb", path="/data"),
    Holder(kind=HolderKind.DESCRIPTOR, path="/dev/vdb", pid=42, command="dd"),
)


@pytest.mark.parametrize("call", ["prepare_detach", "release_device"])
async def test_a_busy_device_is_refused_with_the_list_and_nothing_changes(
    lab: DeviceBench, switched: Switched, call: str
) -> None:
    before = await lab.devices.attach(RNG)
    lab.users.found = USERS
    error = await refused(getattr(lab.devices, call)("r1"), Reason.STILL_IN_USE)
    assert "mount /dev/vdb /data, descriptor /dev/vdb process 42 (dd)" in error.message
    told = json.loads(error.fields["holders"])
    assert told[1] == {"kind": "descriptor", "path": "/dev/vdb", "pid": 42, "command": "dd"}
    assert error.fields["holders_in_all"] == "2"
    assert lab.devices.get("r1") == before
    assert is_there(before)
    assert GIVEN_BACK not in switched.notes
    assert lab.devices.hold("r1", "storage data").users == {"storage data"}


async def test_a_long_list_is_cut_between_two_and_never_inside(lab: DeviceBench) -> None:
    """A field of an error holds 800 bytes; the whole list is Devices.Holders'."""
    await lab.devices.attach(RNG)
    lab.users.found = USERS * 50
    error = await refused(lab.devices.prepare_detach("r1"), Reason.STILL_IN_USE)
    assert len(error.fields["holders"]) <= 800
    assert 2 < len(json.loads(error.fields["holders"])) < 100
    assert error.fields["holders_in_all"] == "100"
    assert len(await lab.devices.holders("r1")) == 100


async def test_holders_are_those_of_the_agent_and_of_the_kernel(lab: DeviceBench) -> None:
    await lab.devices.attach(RNG)
    lab.devices.hold("r1", "container web")
    lab.users.found = USERS
    told = await lab.devices.holders("r1")
    assert told == (Holder(kind=HolderKind.CONTAINER, name="web"), *USERS)


async def test_what_the_guest_cannot_let_go_of_says_so(
    lab: DeviceBench, switched: Switched
) -> None:
    """An NVDIMM: nothing is tried, and who does not want it any more releases it."""
    before = await lab.devices.attach(RNG)
    switched.stuck = "an NVDIMM can't be taken out of a running guest"
    error = await refused(lab.devices.prepare_detach("r1"), Reason.NOT_REMOVABLE)
    assert "NVDIMM" in error.message
    assert (lab.devices.get("r1"), lab.guest.files.writes) == (before, [])
    await lab.devices.release_device("r1")


async def test_a_virtual_function_is_not_taken_out(lab: DeviceBench) -> None:
    """The kernel gives it no `remove` (pci_iov_add_virtfn): its physical function makes and
    removes it, so it stays until that has, and a detach can be cancelled."""
    function = lab.sysfs.sys / "devices/pci0000:00/0000:00:02.0" / BDF
    lab.sysfs.link(function / "physfn", "../0000:01:00.1")
    await lab.devices.attach(RNG)
    await lab.devices.prepare_detach("r1")
    assert (function.is_dir(), lab.guest.files.writes) == (True, [])
    await lab.devices.cancel_detach("r1")
    assert lab.devices.get("r1").state is DeviceState.ATTACHED
    await lab.devices.prepare_detach("r1")
    lab.guest.announce("remove", function, "pci")
    lab.sysfs.remove(function)
    await lab.devices.detach("r1", 30.0)


async def test_who_uses_a_virtual_function_uses_the_card(
    lab: DeviceBench, switched: Switched
) -> None:
    """Taking the card out would wait, in the kernel, for whoever has a function of it open."""
    card = lab.sysfs.function(lab.sysfs.sys / "devices/pci0000:00/0000:00:02.0", "0000:01:00.1")
    function = lab.sysfs.sys / "devices/pci0000:00/0000:00:02.0" / BDF
    lab.sysfs.link(function / "physfn", str(card))
    await lab.devices.attach(RNG)
    address = parse_address("02/00.1")
    await lab.devices.attach(DeviceRequest(id="card", address=address, kind=RngExpectation()))
    lab.devices.hold("r1", "container web")
    error = await refused(lab.devices.prepare_detach("card"), Reason.STILL_IN_USE)
    assert json.loads(error.fields["holders"]) == [{"kind": "container", "name": "web"}]
    lab.devices.release("r1", "container web")
    await lab.devices.prepare_detach("card")


async def test_who_uses_a_disk_uses_its_adapter(lab: DeviceBench) -> None:
    """A SCSI disk came after its adapter was attached, and is mounted: taking the adapter
    out would take the disk from under the mount."""
    adapter = lab.sysfs.sys / "devices/pci0000:00/0000:00:02.0" / BDF
    await lab.devices.attach(RNG)
    unit = adapter / "virtio1/host0/target0:0:0/0:0:0:1"
    lab.sysfs.disk(unit / "block", "sda", dev="8:0")
    lab.sysfs.link(lab.sysfs.sys / "bus/scsi/devices/0:0:0:1", str(unit))
    lun = DeviceRequest(
        id="lun", address=ScsiAddress.parse("[02/00]*:0:0:1"), kind=BlockExpectation()
    )
    await lab.devices.attach(lun)
    lab.devices.hold("lun", "storage data")
    behind = {"kind": "stacked", "name": "lun"}
    for call in (lab.devices.prepare_detach("r1"), lab.devices.release_device("r1")):
        error = await refused(call, Reason.STILL_IN_USE)
        mount = {"kind": "storage", "name": "data"}
        assert json.loads(error.fields["holders"]) == [behind, mount]
    assert lab.users.nodes["r1"] == ["sda"]
    lab.devices.release("lun", "storage data")
    error = await refused(lab.devices.prepare_detach("r1"), Reason.STILL_IN_USE)
    assert json.loads(error.fields["holders"]) == [behind]
    await lab.devices.release_device("lun")
    await lab.devices.prepare_detach("r1")


async def test_a_disk_that_stays_is_forgotten_under_its_users(lab: DeviceBench) -> None:
    """Nothing was changed for it, so there is nothing that a user could be deprived of."""
    lab.sysfs.remove(lab.sysfs.sys / "devices/pci0000:00/0000:00:02.0" / BDF)
    lab.sysfs.virtio_disk(lab.sysfs.sys / "devices/pci0000:00/0000:00:02.0", BDF)
    await lab.devices.attach(request("root"))
    lab.users.found = USERS
    await lab.devices.release_device("root")
    assert lab.devices.list() == ()


async def test_a_removal_that_the_kernel_refuses_leaves_it_usable(
    lab: DeviceBench, switched: Switched
) -> None:
    await lab.devices.attach(RNG)
    lab.guest.files.refusal = OSError(16, "Device or resource busy")
    error = await refused(lab.devices.prepare_detach("r1"), Reason.KERNEL_REFUSED)
    assert error.fields["errno"] == "EBUSY"
    assert lab.devices.get("r1").state is DeviceState.ATTACHED
    assert switched.notes == ["changed", GIVEN_BACK, "changed"]


class Driven(DeviceClass[CommonExpectation]):
    """Ready with whatever driver the function has."""

    name = "common"
    expectation = CommonExpectation

    def probe(self, tree: SysfsTree, place: Place, expected: CommonExpectation) -> Verdict[Found]:
        if tree.link_name(place.directory / "driver") == "broken":
            return Failed("it is broken")
        if tree.link_name(place.directory / "driver") is None:
            return NotYet(evidence="it has no driver")
        return Ready(Found(nodes=(), info=CommonInfo()))


COMMON = DeviceRequest(id="c1", address=parse_address("02/00"), kind=CommonExpectation())


class DriverKernel:
    """The files of binding: override, unbind and drivers_probe have their effect."""

    def __init__(self, lab: DeviceBench, *drivers: str) -> None:
        self.sysfs = lab.sysfs
        self.function = lab.sysfs.sys / "devices/pci0000:00/0000:00:02.0" / BDF
        self.own = "virtio-pci"
        lab.sysfs.write(self.function / "driver_override", "(null)")
        for driver in drivers:
            (lab.sysfs.sys / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        lab.guest.files.effect = self.write

    def write(self, path: Path, text: str) -> None:
        if path.name == "driver_override":
            path.write_text(text if text.strip() else "(null)\n")
        elif path.name == "unbind":
            (self.function / "driver").unlink()
        elif path.name == "drivers_probe" and not (self.function / "driver").is_symlink():
            asked = (self.function / "driver_override").read_text().strip()
            driver = self.own if asked == "(null)" else asked
            self.sysfs.link(self.function / "driver", f"../../../bus/pci/drivers/{driver}")


@pytest.fixture
async def driven(tmp_path: Path) -> AsyncIterator[DeviceBench]:
    async with device_bench(tmp_path, classes=(Driven(), BlockDevices())) as made:
        made.sysfs.function(made.sysfs.port_with_slot(), BDF, driver="virtio-pci")
        yield made


async def test_a_driver_is_switched_and_comes_back(driven: DeviceBench) -> None:
    DriverKernel(driven, "virtio-pci", "uio_pci_generic")
    await driven.devices.attach(COMMON)
    device = await driven.devices.reconfigure("c1", DriverName("uio_pci_generic"), None)
    assert (device.driver, device.state) == ("uio_pci_generic", DeviceState.ATTACHED)
    assert driven.told()[-1] == ("device-reconfigured", "c1")
    new = driven.new_manager()
    await new.restore()
    assert new.get("c1") == device
    await new.release_device("c1")
    assert (Path(device.sysfs_path) / "driver").readlink().name == "virtio-pci"
    assert (Path(device.sysfs_path) / "driver_override").read_text() == "(null)\n"
    await new.close()


async def test_a_driver_that_does_not_work_leaves_the_former_one(driven: DeviceBench) -> None:
    DriverKernel(driven, "virtio-pci", "broken")
    before = await driven.devices.attach(COMMON)
    await refused(
        driven.devices.reconfigure("c1", DriverName("broken"), None), Reason.DEVICE_FAILED
    )
    assert driven.devices.get("c1") == before
    assert (Path(before.sysfs_path) / "driver").readlink().name == "virtio-pci"


async def test_a_mode_that_it_is_in_is_no_switch(driven: DeviceBench) -> None:
    """Its own driver has it as it was attached: nothing is written, nothing told."""
    DriverKernel(driven, "virtio-pci")
    before = await driven.devices.attach(COMMON)
    assert await driven.devices.reconfigure("c1", VfioMode.GUEST_KERNEL, None) == before
    assert (driven.told()[-1], driven.guest.files.writes) == (("device-attached", "c1"), [])


async def test_a_busy_device_is_not_switched(driven: DeviceBench) -> None:
    DriverKernel(driven, "virtio-pci", "uio_pci_generic")
    before = await driven.devices.attach(COMMON)
    driven.users.found = USERS
    switch = driven.devices.reconfigure("c1", DriverName("uio_pci_generic"), None)
    await refused(switch, Reason.STILL_IN_USE)
    assert driven.devices.get("c1") == before
    assert driven.guest.files.writes == []


async def test_a_device_that_a_container_has_is_not_switched(driven: DeviceBench) -> None:
    """Its nodes would be others afterwards, and the container has rights to the old ones."""
    DriverKernel(driven, "virtio-pci", "uio_pci_generic")
    await driven.devices.attach(COMMON)
    for user in ("container c1", "container c2"):
        driven.devices.hold("c1", user)
    for user in ("container c1", "container c2"):
        switch = driven.devices.reconfigure("c1", DriverName("uio_pci_generic"), None)
        error = await refused(switch, Reason.STILL_IN_USE)
        assert user in error.fields["users"]
        driven.devices.release("c1", user)
    assert driven.guest.files.writes == []
    await driven.devices.reconfigure("c1", DriverName("uio_pci_generic"), None)


async def test_one_disk_under_two_kinds_of_address_has_one_owner(lab: DeviceBench) -> None:
    lab.sysfs.remove(lab.sysfs.sys / "devices/pci0000:00/0000:00:02.0" / BDF)
    port = lab.sysfs.sys / "devices/pci0000:00/0000:00:02.0"
    function = lab.sysfs.virtio_disk(port, BDF)
    lab.sysfs.link(lab.sysfs.sys / "dev/block/254:16", str(function / "virtio_vdb/block/vdb"))
    await lab.devices.attach(request("d1"))
    by_node = request("d2", "/dev/vdb")
    error = await refused(lab.devices.attach(by_node), Reason.ADDRESS_IN_USE)
    assert error.fields["id"] == "d1"
