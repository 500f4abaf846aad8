"""Plug and unplug as one transaction, against a QEMU at the wire and an agent's table."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.plug import check_timeout
from tests.fakes.guest_devices import refusal
from tests.fakes.plug_bench import LIMIT, PlugBench, plug_bench

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[PlugBench]:
    async with plug_bench(tmp_path) as made:
        yield made


@contextlib.contextmanager
def refused(reason: Reason, code: grpc.StatusCode | None = None) -> Iterator[None]:
    with pytest.raises(ShimError) as caught:
        yield
    assert caught.value.reason is reason
    if code is not None:
        assert caught.value.code is code


async def test_plug_opens_the_file_adds_the_device_and_asks_the_guest(bench: PlugBench) -> None:
    assert await bench.plug() == "10/00"
    assert bench.qemu.commands == ["blockdev-add", "device_add"]
    device = bench.qemu.devices["dev-data"]
    assert (device["driver"], device["bus"], device["serial"]) == (
        "virtio-blk-pci",
        "port0",
        "data",
    )
    assert bench.guest.attached == {"data": "10/00"}
    assert bench.states() == {"data": "plugged"}


async def test_unplug_lets_the_guest_go_first_and_closes_the_file_last(bench: PlugBench) -> None:
    await bench.plug()
    bench.guest.calls.clear()
    bench.qemu.commands.clear()
    await bench.plugger.unplug("data", LIMIT)
    assert bench.guest.calls == ["prepare data", "complete data"]
    assert bench.qemu.commands == ["device_del", "blockdev-del"]
    bench.assert_untouched()


async def test_the_same_port_and_id_serve_again(bench: PlugBench) -> None:
    for _ in range(3):
        assert await bench.plug() == "10/00"
        await bench.plugger.unplug("data", LIMIT)
    bench.assert_untouched()


async def test_two_plugs_at_once_get_different_ports(bench: PlugBench) -> None:
    paths = await asyncio.gather(bench.plug("one"), bench.plug("two"))
    assert sorted(paths) == ["10.1/00", "10/00"]


async def test_a_used_id_is_refused_and_nothing_changes(bench: PlugBench) -> None:
    await bench.plug()
    bench.qemu.commands.clear()
    with refused(Reason.ID_IN_USE, grpc.StatusCode.ALREADY_EXISTS):
        await bench.plug()
    assert bench.qemu.commands == []
    assert bench.states() == {"data": "plugged"}


async def test_an_empty_pool_is_said_as_such(bench: PlugBench) -> None:
    await bench.plug("one")
    await bench.plug("two")
    with refused(Reason.PORT_POOL_EMPTY, grpc.StatusCode.RESOURCE_EXHAUSTED):
        await bench.plug("three")


async def test_unplug_of_an_unknown_device_is_not_found(bench: PlugBench) -> None:
    with refused(Reason.UNKNOWN_DEVICE, grpc.StatusCode.NOT_FOUND):
        await bench.plugger.unplug("data", LIMIT)


async def test_a_port_that_takes_no_hot_plug_rolls_the_file_back_and_names_the_bus(
    bench: PlugBench,
) -> None:
    """A root port with hot-plug switched off, or the root bus itself."""
    bench.qemu.refuse["device_add"] = "Bus 'port0' does not support hotplugging"
    with pytest.raises(ShimError, match=r"does not support hotplugging.*port0") as caught:
        await bench.plug()
    assert caught.value.reason is Reason.QEMU_REFUSED
    assert caught.value.fields["bus"] == "port0"
    bench.assert_untouched()


async def test_a_lock_that_qemu_can_not_get_is_about_the_file(bench: PlugBench) -> None:
    """QEMU opens the file without it and takes it with the device."""
    bench.qemu.refuse["device_add"] = 'Failed to get "write" lock'
    with refused(Reason.FILE_IN_USE):
        await bench.plug()
    bench.assert_untouched()


async def test_a_file_that_is_another_disk_of_this_vm_is_said_to_be_that(bench: PlugBench) -> None:
    await bench.plug()
    bench.qemu.refuse["device_add dev-more"] = 'Failed to get "write" lock'
    with pytest.raises(ShimError) as caught:
        await bench.plug("more")
    assert caught.value.reason is Reason.FILE_IN_USE
    assert caught.value.message == f"disk file {bench.content.file}: it is device data of this VM"
    assert caught.value.hint.startswith("detach data first")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('Failed to get "write" lock', Reason.FILE_IN_USE),
        ("Could not open 'x': No such file or directory", Reason.FILE_NOT_FOUND),
        ("Image is not in qcow2 format", Reason.QEMU_REFUSED),
    ],
)
async def test_a_file_that_qemu_can_not_open_is_told_by_kind(
    bench: PlugBench, text: str, reason: Reason
) -> None:
    bench.qemu.refuse["blockdev-add"] = text
    with refused(reason):
        await bench.plug()
    assert bench.guest.calls == []
    bench.assert_untouched()


async def test_a_guest_that_refuses_gets_the_device_taken_out_again(bench: PlugBench) -> None:
    code = grpc.StatusCode.DEADLINE_EXCEEDED
    bench.guest.refuse["attach"] = refusal(code, "DEVICE_NOT_READY")
    with pytest.raises(ShimError, match="DEVICE_NOT_READY") as caught:
        await bench.plug()
    assert (caught.value.reason, caught.value.code) == (Reason.GUEST_REFUSED, code)
    assert bench.qemu.commands == ["blockdev-add", "device_add", "device_del", "blockdev-del"]
    bench.assert_untouched()


async def test_a_plug_that_runs_out_of_time_says_what_it_waited_for(bench: PlugBench) -> None:
    bench.guest.holds.clear()
    with pytest.raises(ShimError, match="waiting for the guest to find it at 10/00") as caught:
        await bench.plug(timeout=0.05)
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    bench.assert_untouched()


async def test_a_cancelled_plug_is_undone(bench: PlugBench) -> None:
    bench.guest.holds.clear()
    plug = asyncio.create_task(bench.plug())
    await bench.qemu.until("device_add")
    plug.cancel()
    with pytest.raises(asyncio.CancelledError):
        await plug
    bench.assert_untouched()


async def test_an_answer_that_was_lost_on_its_way_is_undone_in_the_guest(bench: PlugBench) -> None:
    """The agent attached the disk, and the connection broke before its answer came."""
    bench.guest.loses_answers = True
    with refused(Reason.AGENT_AWAY):
        await bench.plug()
    bench.assert_untouched()


async def test_a_device_that_has_the_id_in_the_guest_is_left_alone(bench: PlugBench) -> None:
    """Somebody attached a disk that was there from the start under that id."""
    bench.guest.attached["data"] = "05"
    with pytest.raises(ShimError, match="ID_IN_USE") as caught:
        await bench.plug()
    assert caught.value.code is grpc.StatusCode.ALREADY_EXISTS
    assert bench.guest.calls == ["attach data"]
    assert bench.guest.attached == {"data": "05"}
    assert bench.qemu.devices == {}
    assert bench.states() == {}


async def test_unplug_of_a_device_that_is_coming_is_refused(bench: PlugBench) -> None:
    bench.guest.holds.clear()
    plug = asyncio.create_task(bench.plug())
    await bench.qemu.until("device_add")
    with refused(Reason.BUSY, grpc.StatusCode.FAILED_PRECONDITION):
        await bench.plugger.unplug("data", LIMIT)
    bench.guest.holds.set()
    assert await plug == "10/00"


# A removal that nobody asked for: the guest was still scanning its buses, and
# took the attention button's press for a request to remove.


async def test_a_device_removed_right_after_plugging_is_plugged_once_more(bench: PlugBench) -> None:
    bench.qemu.drops = 1
    assert await bench.plug() == "10/00"
    assert bench.qemu.commands == ["blockdev-add", "device_add", "device_add"]
    assert "ready" in bench.guest.calls
    assert bench.states() == {"data": "plugged"}


async def test_a_device_removed_twice_fails_the_call(bench: PlugBench) -> None:
    bench.qemu.drops = 2
    with refused(Reason.DEVICE_LOST, grpc.StatusCode.ABORTED):
        await bench.plug()
    assert bench.qemu.commands.count("device_add") == 2
    bench.assert_untouched()


async def test_a_removal_told_before_the_success_is_no_success(bench: PlugBench) -> None:
    """The guest has answered, and QEMU's event is on its way already."""
    bench.qemu.drops_at_status.add("dev-data")
    with refused(Reason.DEVICE_LOST):
        await bench.plug()
    bench.assert_untouched()


