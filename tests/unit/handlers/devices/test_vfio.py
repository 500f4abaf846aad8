"""VFIO functions on a sysfs whose writes take effect: groups, modes, batches, the way back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from agent.core.errors import AgentError, Code, Reason
from agent.core.hotplug import RELOOKS
from agent.core.kinds import NicExpectation, NicInfo, VfioExpectation, VfioInfo, VfioMode
from agent.core.model import AttachedDevice, DeviceNode, DeviceRequest, NodeType
from agent.core.pci import parse_address
from agent.core.places import Place, find
from agent.core.undo import UndoStack
from agent.core.verdict import Ready
from agent.handlers.devices.base import Taken
from agent.handlers.devices.vfio import VfioDevices
from tests.fakes.device_jobs import attached, failed, job, look, ready, request, waiting
from tests.fakes.vfio_sysfs import VfioGuest, VfioSysfs, vfio_guest

pytestmark = [pytest.mark.unit, pytest.mark.devices]

ONE, TWO, THREE = (f"0000:01:00.{number}" for number in range(3))
ADDRESSES = {ONE: "02/00", TWO: "02/00.1", THREE: "02/00.2"}
GUEST = ("virtio-pci", "(null)")
USER = ("vfio-pci", "vfio-pci")
ANY = VfioExpectation()
WHOLE = VfioExpectation(take_group=True)
KERNEL = VfioExpectation(mode=VfioMode.GUEST_KERNEL)


class Lab:
    """The class on a guest, called as the manager calls it."""

    def __init__(self, guest: VfioGuest) -> None:
        self.guest = guest
        self.sysfs = guest.sysfs
        self.devices = VfioDevices()
        self.port = guest.sysfs.port_with_slot()

    def want(self, name: str, bdf: str = ONE, expected: VfioExpectation = ANY) -> None:
        """A request is known before any work on it begins."""
        self.guest.known[name] = request(name, ADDRESSES[bdf], expected)

    async def take(self, name: str, *, timeout: float = 20) -> Taken:
        wanted = self.guest.known[name]
        assert isinstance(wanted, DeviceRequest)
        try:
            async with UndoStack(name) as undo:
                taken = await self.devices.take(
                    job(self.guest.hands, wanted, undo, timeout=timeout)
                )
                undo.commit()
        except BaseException:
            del self.guest.known[name]
            raise
        place = taken.sighting.place
        here = attached(name, str(wanted.address), place.name, taken.sighting.found.info)
        self.guest.known[name] = replace(here, request=wanted)
        return taken

    async def attach(self, name: str, bdf: str = ONE, expected: VfioExpectation = ANY) -> Taken:
        self.want(name, bdf, expected)
        return await self.take(name)

    async def refusal(self, name: str, bdf: str, expected: VfioExpectation = ANY) -> AgentError:
        with pytest.raises(AgentError) as caught:
            await self.attach(name, bdf, expected)
        assert "not_undone" not in caught.value.fields
        return caught.value

    async def release(self, name: str, taken: Taken) -> None:
        device = self.guest.known.pop(name)
        assert isinstance(device, AttachedDevice)
        await self.devices.give_back(self.guest.hands, device, taken.kept)

    @property
    def wrote(self) -> list[tuple[str, str]]:
        return self.guest.files.writes


@pytest_asyncio.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with vfio_guest(tmp_path) as guest:
        yield Lab(guest)


def group_of(lab: Lab, *bdfs: str, number: int = 7) -> None:
    """Functions of one card that virtio-pci has."""
    for bdf in bdfs:
        lab.sysfs.card(lab.port, bdf, group=number)


def info(taken: Taken) -> VfioInfo:
    found = taken.sighting.found.info
    assert isinstance(found, VfioInfo)
    return found


def node(lab: Lab, name: str, numbers: str) -> DeviceNode:
    major, minor = numbers.split(":")
    path = str(lab.sysfs.roots.dev / name)
    return DeviceNode(path=path, type=NodeType.CHAR, major=int(major), minor=int(minor))


async def test_a_function_for_user_space(lab: Lab) -> None:
    """The module first, then the kernel's order; the group's node and the container's."""
    group_of(lab, ONE)
    taken = await lab.attach("a")
    assert lab.guest.loaded == ["vfio-pci"]
    assert [name for name, _ in lab.wrote] == [
        f"{ONE} driver_override",
        "drivers/virtio-pci/unbind",
        "drivers_probe",
    ]
    assert taken.sighting.found.nodes == (
        node(lab, "vfio/7", "240:0"),
        node(lab, "vfio/vfio", "10:196"),
    )
    assert info(taken) == VfioInfo(
        mode=VfioMode.VFIO, group=7, former_driver="virtio-pci", group_members=(ONE,)
    )
    await lab.release("a", taken)
    assert lab.sysfs.state(ONE) == {ONE: GUEST}


