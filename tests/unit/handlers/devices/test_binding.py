"""Drivers of PCI functions changed and given back, on a sysfs whose writes take effect."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.places import function_of
from agent.core.tree import PciFunction
from agent.core.undo import UndoStack
from agent.handlers.devices.binding import (
    Former,
    from_kept,
    give_back,
    is_vfio,
    switch,
    to_kept,
)
from tests.fakes.vfio_sysfs import VfioGuest, vfio_guest

pytestmark = [pytest.mark.unit, pytest.mark.devices]

CARD = "0000:01:00.0"
OVERRIDE = f"{CARD} driver_override"
BEFORE = {CARD: ("virtio-pci", "(null)")}
AS_VFIO = {CARD: ("vfio-pci", "vfio-pci")}


@pytest_asyncio.fixture
async def guest(tmp_path: Path) -> AsyncIterator[VfioGuest]:
    """A network function that virtio-pci has."""
    async with vfio_guest(tmp_path) as made:
        made.sysfs.card(made.sysfs.port_with_slot(), CARD, group=7)
        yield made


def function(guest: VfioGuest) -> PciFunction:
    found = function_of(guest.board.tree, guest.sysfs.where(CARD))
    assert found is not None
    return found


async def to(guest: VfioGuest, driver: str | None, undo: UndoStack | None = None) -> Former:
    """Switch with a deadline that only a broken test reaches."""
    stack = undo or UndoStack("test")
    return await switch(guest.hands, function(guest), driver, Deadline.after(20), stack)


async def back(guest: VfioGuest, former: Former) -> None:
    await give_back(guest.hands, former, Deadline.after(20))


async def refusal(guest: VfioGuest, driver: str | None) -> AgentError:
    """How a switch fails; what it did is undone."""
    with pytest.raises(AgentError) as caught:
        async with UndoStack("test") as undo:
            await to(guest, driver, undo)
    assert caught.value.fields.get("not_undone") is None
    return caught.value


async def test_the_kernels_order_of_writes(guest: VfioGuest) -> None:
    """Override, unbind, drivers_probe, so that no other driver can take it in between."""
    guest.sysfs.load_vfio()
    former = await to(guest, "vfio-pci")
    assert guest.files.writes == [
        (OVERRIDE, "vfio-pci"),
        ("drivers/virtio-pci/unbind", CARD),
        ("drivers_probe", CARD),
    ]
    assert guest.sysfs.state(CARD) == AS_VFIO
    assert (former.driver, former.override, former.changed) == ("virtio-pci", "", True)


async def test_a_function_without_a_driver_has_none_to_unbind(guest: VfioGuest) -> None:
    guest.sysfs.load_vfio()
    guest.sysfs.unbind("virtio-pci", CARD)
    former = await to(guest, "vfio-pci")
    assert [name for name, _ in guest.files.writes] == [OVERRIDE, "drivers_probe"]
    assert former.driver == ""
    await back(guest, former)
    assert guest.sysfs.state(CARD) == BEFORE, "the bus chooses again"


async def test_bound_already_writes_nothing(guest: VfioGuest) -> None:
    guest.sysfs.load_vfio()
    await to(guest, "vfio-pci")
    guest.files.writes.clear()
    again = await to(guest, "vfio-pci")
    assert (again.changed, guest.files.writes) == (False, [])
    await back(guest, again)
    assert guest.sysfs.state(CARD) == AS_VFIO


async def test_the_way_back(guest: VfioGuest) -> None:
    """The override is cleared first, and with a line feed (sysfs-bus-pci); then it is unbound
    and the bus asked to look. A second time nothing is left to do."""
    guest.sysfs.load_vfio()
    former = await to(guest, "vfio-pci")
    guest.files.writes.clear()
    await back(guest, former)
    assert guest.files.writes == [
        (OVERRIDE, ""),
        ("drivers/vfio-pci/unbind", CARD),
        ("drivers_probe", CARD),
    ]
    assert guest.sysfs.state(CARD) == BEFORE
    await back(guest, former)
    assert len(guest.files.writes) == 3


async def test_an_override_from_before_comes_back(guest: VfioGuest) -> None:
    guest.sysfs.write(guest.sysfs.where(CARD) / "driver_override", "pci-stub")
    guest.sysfs.unbind("virtio-pci", CARD)
    guest.sysfs.look_for_driver(CARD)
    guest.sysfs.load_vfio()
    former = await to(guest, "vfio-pci")
    await back(guest, former)
    assert guest.sysfs.state(CARD) == {CARD: ("pci-stub", "pci-stub")}


async def test_the_guests_own_driver_after_an_override(guest: VfioGuest) -> None:
    """What somebody left on VFIO goes to the driver that the kernel chooses, and back."""
    guest.sysfs.load_vfio()
    await to(guest, "vfio-pci")
    guest.files.writes.clear()
    former = await to(guest, None)
    assert [name for name, _ in guest.files.writes] == [
        OVERRIDE,
        "drivers/vfio-pci/unbind",
        "drivers_probe",
    ]
    assert guest.sysfs.state(CARD) == BEFORE
    await back(guest, former)
    assert guest.sysfs.state(CARD) == AS_VFIO


async def test_a_function_with_its_own_driver_is_left_alone(guest: VfioGuest) -> None:
    former = await to(guest, None)
    assert (former.changed, guest.files.writes) == (False, [])


async def test_an_override_that_the_guests_driver_follows_is_left_alone(guest: VfioGuest) -> None:
    """As after a switch to a driver by name."""
    guest.sysfs.write(guest.sysfs.where(CARD) / "driver_override", "virtio-pci")
    former = await to(guest, None)
    assert (former.changed, guest.files.writes) == (False, [])


@pytest.mark.parametrize("override", ["none", "vfio-pci"])
async def test_an_override_for_another_is_cleared(guest: VfioGuest, override: str) -> None:
    """ "none" keeps all drivers away (sysfs-bus-pci)."""
    guest.sysfs.write(guest.sysfs.where(CARD) / "driver_override", override)
    guest.sysfs.unbind("virtio-pci", CARD)
    former = await to(guest, None)
    assert guest.sysfs.state(CARD) == BEFORE
    await back(guest, former)
    assert guest.sysfs.state(CARD) == {CARD: ("", override)}


async def test_the_module_is_loaded_first(guest: VfioGuest) -> None:
    """An override is no alias: the kernel would not ask for vfio-pci by itself."""
    await to(guest, "vfio-pci")
    assert guest.loaded == ["vfio-pci"]
    await to(guest, "vfio-pci")
    assert guest.loaded == ["vfio-pci"]


async def test_without_the_module_nothing_is_written(guest: VfioGuest) -> None:
    guest.unknown_modules.add("vfio-pci")
    error = await refusal(guest, "vfio-pci")
    assert error.reason is Reason.MODULE_REFUSED
    assert "not found" in str(error)
    assert guest.files.writes == []


async def test_a_module_that_brings_no_such_driver(guest: VfioGuest) -> None:
    error = await refusal(guest, "dummy")
    assert (error.reason, guest.loaded) == (Reason.MODULE_REFUSED, ["dummy"])
    assert guest.files.writes == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "vfio pci", "-r", "x" * 65, "vfio-pci\n"])
async def test_a_driver_has_a_plain_name(guest: VfioGuest, name: str) -> None:
    error = await refusal(guest, name)
    assert error.code is Code.INVALID_ARGUMENT
    assert (guest.loaded, guest.files.writes) == ([], [])


@pytest.mark.parametrize("number", range(3))
async def test_each_failing_write_is_taken_back(guest: VfioGuest, number: int) -> None:
    guest.sysfs.load_vfio()
    guest.files.fails_after = number
    error = await refusal(guest, "vfio-pci")
    assert (error.reason, error.fields["errno"]) == (Reason.KERNEL_REFUSED, "EIO")
    assert CARD in str(error)
    assert guest.sysfs.state(CARD) == BEFORE


async def test_a_driver_that_does_not_take_it(guest: VfioGuest) -> None:
    """Its probe fails: drivers_probe says nothing of that, the kernel's log does."""
    guest.sysfs.load_vfio()
    guest.sysfs.refusing.add(("vfio-pci", CARD))
    error = await refusal(guest, "vfio-pci")
    assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, Reason.DRIVER_REFUSED)
    assert "probe with driver vfio-pci failed with error -22" in error.fields["kernel_log"]
    assert "error -22" in str(error)
    assert guest.sysfs.state(CARD) == BEFORE


