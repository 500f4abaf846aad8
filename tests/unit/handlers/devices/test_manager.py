"""The table of devices: attach, hold, detach, restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.model import AttachedDevice, DeviceState, HostTuple
from agent.core.pci import PciPath
from agent.handlers.devices.block import BlockDevices
from agent.handlers.devices.manager import _by_name
from agent.handlers.devices.records import from_record, to_record
from tests.fakes.devices import DeviceBench, device_bench, disk_of, request
from tests.fakes.hotplug import turns

pytestmark = [pytest.mark.unit, pytest.mark.devices]

BDF = "0000:01:00.0"


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DeviceBench]:
    async with device_bench(tmp_path) as made:
        yield made
    assert asyncio.all_tasks() == {asyncio.current_task()}


def plug(lab: DeviceBench, name: str = "vdb", **facts: object) -> Path:
    """Plug a disk into slot 00 behind the port at 02, and announce it."""
    port = lab.sysfs.sys / "devices/pci0000:00/0000:00:02.0"
    if not port.exists():
        lab.sysfs.port_with_slot()
    function = lab.sysfs.virtio_disk(port, BDF, name, **facts)
    lab.guest.announce("add", function, "pci")
    lab.guest.announce("add", function / f"virtio_{name}/block/{name}", DEVNAME=name)
    return function


def unplug(lab: DeviceBench, function: Path) -> None:
    lab.guest.announce("remove", function, "pci")
    lab.sysfs.remove(function)


async def refused(awaitable: object, reason: Reason) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await awaitable  # type: ignore[misc]
    assert caught.value.reason is reason, caught.value
    return caught.value


async def test_attach_before_during_and_after_the_plug_give_the_same(lab: DeviceBench) -> None:
    """Whether the events come before, during or after the wait must not show."""
    lab.sysfs.port_with_slot()
    early = asyncio.ensure_future(lab.devices.attach(request("early")))
    await turns()
    function = plug(lab)
    first = await early
    unplug(lab, function)
    await lab.devices.detach("early", 30.0)
    function = plug(lab)
    second = await lab.devices.attach(request("late"))
    unplug(lab, function)
    await lab.devices.detach("late", 30.0)
    lab.sysfs.virtio_disk(function.parent, BDF)
    third = asyncio.ensure_future(lab.devices.attach(request("between")))
    await turns()
    nodes = {first.nodes, second.nodes, (await third).nodes}
    assert [[node.path for node in each] for each in nodes] == [[str(lab.sysfs.roots.dev / "vdb")]]


async def test_the_answer_carries_both_forms_of_the_address(lab: DeviceBench) -> None:
    function = plug(lab, serial="s1")
    device = await lab.devices.attach(request(address="02/00"))
    assert (str(device.pci_path), device.bdf) == ("02/00", BDF)
    assert device.sysfs_path == str(function)
    assert device.driver == "virtio-pci"
    assert disk_of(device).serial == "s1"
    await lab.devices.prepare_detach("d1")
    await lab.devices.detach("d1", 30.0)
    plug(lab)
    by_bdf = await lab.devices.attach(request(address=BDF))
    assert by_bdf.pci_path == PciPath.parse("02/00")


async def test_a_replug_gives_the_new_disk(lab: DeviceBench) -> None:
    """The old name of the slot's device is not an answer to a request after it left."""
    function = plug(lab, "vdb")
    await lab.devices.attach(request())
    unplug(lab, function)
    await lab.devices.detach("d1", 30.0)
    again = asyncio.ensure_future(lab.devices.attach(request()))
    await turns()
    assert not again.done()
    plug(lab, "vdc", dev="254:32")
    assert (await again).nodes[0].path.endswith("/dev/vdc")


async def test_without_a_new_device_a_replugged_slot_times_out(lab: DeviceBench) -> None:
    function = plug(lab)
    await lab.devices.attach(request())
    unplug(lab, function)
    await lab.devices.detach("d1", 30.0)
    error = await refused(lab.devices.attach(request(timeout=0.05)), Reason.DEVICE_NOT_READY)
    assert error.code is Code.DEADLINE_EXCEEDED
    assert "sysfs goes up to 02 of the path 02/00" in error.message