async def test_again_in_the_same_place(lab: Lab) -> None:
    group_of(lab, ONE)
    first = await lab.attach("a")
    await lab.release("a", first)
    second = await lab.attach("a")
    assert info(second) == info(first)
    assert lab.guest.loaded == ["vfio-pci"]


async def test_what_is_bound_already_stays_bound(lab: Lab) -> None:
    """Idempotent: somebody else bound it, and nothing of ours is to be taken back."""
    lab.sysfs.load_vfio()
    lab.sysfs.write(lab.sysfs.card(lab.port, ONE, group=7, driver="") / "driver_override", USER[1])
    lab.sysfs.look_for_driver(ONE)
    taken = await lab.attach("a")
    assert (lab.wrote, taken.kept, info(taken).former_driver) == ([], {}, "")
    await lab.release("a", taken)
    assert lab.sysfs.state(ONE) == {ONE: USER}


async def test_a_vendors_vfio_driver_is_as_good(lab: Lab) -> None:
    lab.sysfs.load_vfio()
    lab.sysfs.driver("mlx5_vfio_pci")
    group_of(lab, ONE)
    first = await lab.attach("a")
    lab.sysfs.link(lab.sysfs.where(ONE) / "driver", "x/mlx5_vfio_pci")
    writes = len(lab.wrote)
    await lab.attach("a")
    assert len(lab.wrote) == writes
    await lab.release("a", first)
    assert lab.sysfs.state(ONE) == {ONE: GUEST}


async def test_whose_users_use_this_device(lab: Lab) -> None:
    """The container's node and /dev/iommu are everybody's."""
    lab.sysfs.cdev_interface()
    group_of(lab, ONE)
    taken = await lab.attach("a")
    device = lab.guest.known["a"]
    assert isinstance(device, AttachedDevice)
    own = lab.devices.own_nodes(replace(device, nodes=taken.sighting.found.nodes))
    assert [Path(each.path).name for each in own] == ["7", "vfio0"]


async def test_without_an_iommu(lab: Lab) -> None:
    """Refused with what to do, nothing changed (FAILED_PRECONDITION)."""
    lab.sysfs.card(lab.port, ONE, group=None)
    error = await lab.refusal("a", ONE)
    assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, Reason.NO_IOMMU_GROUP)
    assert ("intel_iommu=on" in str(error), ONE in str(error)) == (True, True)
    assert lab.wrote == []


async def test_a_group_without_an_iommu(lab: Lab) -> None:
    """enable_unsafe_noiommu_mode: the group and "noiommu-N" come with the driver."""
    lab.guest.no_iommu = True
    lab.sysfs.card(lab.port, ONE, group=None)
    for _ in range(2):
        taken = await lab.attach("a")
        number = info(taken).group
        assert info(taken).no_iommu
        assert taken.sighting.found.nodes[0].path.endswith(f"/dev/vfio/noiommu-{number}")
        await lab.release("a", taken)
        assert lab.sysfs.state(ONE) == {ONE: GUEST}


async def test_nobody_shares_a_group_without_an_iommu(lab: Lab) -> None:
    lab.guest.no_iommu = True
    for bdf in (ONE, TWO):
        lab.sysfs.card(lab.port, bdf, group=None)
    lab.want("b", TWO)
    error = await lab.refusal("a", ONE, VfioExpectation(same_group_as=("b",)))
    assert (error.reason, lab.wrote) == (Reason.NO_IOMMU_GROUP, [])