async def test_the_caller_may_name_the_refusal(guest: VfioGuest) -> None:
    guest.sysfs.driver("other")
    guest.sysfs.refusing.add(("other", CARD))
    with pytest.raises(AgentError) as caught:
        async with UndoStack("test") as undo:
            await switch(
                guest.hands,
                function(guest),
                "other",
                Deadline.after(20),
                undo,
                refusal=Reason.MODE_REFUSED,
            )
    assert caught.value.reason is Reason.MODE_REFUSED
    assert guest.sysfs.state(CARD) == BEFORE


async def test_a_probe_put_off_is_waited_for(guest: VfioGuest) -> None:
    """drivers_probe answers EINVAL for it; the driver comes a moment later by itself."""
    guest.sysfs.load_vfio()
    guest.files.fails["drivers_probe"] = errno.EINVAL
    guest.files.on_write = lambda path: later(guest) if path == "drivers_probe" else None
    await to(guest, "vfio-pci")
    assert guest.sysfs.state(CARD) == AS_VFIO


def later(guest: VfioGuest) -> None:
    guest.sysfs.look_for_driver(CARD)
    guest.files.tell("bind", CARD)


async def test_a_driver_that_lets_go_by_itself(guest: VfioGuest) -> None:
    """unbind answers ENODEV for a driver that has gone meanwhile: as good as done."""
    guest.sysfs.load_vfio()
    guest.files.on_write = lambda path: (
        guest.sysfs.unbind("virtio-pci", CARD) if "unbind" in path else None
    )
    await to(guest, "vfio-pci")
    assert guest.sysfs.state(CARD) == AS_VFIO


