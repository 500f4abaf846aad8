"""Random number generators: which is whose, and whose is the source."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agent.core.addresses import Address
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.kinds import RngExpectation, RngInfo
from agent.core.model import AttachedDevice, DeviceRequest
from agent.core.pci import parse_address
from agent.core.places import find
from agent.core.tree import SysfsTree
from agent.core.undo import UndoStack
from agent.core.verdict import NotYet, Ready
from agent.handlers.devices.attached import entry_of
from agent.handlers.devices.base import Found, Taken
from agent.handlers.devices.job import Hands, Job
from agent.handlers.devices.rng import RngDevices
from tests.fakes.hotplug import Bench, bench
from tests.fakes.rng_trees import FakeRngs
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


@pytest.fixture
def rngs(sysfs: FakeSysfs) -> FakeRngs:
    return FakeRngs(sysfs)


def look(sysfs: FakeSysfs, address: str) -> Found | NotYet:
    place = find(sysfs.tree, parse_address(address))
    assert isinstance(place, Ready), place
    verdict = RngDevices().probe(sysfs.tree, place.result, RngExpectation())
    if isinstance(verdict, Ready):
        return verdict.result
    assert isinstance(verdict, NotYet), verdict
    return verdict


def name_at(sysfs: FakeSysfs, address: str) -> str:
    found = look(sysfs, address)
    assert isinstance(found, Found), found
    assert isinstance(found.info, RngInfo)
    return found.info.name


def unknown(sysfs: FakeSysfs, address: str) -> str:
    verdict = look(sysfs, address)
    assert isinstance(verdict, NotYet)
    return verdict.evidence


def test_the_only_one_is_the_source_and_its_node_is_hwrng(sysfs: FakeSysfs, rngs: FakeRngs) -> None:
    """devices.txt: c 10:183 is the generic random number generator."""
    rngs.plug(sysfs.port_with_slot(), "0000:01:00.0", "virtio2")
    found = look(sysfs, "02/00")
    assert isinstance(found, Found)
    assert found.info == RngInfo(name="virtio_rng.0", current=True)
    (node,) = found.nodes
    assert (node.type, node.major, node.minor) == ("c", 10, 183)
    assert node.path == str(sysfs.roots.dev / "hwrng")


def test_a_second_one_is_not_the_source_and_has_no_node(sysfs: FakeSysfs, rngs: FakeRngs) -> None:
    """/dev/hwrng does not read from it: whoever has that open does not hold it."""
    rngs.plug(sysfs.port_with_slot("02", "01"), "0000:01:00.0", "virtio2")
    rngs.plug(sysfs.port_with_slot("03", "02"), "0000:02:00.0", "virtio9")
    found = look(sysfs, "03/00")
    assert isinstance(found, Found)
    assert (found.info, found.nodes) == (RngInfo(name="virtio_rng.1", current=False), ())


def test_names_do_not_follow_the_numbers_of_virtio_devices(
    sysfs: FakeSysfs, rngs: FakeRngs
) -> None:
    """The number is the lowest that is free when the driver takes the device."""
    later = rngs.function(sysfs.port_with_slot("02", "01"), "0000:01:00.0", "virtio2")
    rngs.plug(sysfs.port_with_slot("03", "02"), "0000:02:00.0", "virtio9")
    rngs.bind(later)
    assert (name_at(sysfs, "03/00"), name_at(sysfs, "02/00")) == ("virtio_rng.0", "virtio_rng.1")


def test_a_number_that_became_free_is_used_again(sysfs: FakeSysfs, rngs: FakeRngs) -> None:
    """The kernel's list is then out of the numbers' order: the newest is last, as 0."""
    first = rngs.function(sysfs.port_with_slot("02", "01"), "0000:01:00.0", "virtio2")
    rngs.bind(first)
    rngs.plug(sysfs.port_with_slot("03", "02"), "0000:02:00.0", "virtio3")
    rngs.unplug(first)
    rngs.plug(sysfs.port_with_slot("04", "03"), "0000:03:00.0", "virtio2")
    assert rngs.names == ["virtio_rng.1", "virtio_rng.0"]
    assert (name_at(sysfs, "03/00"), name_at(sysfs, "04/00")) == ("virtio_rng.1", "virtio_rng.0")


def test_two_at_once_are_told_apart_only_when_both_are_there(
    sysfs: FakeSysfs, rngs: FakeRngs
) -> None:
    one = rngs.function(sysfs.port_with_slot("02", "01"), "0000:01:00.0", "virtio2")
    other = rngs.function(sysfs.port_with_slot("03", "02"), "0000:02:00.0", "virtio3")
    rngs.begin(one)
    assert "no generator" in unknown(sysfs, "02/00")
    rngs.register(one)
    assert "virtio3 without a driver" in unknown(sysfs, "02/00"), "the name may be virtio3's"
    rngs.begin(other)
    evidence = unknown(sysfs, "03/00")
    assert "virtio_rng has the devices virtio2, virtio3" in evidence
    assert "the kernel has the generators virtio_rng.0" in evidence
    rngs.register(other)
    assert (name_at(sysfs, "02/00"), name_at(sysfs, "03/00")) == ("virtio_rng.0", "virtio_rng.1")


def test_the_name_of_one_that_is_leaving_is_not_taken(sysfs: FakeSysfs, rngs: FakeRngs) -> None:
    """The driver's links go before its generator does, so the numbers agree by chance."""
    leaving = rngs.function(sysfs.port_with_slot("02", "01"), "0000:01:00.0", "virtio2")
    rngs.bind(leaving)
    coming = rngs.function(sysfs.port_with_slot("03", "02"), "0000:02:00.0", "virtio3")
    rngs.let_go(leaving)
    rngs.begin(coming)
    assert rngs.names == ["virtio_rng.0"]
    assert "virtio2 without a driver" in unknown(sysfs, "03/00")
    rngs.register(coming)
    assert "not known" in unknown(sysfs, "03/00")
    rngs.unregister(leaving)
    (sysfs.sys / "bus/virtio/devices/virtio2").unlink()
    assert name_at(sysfs, "03/00") == "virtio_rng.1"