async def test_the_old_device_in_a_reused_slot_is_waited_out(lab: DeviceBench) -> None:
    old = plug(lab, serial="old")
    wait = asyncio.ensure_future(lab.devices.attach(request(serial="new")))
    await turns()
    assert not wait.done()
    unplug(lab, old)
    plug(lab, serial="new")
    assert disk_of(await wait).serial == "new"


async def test_another_device_than_expected_is_said_at_the_deadline(lab: DeviceBench) -> None:
    plug(lab, serial="old")
    attach = lab.devices.attach(request(serial="new", timeout=0.2))
    error = await refused(attach, Reason.UNEXPECTED_DEVICE)
    assert error.code is Code.FAILED_PRECONDITION
    assert "'old', not 'new'" in error.message


async def test_a_failed_attach_leaves_nothing(lab: DeviceBench) -> None:
    lab.sysfs.port_with_slot()
    await refused(lab.devices.attach(request(timeout=0.05)), Reason.DEVICE_NOT_READY)
    assert lab.devices.list() == ()
    assert lab.state.load_all("devices") == {}
    assert lab.told() == []
    plug(lab)
    assert (await lab.devices.attach(request())).bdf == BDF


async def test_a_cancelled_attach_leaves_nothing(lab: DeviceBench) -> None:
    lab.sysfs.port_with_slot()
    task = asyncio.ensure_future(lab.devices.attach(request()))
    await turns()
    task.cancel()
    await asyncio.wait([task])
    assert lab.board._watches == set()
    assert lab.devices.list() == ()


async def test_the_same_request_twice_is_one_device(lab: DeviceBench) -> None:
    plug(lab)
    first = await lab.devices.attach(request(timeout=20.0))
    assert await lab.devices.attach(request(timeout=10.0)) == first
    assert lab.told() == [("device-attached", "d1")]


async def test_the_same_request_at_the_same_time_shares_one_wait(lab: DeviceBench) -> None:
    lab.sysfs.port_with_slot()
    both = asyncio.gather(lab.devices.attach(request()), lab.devices.attach(request()))
    await turns()
    assert len(lab.board._watches) == 1
    plug(lab)
    first, second = await both
    assert first == second
    assert lab.told() == [("device-attached", "d1")]


async def test_another_request_under_the_id_is_refused(lab: DeviceBench) -> None:
    plug(lab)
    await lab.devices.attach(request())
    error = await refused(lab.devices.attach(request(serial="other")), Reason.ID_IN_USE)
    assert error.code is Code.ALREADY_EXISTS
    await refused(lab.devices.attach(request(address="03/00")), Reason.ID_IN_USE)


@pytest.mark.parametrize("address", ["02/00", BDF])
async def test_an_address_has_one_owner_in_both_forms(lab: DeviceBench, address: str) -> None:
    plug(lab)
    await lab.devices.attach(request("d1"))
    error = await refused(lab.devices.attach(request("d2", address)), Reason.ADDRESS_IN_USE)
    assert "belongs to device d1" in error.message


async def test_an_address_that_is_waited_for_is_taken(lab: DeviceBench) -> None:
    lab.sysfs.port_with_slot()
    first = asyncio.ensure_future(lab.devices.attach(request("d1")))
    await turns()
    await refused(lab.devices.attach(request("d2")), Reason.ADDRESS_IN_USE)
    plug(lab)
    assert (await first).request.id == "d1"


async def test_of_two_waits_for_one_device_under_both_forms_one_wins(lab: DeviceBench) -> None:
    lab.sysfs.port_with_slot()
    waits = asyncio.gather(
        lab.devices.attach(request("d1", "02/00")),
        lab.devices.attach(request("d2", BDF)),
        return_exceptions=True,
    )
    await turns()
    plug(lab)
    outcome = await waits
    assert len([each for each in outcome if isinstance(each, AttachedDevice)]) == 1
    (error,) = [each for each in outcome if isinstance(each, AgentError)]
    assert error.reason is Reason.ADDRESS_IN_USE
    assert len(lab.devices.list()) == 1