async def test_the_cdev_interface(lab: Lab) -> None:
    lab.sysfs.cdev_interface()
    group_of(lab, ONE)
    taken = await lab.attach("a")
    assert taken.sighting.found.nodes == (
        node(lab, "vfio/7", "240:0"),
        node(lab, "vfio/vfio", "10:196"),
        node(lab, "vfio/devices/vfio0", "511:0"),
        node(lab, "iommu", "10:125"),
    )
    assert info(taken).cdev == str(lab.sysfs.roots.dev / "vfio/devices/vfio0")


async def test_a_kernel_with_cdevs_alone(lab: Lab) -> None:
    """CONFIG_VFIO_GROUP=n: neither the class nor the nodes of groups."""
    lab.sysfs.cdev_interface()
    group_of(lab, ONE)
    await lab.attach("a")
    lab.sysfs.remove(lab.sysfs.sys / "class/vfio")
    lab.sysfs.remove(lab.sysfs.sys / "devices/virtual/vfio")
    found = ready(look(lab.devices.probe, lab.guest.board.tree, ADDRESSES[ONE], ANY))
    assert [Path(each.path).name for each in found.nodes] == ["vfio0", "iommu"]


async def test_another_driver_in_the_group_is_refused_by_name(lab: Lab) -> None:
    """Nothing has changed, not even a module is loaded."""
    group_of(lab, ONE)
    lab.sysfs.card(lab.port, TWO, group=7, driver="snd_hda_intel")
    error = await lab.refusal("a", ONE)
    assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, Reason.GROUP_NOT_VIABLE)
    assert f"{TWO} (snd_hda_intel)" in str(error)
    assert (error.fields["address"], error.fields["group"]) == (TWO, "7")
    assert (lab.wrote, lab.guest.loaded) == ([], [])


@pytest.mark.parametrize("driver", ["", "pci-stub"])
async def test_harmless_functions_of_the_group_are_left_alone(lab: Lab, driver: str) -> None:
    group_of(lab, ONE)
    lab.sysfs.card(lab.port, TWO, group=7, driver=driver)
    lab.sysfs.join(lab.port, 7)
    taken = await lab.attach("a")
    assert info(taken).group_members == ("0000:00:02.0", ONE, TWO)
    assert lab.sysfs.bound(TWO) == driver


async def test_the_whole_group(lab: Lab) -> None:
    """All but bridges, and all go back to what they were."""
    group_of(lab, ONE)
    lab.sysfs.card(lab.port, TWO, group=7, driver="snd_hda_intel")
    lab.sysfs.card(lab.port, THREE, group=7, driver="")
    lab.sysfs.join(lab.port, 7)
    taken = await lab.attach("a", ONE, WHOLE)
    assert lab.sysfs.state(ONE, TWO, THREE) == dict.fromkeys((ONE, TWO, THREE), USER)
    assert lab.sysfs.bound("0000:00:02.0") == "pcieport"
    assert info(taken).former_driver == "virtio-pci"
    await lab.release("a", taken)
    assert lab.sysfs.state(ONE, TWO, THREE) == {
        ONE: GUEST,
        TWO: ("snd_hda_intel", "(null)"),
        THREE: ("", "(null)"),
    }


@pytest.mark.parametrize("number", range(6))
async def test_a_write_that_fails_half_way(lab: Lab, number: int) -> None:
    """Three writes for each function; whichever fails, all is as before."""
    group_of(lab, ONE, TWO)
    lab.guest.files.fails_after = number
    error = await lab.refusal("a", ONE, WHOLE)
    assert error.reason is Reason.KERNEL_REFUSED
    assert lab.sysfs.state(ONE, TWO) == {ONE: GUEST, TWO: GUEST}