async def test_a_plugged_device_that_vanishes_is_forgotten_on_both_sides(bench: PlugBench) -> None:
    await bench.plug()
    bench.qemu.release("dev-data")
    await bench.qemu.until("blockdev-del")
    await bench.until_idle()
    bench.assert_untouched()


# Removal is the guest's to grant, and may come late or never.


async def test_a_guest_that_never_lets_go_leaves_id_port_and_file_taken(bench: PlugBench) -> None:
    await bench.plug()
    bench.qemu.lets_go = False
    with refused(Reason.OPERATION_TIMED_OUT, grpc.StatusCode.DEADLINE_EXCEEDED):
        await bench.plugger.unplug("data", 0.05)
    assert bench.states() == {"data": "leaving"}
    assert "blockdev-del" not in bench.qemu.commands
    with pytest.raises(ShimError, match="removal pending") as caught:
        await bench.plugger.unplug("data", LIMIT)
    assert caught.value.reason is Reason.REMOVAL_PENDING
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
    with refused(Reason.ID_IN_USE):
        await bench.plug()
    assert [port.name for port in bench.ports.free] == ["port1"]


async def test_a_late_event_frees_id_port_and_file(bench: PlugBench) -> None:
    await bench.plug()
    bench.qemu.lets_go = False
    with refused(Reason.OPERATION_TIMED_OUT):
        await bench.plugger.unplug("data", 0.05)
    bench.qemu.release("dev-data")
    await bench.qemu.until("blockdev-del")
    await bench.until_idle()
    bench.assert_untouched()