@pytest.mark.parametrize("bad", ["", "../x", "a b", "x" * 65])
async def test_bad_ids_change_nothing(lab: DeviceBench, bad: str) -> None:
    await refused(lab.devices.attach(request(bad)), Reason.BAD_ID)
    assert lab.state.load_all("devices") == {}


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), 1e9])
async def test_bad_timeouts_are_refused(lab: DeviceBench, timeout: float) -> None:
    await refused(lab.devices.attach(request(timeout=timeout)), Reason.BAD_FIELD)


async def test_unknown_ids(lab: DeviceBench) -> None:
    for call in (lab.devices.prepare_detach, lab.devices.cancel_detach):
        error = await refused(call("nobody"), Reason.UNKNOWN_DEVICE)
        assert error.code is Code.NOT_FOUND
    await refused(lab.devices.detach("nobody", None), Reason.UNKNOWN_DEVICE)
    with pytest.raises(AgentError):
        lab.devices.hold("nobody", "u")
    lab.devices.release("nobody", "u")


async def test_an_attach_that_is_taken_back_leaves_the_device_where_it_is(
    lab: DeviceBench,
) -> None:
    """One device of a batch failed: the others are forgotten, not unplugged."""
    plug(lab)
    first = await lab.devices.attach(request())
    lab.devices.hold("d1", "storage data")
    await refused(lab.devices.forget("d1"), Reason.STILL_IN_USE)
    lab.devices.release("d1", "storage data")
    await lab.devices.forget("d1")
    await lab.devices.forget("d1")
    assert lab.devices.list() == ()
    assert lab.state.load_all("devices") == {}
    assert await lab.devices.attach(request()) == first


async def test_a_held_device_is_not_detached(lab: DeviceBench) -> None:
    plug(lab)
    await lab.devices.attach(request())
    lab.devices.hold("d1", "storage data")
    lab.devices.hold("d1", "storage data")
    assert lab.devices.get("d1").users == {"storage data"}
    for call in (lab.devices.prepare_detach("d1"), lab.devices.detach("d1", 1.0)):
        error = await refused(call, Reason.STILL_IN_USE)
        assert error.code is Code.FAILED_PRECONDITION
        assert error.fields["users"] == "storage data"
    assert lab.devices.get("d1").state is DeviceState.ATTACHED
    lab.devices.release("d1", "storage data")
    await lab.devices.prepare_detach("d1")


async def test_no_new_holder_while_a_device_leaves(lab: DeviceBench) -> None:
    plug(lab)
    await lab.devices.attach(request())
    await lab.devices.prepare_detach("d1")
    await lab.devices.prepare_detach("d1")
    with pytest.raises(AgentError) as caught:
        lab.devices.hold("d1", "storage data")
    assert caught.value.reason is Reason.WRONG_STATE
    await refused(lab.devices.attach(request()), Reason.WRONG_STATE)
    await lab.devices.cancel_detach("d1")
    await lab.devices.cancel_detach("d1")
    assert lab.devices.hold("d1", "storage data").state is DeviceState.ATTACHED


async def test_detach_waits_until_sysfs_has_it_no_more(lab: DeviceBench) -> None:
    function = plug(lab)
    await lab.devices.attach(request())
    detach = asyncio.ensure_future(lab.devices.detach("d1", 30.0))
    await turns()
    assert not detach.done()
    unplug(lab, function)
    await detach
    assert lab.devices.list() == ()
    assert lab.state.load_all("devices") == {}
    assert lab.told() == [("device-attached", "d1"), ("device-detached", "d1")]


async def test_a_device_that_stays_keeps_its_id_and_place(lab: DeviceBench) -> None:
    """The host's unplug never came through: a late one must still find the entry."""
    function = plug(lab)
    await lab.devices.attach(request())
    error = await refused(lab.devices.detach("d1", 0.05), Reason.DEVICE_STILL_PRESENT)
    assert error.code is Code.DEADLINE_EXCEEDED
    assert f"sysfs still has {BDF}, bound to virtio-pci" in error.message
    assert lab.devices.get("d1").state is DeviceState.LEAVING
    await refused(lab.devices.attach(request("d2")), Reason.ADDRESS_IN_USE)
    unplug(lab, function)
    await lab.devices.detach("d1", 30.0)