async def test_an_attached_device_is_not_taken_with_the_group(lab: Lab) -> None:
    """Its driver would be pulled from under it."""
    group_of(lab, ONE, TWO)
    nic = attached("eth", ADDRESSES[TWO], TWO, NicInfo(name="eth0", mac="", mtu=1, ifindex=2))
    wanted = request("eth", ADDRESSES[TWO], NicExpectation())
    lab.guest.known["eth"] = replace(nic, request=wanted)
    error = await lab.refusal("a", ONE, WHOLE)
    assert (error.reason, lab.wrote) == (Reason.GROUP_NOT_VIABLE, [])
    assert "the device eth" in str(error)


def both_name_each_other(lab: Lab) -> None:
    lab.want("a", ONE, VfioExpectation(same_group_as=("b",)))
    lab.want("b", TWO, VfioExpectation(same_group_as=("a",)))


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_two_members_in_one_batch(lab: Lab, order: str) -> None:
    """Each binds its own before it waits for the other: no deadlock, in any order."""
    group_of(lab, ONE, TWO)
    both_name_each_other(lab)
    async with asyncio.TaskGroup() as tasks:
        one, two = (tasks.create_task(lab.take(name)) for name in order)
    assert lab.sysfs.state(ONE, TWO) == {ONE: USER, TWO: USER}
    assert info(one.result()).group == info(two.result()).group == 7
    for name, taken in zip(order, (one.result(), two.result()), strict=True):
        await lab.release(name, taken)
    assert lab.sysfs.state(ONE, TWO) == {ONE: GUEST, TWO: GUEST}


async def test_a_member_that_comes_late(lab: Lab) -> None:
    """The first waits for it, with nothing changed until then."""
    group_of(lab, ONE)
    both_name_each_other(lab)
    async with asyncio.TaskGroup() as tasks:
        for name in "ab":
            tasks.create_task(lab.take(name))
        await idle()
        assert lab.wrote == []
        group_of(lab, TWO)
        lab.guest.files.tell("add", TWO)
    assert lab.sysfs.state(ONE, TWO) == {ONE: USER, TWO: USER}


async def test_a_member_of_another_group(lab: Lab) -> None:
    group_of(lab, ONE)
    group_of(lab, TWO, number=8)
    lab.want("b", TWO)
    error = await lab.refusal("a", ONE, VfioExpectation(same_group_as=("b",)))
    assert (error.reason, lab.wrote) == (Reason.GROUP_MISMATCH, [])
    assert (error.fields["group"], error.fields["other_group"]) == ("7", "8")


async def test_a_member_whose_own_attach_fails(lab: Lab) -> None:
    """Nobody will bind it any more: the other says so and is taken back."""
    lab.guest.board.relooks = RELOOKS
    group_of(lab, ONE, TWO)
    both_name_each_other(lab)
    lab.guest.files.fails[f"{TWO}/driver_override"] = 5
    first, second = await asyncio.gather(lab.take("a"), lab.take("b"), return_exceptions=True)
    assert isinstance(first, AgentError)
    assert isinstance(second, AgentError)
    assert {first.reason, second.reason} == {Reason.GROUP_NOT_VIABLE, Reason.KERNEL_REFUSED}
    assert lab.sysfs.state(ONE, TWO) == {ONE: GUEST, TWO: GUEST}


async def test_a_member_that_the_guest_is_to_have_is_in_the_way(lab: Lab) -> None:
    """Named in the batch, but in guest-kernel mode: the group would never be free."""
    group_of(lab, ONE, TWO)
    lab.want("b", TWO, KERNEL)
    error = await lab.refusal("a", ONE, VfioExpectation(same_group_as=("b",), take_group=True))
    assert (error.reason, lab.wrote) == (Reason.GROUP_NOT_VIABLE, [])


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("leaving", ["ab", "ba"])
async def test_one_takes_the_group_and_one_its_own(lab: Lab, order: str, leaving: str) -> None:
    """Whatever the order: the function goes back with the last who needs it."""
    group_of(lab, ONE, TWO)
    lab.want("a", ONE, WHOLE)
    lab.want("b", TWO)
    async with asyncio.TaskGroup() as tasks:
        running = {name: tasks.create_task(lab.take(name)) for name in order}
    taken = {name: task.result() for name, task in running.items()}
    first, last = list(leaving)
    await lab.release(first, taken[first])
    assert lab.sysfs.state(TWO) == {TWO: USER}
    await lab.release(last, taken[last])
    assert lab.sysfs.state(ONE, TWO) == {ONE: GUEST, TWO: GUEST}