class Swapping(SysfsTree):
    """Replaces one generator by another between the reads of devices and names."""

    def __init__(self, sysfs: FakeSysfs, swap: Callable[[], object]) -> None:
        super().__init__(roots=sysfs.roots)
        self.swap = swap
        self.reads = 0

    __slots__ = ("reads", "swap")
    __setattr__ = object.__setattr__

    def text(self, path: Path) -> str | None:
        if path.name == "rng_available":
            self.reads += 1
            if self.reads == 2:
                self.swap()
        return SysfsTree.text(self, path)


def test_one_replaced_by_another_while_it_is_looked(sysfs: FakeSysfs, rngs: FakeRngs) -> None:
    """As many devices as names, and the names of others."""
    first = rngs.function(sysfs.port_with_slot("02", "01"), "0000:01:00.0", "virtio2")
    rngs.bind(first)
    rngs.plug(sysfs.port_with_slot("03", "02"), "0000:02:00.0", "virtio3")
    third = rngs.function(sysfs.port_with_slot("04", "03"), "0000:03:00.0", "virtio4")
    rngs.sysfs.link(third / "driver", "elsewhere")

    def swap() -> None:
        rngs.unplug(first)
        rngs.bind(third)

    tree = Swapping(sysfs, swap)
    place = find(tree, parse_address("03/00"))
    assert isinstance(place, Ready)
    verdict = RngDevices().probe(tree, place.result, RngExpectation())
    assert tree.reads == 2
    assert isinstance(verdict, NotYet)
    assert "not known" in verdict.evidence
    assert name_at(sysfs, "03/00") == "virtio_rng.1"


def test_what_it_waits_for_may_come_from_anywhere(sysfs: FakeSysfs, rngs: FakeRngs) -> None:
    """Another device's leaving makes the name known: every event is worth a look."""
    rngs.plug(sysfs.port_with_slot("02", "01"), "0000:01:00.0", "virtio2")
    rngs.names.append("virtio_rng.7")
    rngs.choose("")
    verdict = look(sysfs, "02/00")
    assert isinstance(verdict, NotYet)
    assert verdict.near == ()


def test_a_name_with_the_devices_own_in_it_is_its(sysfs: FakeSysfs, rngs: FakeRngs) -> None:
    """As drivers/char/hw_random/cavium-rng-vf.c makes it; others of the driver don't matter."""
    port = sysfs.port_with_slot()
    function = sysfs.function(port, "0000:01:00.0", driver="cavium_rng_vf")
    rngs.names += ["cavium-rng-0000:01:00.1", "cavium-rng-0000:01:00.0"]
    rngs.choose("")
    sysfs.write(function / "vendor", "0x177d")
    assert name_at(sysfs, "02/00") == "cavium-rng-0000:01:00.0"