async def test_two_detaches_at_once_both_see_it_go(lab: DeviceBench) -> None:
    function = plug(lab)
    await lab.devices.attach(request())
    both = asyncio.gather(lab.devices.detach("d1", 30.0), lab.devices.detach("d1", 30.0))
    await turns()
    unplug(lab, function)
    await both
    assert lab.told().count(("device-detached", "d1")) == 1


async def test_a_new_device_in_the_slot_does_not_stand_for_the_old_one(lab: DeviceBench) -> None:
    """Unplugged and plugged again before the agent looked: the old one is gone."""
    function = plug(lab, "vdb")
    await lab.devices.attach(request())
    function.rename(function.with_name("gone"))
    plug(lab, "vdc", dev="254:32")
    await lab.devices.detach("d1", 30.0)
    assert (await lab.devices.attach(request("d2"))).nodes[0].path.endswith("vdc")


async def test_a_detach_that_is_cancelled_by_the_host(lab: DeviceBench) -> None:
    """The kernel was told to let go: it is asked to look at that one bus again."""
    function = plug(lab)
    before = await lab.devices.attach(request())
    await lab.devices.prepare_detach("d1")
    assert not function.exists()
    await lab.devices.cancel_detach("d1")
    assert lab.devices.get("d1") == before
    bus = function.parent / "pci_bus/0000:01"
    assert lab.guest.files.writes == [(function / "remove", "1\n"), (bus / "rescan", "1\n")]


async def until(lab: DeviceBench, kind: str) -> None:
    async for event in lab.events.watch(after=0):
        if event.kind == kind:
            return


async def test_a_surprise_removal_is_told_and_shown(lab: DeviceBench) -> None:
    """By an event, and to whoever has to take rights to it away."""
    told: list[str] = []
    lab.devices.on_vanished(told.append)
    function = plug(lab)
    await lab.devices.attach(request())
    lab.devices.hold("d1", "storage data")
    unplug(lab, function)
    await until(lab, "device-vanished")
    device = lab.devices.get("d1")
    assert device.state is DeviceState.VANISHED
    assert device.users == {"storage data"}
    assert told == ["d1"]
    with pytest.raises(AgentError, match="vanished"):
        lab.devices.hold("d1", "other")
    await refused(lab.devices.attach(request()), Reason.STILL_IN_USE)
    lab.devices.release("d1", "storage data")
    await lab.devices.detach("d1", 30.0)
    assert lab.devices.list() == ()


async def test_a_vanished_device_can_be_attached_again(lab: DeviceBench) -> None:
    function = plug(lab)
    await lab.devices.attach(request())
    unplug(lab, function)
    await until(lab, "device-vanished")
    plug(lab)
    assert (await lab.devices.attach(request())).state is DeviceState.ATTACHED


async def test_a_vanished_device_does_not_keep_its_address(lab: DeviceBench) -> None:
    function = plug(lab)
    await lab.devices.attach(request("d1"))
    unplug(lab, function)
    await until(lab, "device-vanished")
    plug(lab)
    assert (await lab.devices.attach(request("d2"))).bdf == BDF


async def test_a_removed_bridge_takes_its_devices_along(lab: DeviceBench) -> None:
    function = plug(lab)
    await lab.devices.attach(request())
    lab.guest.announce("remove", function.parent, "pci")
    lab.sysfs.remove(function.parent)
    await until(lab, "device-vanished")


async def test_lost_events_do_not_hide_a_removal(lab: DeviceBench) -> None:
    function = plug(lab)
    await lab.devices.attach(request())
    lab.sysfs.remove(function)
    lab.guest.kernel.overflow()
    await until(lab, "device-vanished")