async def test_the_same_after_a_restart_of_the_agent(lab: Lab) -> None:
    """Who needs a function is known again from what was kept."""
    group_of(lab, ONE, TWO)
    whole = await lab.attach("a", ONE, WHOLE)
    own = await lab.attach("b", TWO)
    lab.devices = VfioDevices()
    for name, taken in (("a", whole), ("b", own)):
        device = lab.guest.known[name]
        assert isinstance(device, AttachedDevice)
        lab.devices.restored(device, taken.kept)
    await lab.release("a", whole)
    assert lab.sysfs.state(ONE, TWO) == {ONE: GUEST, TWO: USER}
    await lab.release("b", own)
    assert lab.sysfs.state(TWO) == {TWO: GUEST}


async def test_what_was_taken_with_a_group_is_not_the_guests(lab: Lab) -> None:
    group_of(lab, ONE, TWO)
    await lab.attach("a", ONE, WHOLE)
    error = await lab.refusal("b", TWO, KERNEL)
    assert (error.code, error.reason) == (Code.ALREADY_EXISTS, Reason.ADDRESS_IN_USE)
    assert lab.sysfs.state(TWO) == {TWO: USER}


async def test_taking_once_more_keeps_the_true_former(lab: Lab) -> None:
    """As when a detach was refused: the device stays, and may still go back later."""
    group_of(lab, ONE)
    first = await lab.attach("a")
    again = await lab.attach("a")
    assert (again.kept, info(again)) == (first.kept, info(first))
    await lab.release("a", again)
    assert lab.sysfs.state(ONE) == {ONE: GUEST}


async def test_the_guests_own_driver(lab: Lab) -> None:
    """With all nodes that sysfs has below the function."""
    group_of(lab, ONE)
    lab.sysfs.disk(lab.sysfs.where(ONE) / "virtio1/block", "vdb", dev="254:16")
    lab.sysfs.node("vdb1", "254:17")
    taken = await lab.attach("a", ONE, KERNEL)
    assert [(each.path, each.type) for each in taken.sighting.found.nodes] == [
        (str(lab.sysfs.roots.dev / name), NodeType.BLOCK) for name in ("vdb", "vdb1")
    ]
    assert info(taken) == VfioInfo(mode=VfioMode.GUEST_KERNEL, group=7, group_members=(ONE,))
    assert (taken.kept, lab.wrote) == ({}, [])


async def test_the_guests_own_driver_without_an_iommu(lab: Lab) -> None:
    lab.sysfs.card(lab.port, ONE, group=None)
    assert info(await lab.attach("a", ONE, KERNEL)).group == -1


async def test_an_override_that_is_found_is_cleared(lab: Lab) -> None:
    lab.sysfs.load_vfio()
    group_of(lab, ONE)
    lab.sysfs.write(lab.sysfs.where(ONE) / "driver_override", "vfio-pci")
    lab.sysfs.unbind("virtio-pci", ONE)
    lab.sysfs.look_for_driver(ONE)
    taken = await lab.attach("a", ONE, KERNEL)
    assert lab.sysfs.state(ONE) == {ONE: GUEST}
    assert info(taken).former_driver == "vfio-pci"
    await lab.release("a", taken)
    assert lab.sysfs.state(ONE) == {ONE: USER}


async def test_the_guests_driver_may_come_later(lab: Lab) -> None:
    lab.sysfs.card(lab.port, ONE, group=7, driver="")
    lab.want("a", ONE, KERNEL)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(lab.take("a"))
        await idle()
        assert not task.done()
        lab.sysfs.natural[ONE] = "virtio-pci"
        lab.sysfs.look_for_driver(ONE)
        lab.guest.files.tell("bind", ONE)
    assert info(task.result()).mode is VfioMode.GUEST_KERNEL