def test_a_tpms_generator_has_the_chips_number(sysfs: FakeSysfs, rngs: FakeRngs) -> None:
    """drivers/char/tpm/tpm-chip.c: "tpm-rng-%d" of the chip."""
    function = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0", driver="tpm_crb")
    (function / "tpm/tpm1").mkdir(parents=True)
    rngs.names += ["tpm-rng-0", "tpm-rng-1", "tpm-rng-10"]
    rngs.choose("")
    assert name_at(sysfs, "02/00") == "tpm-rng-1"


def test_another_drivers_generator_is_not_its(sysfs: FakeSysfs, rngs: FakeRngs) -> None:
    sysfs.function(sysfs.port_with_slot(), "0000:01:00.0", driver="ccp")
    rngs.names += ["virtio_rng.0", "cctrng"]
    rngs.choose("")
    assert "no generator of its driver's" in unknown(sysfs, "02/00")


def test_a_device_without_its_driver(sysfs: FakeSysfs, rngs: FakeRngs) -> None:
    device = rngs.function(sysfs.port_with_slot(), "0000:01:00.0", "virtio2")
    verdict = look(sysfs, "02/00")
    assert isinstance(verdict, NotYet)
    assert "virtio2 (no driver)" in verdict.evidence
    assert verdict.driverless == (device,)


def test_without_the_kernels_core(sysfs: FakeSysfs) -> None:
    function = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0", driver="virtio-pci")
    sysfs.virtio(function, "virtio2", driver="virtio_rng")
    assert "no generator" in unknown(sysfs, "02/00")


def test_the_source_without_its_node_is_not_ready(sysfs: FakeSysfs, rngs: FakeRngs) -> None:
    rngs.plug(sysfs.port_with_slot(), "0000:01:00.0", "virtio2")
    sysfs.nodes.clear()
    assert "no node" in unknown(sysfs, "02/00")


@dataclass(kw_only=True)
class Guest:
    """A guest with a source of its own at 02/00, a second generator at 03/00."""

    rngs: FakeRngs
    bench: Bench
    hands: Hands
    second: Path

    async def attach(self, *, make_current: bool = True, fails: bool = False) -> Taken:
        request = DeviceRequest(
            id="rng0", address=self._address, kind=RngExpectation(make_current=make_current)
        )
        async with UndoStack("attach") as undo:
            job = Job(
                request=request,
                expected=RngExpectation(make_current=make_current),
                what="rng device rng0 at 03/00",
                hands=self.hands,
                deadline=Deadline.after(0.05),
                undo=undo,
            )
            taken = await RngDevices().take(job)
            if not fails:
                undo.commit()
        return taken

    async def detach(self, taken: Taken) -> None:
        await RngDevices().give_back(self.hands, self.device(taken), taken.kept)

    def device(self, taken: Taken) -> AttachedDevice:
        request = DeviceRequest(id="rng0", address=self._address, kind=RngExpectation())
        return entry_of(self.bench.sysfs.tree, request, "rng", taken).device

    @property
    def _address(self) -> Address:
        return parse_address("03/00")


@asynccontextmanager
async def guest(base: Path) -> AsyncIterator[Guest]:
    async with bench(base) as made:
        rngs = FakeRngs(made.sysfs)
        rngs.plug(made.sysfs.port_with_slot("02", "01"), "0000:01:00.0", "virtio2")
        port = made.sysfs.port_with_slot("03", "02")
        second = rngs.function(port, "0000:02:00.0", "virtio3")
        rngs.bind(second)
        made.files.effect = rngs.store
        hands = Hands(board=made.board, peer=lambda _: None)
        yield Guest(rngs=rngs, bench=made, hands=hands, second=second)


async def test_not_asked_to_be_the_source_nothing_changes(tmp_path: Path) -> None:
    async with guest(tmp_path) as made:
        taken = await made.attach(make_current=False)
        assert (taken.kept, made.bench.files.writes) == ({}, [])
        await made.detach(taken)
        assert made.bench.files.writes == []


async def test_made_the_source_and_back(tmp_path: Path) -> None:
    """The former was the kernel's own choice, and is that again: better ones may come."""
    async with guest(tmp_path) as made:
        taken = await made.attach()
        assert (made.rngs.current, made.rngs.chosen) == ("virtio_rng.1", True)
        info = RngInfo(name="virtio_rng.1", current=True, former="virtio_rng.0")
        assert taken.sighting.found.info == info
        assert [node.path for node in taken.sighting.found.nodes] == [
            str(made.bench.sysfs.roots.dev / "hwrng")
        ]
        await made.detach(taken)
        assert (made.rngs.current, made.rngs.chosen) == ("virtio_rng.0", False)