async def test_a_group_that_is_open_is_explained(guest: VfioGuest) -> None:
    """vfio_unregister_group_dev waits until the device is closed, with its lock held."""
    guest.sysfs.load_vfio()
    former = await to(guest, "vfio-pci")
    guest.files.late.add("vfio-pci/unbind")
    with pytest.raises(AgentError) as caught:
        await back(guest, former)
    assert (caught.value.code, caught.value.reason) == (
        Code.DEADLINE_EXCEEDED,
        Reason.OPERATION_TIMED_OUT,
    )
    assert "group 7 open" in str(caught.value)
    assert "Devices.Holders" in str(caught.value)
    # Closed at last: the kernel finishes what was given up, and the same call does the rest.
    guest.files.late.clear()
    guest.sysfs.unbind("vfio-pci", CARD)
    await back(guest, former)
    assert guest.sysfs.state(CARD) == BEFORE


async def test_an_unbind_that_still_hangs_is_explained_too(guest: VfioGuest) -> None:
    """The driver's link is gone by then, and whoever wants the function's lock waits."""
    guest.sysfs.load_vfio()
    former = await to(guest, "vfio-pci")
    (guest.sysfs.where(CARD) / "driver").unlink()
    guest.files.late.add("power/control")
    with pytest.raises(AgentError) as caught:
        await back(guest, former)
    assert "group 7 open" in str(caught.value)


async def test_a_function_that_is_gone_needs_nothing_back(guest: VfioGuest) -> None:
    guest.sysfs.load_vfio()
    former = await to(guest, "vfio-pci")
    guest.files.writes.clear()
    guest.sysfs.remove(guest.sysfs.where(CARD))
    await back(guest, former)
    assert guest.files.writes == []


async def test_another_function_in_its_place_is_not_touched(guest: VfioGuest) -> None:
    """Plugged into the same slot after a surprise removal, for someone else's VFIO."""
    guest.sysfs.load_vfio()
    former = await to(guest, "vfio-pci")
    held = guest.sysfs.where(CARD).rename(guest.sysfs.sys / "held")
    guest.sysfs.card(guest.sysfs.sys / "devices/pci0000:00/0000:00:02.0", CARD, group=7)
    guest.files.writes.clear()
    await back(guest, former)
    assert held.exists()
    assert guest.files.writes == []


async def test_it_goes_while_it_is_bound(guest: VfioGuest) -> None:
    guest.sysfs.load_vfio()
    guest.files.on_write = lambda path: (
        guest.sysfs.remove(guest.sysfs.where(CARD)) if "unbind" in path else None
    )
    error = await refusal(guest, "vfio-pci")
    assert error.reason is Reason.DEVICE_FAILED
    assert "went away" in str(error)


async def test_formers_survive_as_text(guest: VfioGuest) -> None:
    guest.sysfs.load_vfio()
    former = await to(guest, "vfio-pci")
    kept = to_kept([former])
    assert list(kept) == [f"driver {CARD}"]
    assert from_kept({"else": "x", **kept, **to_kept([former], "vfio")}) == (former,)
    assert to_kept([await to(guest, "vfio-pci")]) == {}


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("vfio-pci", True),
        ("mlx5_vfio_pci", True),
        ("nvgrace-gpu-vfio-pci", True),
        ("pci-stub", False),
        ("virtio-pci", False),
        ("", False),
    ],
)
def test_vendors_variants_of_vfio(driver: str, *, expected: bool) -> None:
    """drivers/vfio/pci/*: all end so."""
    assert is_vfio(driver) is expected