async def test_an_old_event_of_removal_does_not_hurt_the_new_device(tmp_path: Path) -> None:
    """It lay in the socket while the new device came: sysfs decides, not the event."""
    async with device_bench(tmp_path, relooks=()) as lab:
        function = plug(lab)
        await lab.devices.attach(request())
        lab.guest.announce("remove", function, "pci")
        await turns()
        assert lab.devices.get("d1").state is DeviceState.ATTACHED


async def test_removals_of_others_are_not_looked_into(tmp_path: Path) -> None:
    async with device_bench(tmp_path, relooks=()) as lab:
        function = plug(lab)
        await lab.devices.attach(request())
        lab.guest.announce("remove", function.with_name("0000:01:00.1"), "pci")
        await turns()
        assert lab.devices._checks == {}


async def test_a_new_agent_takes_over_what_was_saved(lab: DeviceBench) -> None:
    plug(lab, serial="s1")
    attached = await lab.devices.attach(request())
    lab.devices.hold("d1", "storage data")
    new = lab.new_manager()
    await new.restore()
    assert new.list() == (attached,)
    assert await new.attach(request()) == attached


async def test_a_new_agent_drops_what_went_meanwhile(lab: DeviceBench) -> None:
    function = plug(lab)
    await lab.devices.attach(request())
    lab.sysfs.remove(function)
    new = lab.new_manager()
    await new.restore()
    assert new.list() == ()
    assert lab.told()[-1] == ("device-lost", "d1")
    assert lab.state.load_all("devices") == {}


async def test_a_new_agent_is_not_fooled_by_a_replaced_device(lab: DeviceBench) -> None:
    function = plug(lab)
    await lab.devices.attach(request())
    function.rename(function.with_name("gone"))
    plug(lab, "vdc", dev="254:32")
    new = lab.new_manager()
    await new.restore()
    assert new.list() == ()


async def test_a_detach_goes_on_after_a_restart(lab: DeviceBench) -> None:
    plug(lab)
    await lab.devices.attach(request())
    await lab.devices.prepare_detach("d1")
    new = lab.new_manager()
    await new.restore()
    assert new.get("d1").state is DeviceState.LEAVING
    await new.detach("d1", 30.0)
    assert lab.told()[-1] == ("device-detached", "d1")
    await new.close()


async def test_saved_state_of_another_shape_is_dropped(lab: DeviceBench) -> None:
    lab.state.save("devices", "d1", {"from": "the future"})
    new = lab.new_manager()
    await new.restore()
    assert new.list() == ()
    assert lab.state.load_all("devices") == {}


async def test_a_record_comes_back_as_it_was(lab: DeviceBench) -> None:
    plug(lab)
    wanted = request(serial=None, timeout=3.0)
    object.__setattr__(wanted, "host", (HostTuple(type="pci", id="0000:3b:02.1"),))
    device = await lab.devices.attach(wanted)
    assert from_record(to_record(device)) == device


async def test_a_platform_without_notice_takes_out_and_brings_back(tmp_path: Path) -> None:
    """The kernel is told to let go before the unplug, because nobody else tells it."""
    async with device_bench(tmp_path, acpi=False) as lab:
        function = plug(lab)
        await lab.devices.attach(request())
        await lab.devices.prepare_detach("d1")
        assert lab.guest.files.writes == [(function / "remove", "1\n")]
        await lab.devices.cancel_detach("d1")
        assert lab.devices.get("d1").state is DeviceState.ATTACHED


async def test_the_table_has_a_limit(lab: DeviceBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.handlers.devices.manager.DEVICE_LIMIT", 0)
    error = await refused(lab.devices.attach(request()), Reason.LIMIT_REACHED)
    assert error.code is Code.RESOURCE_EXHAUSTED


async def test_a_full_run_directory_refuses_and_keeps_nothing(
    lab: DeviceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug(lab)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        await refused(lab.devices.attach(request()), Reason.NO_SPACE)
    assert lab.devices.list() == ()
    assert (await lab.devices.attach(request())).bdf == BDF


def test_two_classes_for_one_expectation_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="two device classes serve BlockExpectation"):
        _by_name((BlockDevices(), BlockDevices()))