async def test_a_former_that_somebody_chose_is_chosen_again(tmp_path: Path) -> None:
    async with guest(tmp_path) as made:
        made.rngs.choose("virtio_rng.0")
        await made.detach(await made.attach())
        assert (made.rngs.current, made.rngs.chosen) == ("virtio_rng.0", True)


async def test_already_the_source_there_is_nothing_to_give_back(tmp_path: Path) -> None:
    async with guest(tmp_path) as made:
        made.rngs.choose("virtio_rng.1")
        taken = await made.attach()
        assert (taken.kept, made.bench.files.writes) == ({}, [])
        await made.detach(taken)
        assert made.rngs.current == "virtio_rng.1"


async def test_a_switched_driver_alone_is_not_this_classes_to_give_back(tmp_path: Path) -> None:
    """What is kept for a device has the manager's own part in it, too."""
    async with guest(tmp_path) as made:
        made.rngs.choose("virtio_rng.1")
        taken = await made.attach()
        await made.detach(replace(taken, kept={"driver 0000:02:00.0": "{}"}))
        assert made.rngs.current == "virtio_rng.1"


async def test_what_somebody_chose_meanwhile_stays(tmp_path: Path) -> None:
    async with guest(tmp_path) as made:
        third = made.rngs.function(
            made.bench.sysfs.port_with_slot("04", "03"), "0000:03:00.0", "virtio4"
        )
        made.rngs.bind(third)
        taken = await made.attach()
        made.rngs.choose("virtio_rng.2")
        await made.detach(taken)
        assert made.rngs.current == "virtio_rng.2"


async def test_without_the_former_the_kernel_chooses(tmp_path: Path) -> None:
    async with guest(tmp_path) as made:
        taken = await made.attach()
        first = made.bench.sysfs.sys / "bus/virtio/devices/virtio2"
        made.rngs.unplug(first.resolve())
        await made.detach(taken)
        assert made.rngs.chosen is False
        assert made.rngs.current == "virtio_rng.1", "the only one there is"


async def test_gone_without_notice_the_former_comes_back(tmp_path: Path) -> None:
    """The kernel took the first of the others; the former was another one."""
    async with guest(tmp_path) as made:
        third = made.rngs.function(
            made.bench.sysfs.port_with_slot("04", "03"), "0000:03:00.0", "virtio4"
        )
        made.rngs.bind(third)
        made.rngs.choose("virtio_rng.2")
        taken = await made.attach()
        device = made.device(taken)
        made.rngs.unplug(made.second)
        assert made.rngs.current == "virtio_rng.0"
        await RngDevices().give_back(made.hands, device, taken.kept)
        assert made.rngs.current == "virtio_rng.2"


async def test_gone_without_notice_what_somebody_chose_then_stays(tmp_path: Path) -> None:
    async with guest(tmp_path) as made:
        third = made.rngs.function(
            made.bench.sysfs.port_with_slot("04", "03"), "0000:03:00.0", "virtio4"
        )
        made.rngs.bind(third)
        taken = await made.attach()
        device = made.device(taken)
        made.rngs.unplug(made.second)
        made.rngs.choose("virtio_rng.2")
        await RngDevices().give_back(made.hands, device, taken.kept)
        assert made.rngs.current == "virtio_rng.2"


async def test_a_failure_later_on_gives_the_source_back(tmp_path: Path) -> None:
    async with guest(tmp_path) as made:
        await made.attach(fails=True)
        assert (made.rngs.current, made.rngs.chosen) == ("virtio_rng.0", False)


async def test_a_kernel_that_takes_the_name_and_does_nothing(tmp_path: Path) -> None:
    """Told as not ready, and not as done."""
    async with guest(tmp_path) as made:
        made.bench.files.effect = lambda _path, _text: None
        with pytest.raises(AgentError) as caught:
            await made.attach()
        assert caught.value.reason is Reason.DEVICE_NOT_READY
        assert "virtio_rng.0 is" in caught.value.message


async def test_a_kernel_that_refuses(tmp_path: Path) -> None:
    async with guest(tmp_path) as made:
        taken = await made.attach()
        made.bench.files.refusal = OSError(errno.EIO, "Input/output error")
        with pytest.raises(AgentError) as caught:
            await made.detach(taken)
        assert (caught.value.reason, caught.value.fields["errno"]) == (
            Reason.KERNEL_REFUSED,
            "EIO",
        )