async def test_what_is_behind_a_function_is_none(lab: Lab) -> None:
    """An address of a node leads to a disk, not to a function."""
    group_of(lab, ONE)
    tree = lab.guest.board.tree
    place = ready_place(lab, "02/00")
    behind = replace(place, directory=place.directory / "virtio1")
    assert "no PCI function" in failed(lab.devices.probe(tree, behind, ANY)).why


def ready_place(lab: Lab, address: str) -> Place:
    found = find(lab.guest.board.tree, parse_address(address))
    assert isinstance(found, Ready)
    return found.result


Change = Callable[[VfioSysfs], object]


@pytest.mark.parametrize(
    ("change", "evidence"),
    [
        (lambda s: s.nodes.pop(s.roots.dev / "vfio/7"), "there is no node"),
        (lambda s: s.nodes.pop(s.roots.dev / "vfio/vfio"), "there is no node"),
        (lambda s: s.node("vfio/7", "240:9", "c"), "is c 240:9"),
        (lambda s: s.node("vfio/7", "240:0", "b"), "is b 240:0"),
        (lambda s: s.remove(s.sys / "devices/virtual/vfio/7"), "7 has no device number"),
        (lambda s: (s.where(ONE) / "iommu_group").unlink(), "no IOMMU group"),
        (lambda s: (s.where(ONE) / "driver").unlink(), "not with vfio-pci"),
        (lambda s: s.link(s.where(TWO) / "driver", "x/nvme"), f"still has {TWO} (nvme)"),
    ],
)
async def test_what_is_not_right_is_not_ready(lab: Lab, change: Change, evidence: str) -> None:
    """The probe alone, with each of its conditions broken."""
    group_of(lab, ONE, TWO)
    await lab.attach("a", ONE, WHOLE)
    tree, sysfs = lab.guest.board.tree, lab.sysfs
    ready(look(lab.devices.probe, tree, ADDRESSES[ONE], ANY))
    change(sysfs)
    assert evidence in waiting(look(lab.devices.probe, tree, ADDRESSES[ONE], ANY)).evidence


async def test_a_probe_that_still_runs(lab: Lab) -> None:
    """The driver's link is there before its probe is over: ask, and wait for the answer."""
    group_of(lab, ONE)
    await lab.attach("a")
    place = ready_place(lab, ADDRESSES[ONE])
    verdict = waiting(lab.devices.probe(lab.guest.board.tree, place, ANY))
    assert [read.path.name for read in verdict.needs] == ["control"]


async def test_one_group_is_changed_by_one_at_a_time(lab: Lab) -> None:
    """While one is in the middle, the other does not see half of it as what was before."""
    group_of(lab, ONE, TWO)
    lab.want("a", ONE, WHOLE)
    lab.want("b", TWO)
    gate = lab.guest.files.gates.setdefault("virtio-pci/unbind", asyncio.Event())
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(lab.take(name)) for name in "ab"]
        await idle()
        gate.set()
    for name, task in zip("ab", running, strict=True):
        await lab.release(name, task.result())
    assert lab.sysfs.state(ONE, TWO) == {ONE: GUEST, TWO: GUEST}


async def test_giving_back_goes_on_after_a_failure(lab: Lab) -> None:
    group_of(lab, ONE, TWO)
    taken = await lab.attach("a", ONE, WHOLE)
    lab.guest.files.fails[f"{TWO}/driver_override"] = 5
    device = lab.guest.known["a"]
    assert isinstance(device, AttachedDevice)
    with pytest.raises(AgentError, match=TWO):
        await lab.devices.give_back(lab.guest.hands, device, taken.kept)
    assert lab.sysfs.state(ONE, TWO) == {ONE: GUEST, TWO: USER}
    lab.guest.files.fails.clear()
    await lab.devices.give_back(lab.guest.hands, device, taken.kept)
    assert lab.sysfs.state(ONE, TWO) == {ONE: GUEST, TWO: GUEST}


async def idle() -> None:
    """Let every task run as far as it can."""
    for _ in range(50):
        await asyncio.sleep(0)