async def test_a_late_refusal_makes_it_usable_again(bench: PlugBench) -> None:
    await bench.plug()
    bench.qemu.lets_go = False
    with refused(Reason.OPERATION_TIMED_OUT):
        await bench.plugger.unplug("data", 0.05)
    bench.qemu.event("DEVICE_UNPLUG_GUEST_ERROR", {"device": "dev-data", "path": "/x"})
    await bench.until_idle()
    assert bench.states() == {"data": "plugged"}
    bench.qemu.lets_go = True
    await bench.plugger.unplug("data", LIMIT)
    bench.assert_untouched()


async def test_a_device_in_use_stays_plugged(bench: PlugBench) -> None:
    await bench.plug()
    code = grpc.StatusCode.FAILED_PRECONDITION
    bench.guest.refuse["prepare"] = refusal(code, "STILL_IN_USE")
    with refused(Reason.GUEST_REFUSED, code):
        await bench.plugger.unplug("data", LIMIT)
    assert "device_del" not in bench.qemu.commands
    assert bench.states() == {"data": "plugged"}


async def test_a_device_that_the_agent_has_forgotten_can_still_be_unplugged(
    bench: PlugBench,
) -> None:
    await bench.plug()
    bench.guest.attached.clear()
    await bench.plugger.unplug("data", LIMIT)
    bench.assert_untouched()


async def test_an_agent_that_does_not_answer_in_time_leaves_it_plugged(bench: PlugBench) -> None:
    """A paused guest: nothing was asked of QEMU, so nothing is pending there."""
    await bench.plug()
    bench.guest.hangs.add("prepare")
    with refused(Reason.OPERATION_TIMED_OUT):
        await bench.plugger.unplug("data", 0.05)
    await bench.until_idle()
    assert bench.guest.calls[-1] == "cancel data"
    assert bench.states() == {"data": "plugged"}
    assert "device_del" not in bench.qemu.commands


async def test_a_device_that_vanishes_while_the_agent_hangs_is_forgotten(bench: PlugBench) -> None:
    await bench.plug()
    bench.guest.hangs.add("prepare")
    unplug = asyncio.create_task(bench.plugger.unplug("data", LIMIT))
    await bench.until_idle()
    bench.qemu.release("dev-data")
    await bench.until_idle()
    bench.guest.hangs.clear()
    unplug.cancel()
    await bench.qemu.until("blockdev-del")
    await asyncio.gather(unplug, return_exceptions=True)
    await bench.until_idle()
    bench.assert_untouched()


async def test_a_device_del_that_qemu_refuses_leaves_it_plugged(bench: PlugBench) -> None:
    await bench.plug()
    bench.qemu.refuse["device_del"] = "Bus 'port0' does not support hotplugging"
    with refused(Reason.QEMU_REFUSED):
        await bench.plugger.unplug("data", LIMIT)
    assert bench.guest.calls[-1] == "cancel data"
    assert bench.guest.leaving == set()
    assert bench.states() == {"data": "plugged"}


async def test_a_guest_kernel_that_refuses_leaves_it_plugged(bench: PlugBench) -> None:
    await bench.plug()
    bench.qemu.lets_go = False
    unplug = asyncio.create_task(bench.plugger.unplug("data", LIMIT))
    await bench.qemu.until("device_del")
    bench.qemu.event("DEVICE_UNPLUG_GUEST_ERROR", {"device": "dev-data", "path": "/x"})
    with refused(Reason.GUEST_REFUSED):
        await unplug
    assert bench.states() == {"data": "plugged"}
    assert bench.guest.leaving == set()


async def test_a_cancelled_unplug_is_finished_when_the_guest_lets_go(bench: PlugBench) -> None:
    await bench.plug()
    bench.qemu.lets_go = False
    unplug = asyncio.create_task(bench.plugger.unplug("data", LIMIT))
    await bench.qemu.until("device_del")
    await bench.until_idle()
    unplug.cancel()
    with pytest.raises(asyncio.CancelledError):
        await unplug
    assert bench.states() == {"data": "leaving"}
    bench.qemu.release("dev-data")
    await bench.qemu.until("blockdev-del")
    await bench.until_idle()
    bench.assert_untouched()


async def test_a_guest_that_is_away_at_the_end_is_told_before_the_next_plug(
    bench: PlugBench,
) -> None:
    await bench.plug()
    bench.guest.refuse["has"] = ShimError(Reason.AGENT_AWAY, "away")
    await bench.plugger.unplug("data", LIMIT)
    assert bench.qemu.devices == {}
    assert "data" in bench.guest.attached
    with refused(Reason.AGENT_AWAY):
        await bench.plug("other")
    del bench.guest.refuse["has"]
    bench.guest.calls.clear()
    await bench.plug()
    assert bench.guest.calls == ["complete data", "attach data"]


async def test_a_qemu_that_ends_ends_what_waits_for_it(bench: PlugBench) -> None:
    await bench.plug("old")
    bench.guest.holds.clear()
    bench.qemu.lets_go = False
    plug = asyncio.create_task(bench.plug("new"))
    await bench.qemu.until("device_add", 2)
    unplug = asyncio.create_task(bench.plugger.unplug("old", LIMIT))
    await bench.qemu.until("device_del")
    bench.qemu.hang_up()
    for waiting in (plug, unplug):
        with refused(Reason.QEMU_GONE):
            await waiting


async def test_a_long_id_gets_a_serial_that_virtio_blk_can_tell(bench: PlugBench) -> None:
    """virtio-blk's identification has 20 bytes; QEMU cuts the rest off without a word."""
    await bench.plug("a" * 64)
    await bench.plug("a" * 63 + "b")
    serials = [device["serial"] for device in bench.qemu.devices.values()]
    assert [len(serial) for serial in serials] == [20, 20]
    assert serials[0] != serials[1]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e9])
def test_an_impossible_timeout_is_a_bad_field(seconds: float) -> None:
    with refused(Reason.BAD_FIELD, grpc.StatusCode.INVALID_ARGUMENT):
        check_timeout(seconds)


def test_no_timeout_means_half_a_minute() -> None:
    assert check_timeout(0) == 30
