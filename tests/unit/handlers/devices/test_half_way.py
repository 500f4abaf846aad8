"""An agent that dies in the middle: the next one takes back what it changed, and no call of
the host's that is repeated believes that it was done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.holding import Holder, HolderKind
from agent.core.kinds import CommonExpectation, CommonInfo
from agent.core.model import AttachedDevice, DeviceNode, DeviceRequest, DeviceState
from agent.core.pci import parse_address
from agent.core.places import Place
from agent.core.tree import SysfsTree
from agent.core.verdict import Ready, Verdict
from agent.handlers.devices.base import DeviceClass, Found, Taken
from agent.handlers.devices.job import Hands, Job
from agent.handlers.devices.manager import DeviceManager
from tests.fakes.devices import DeviceBench, device_bench
from tests.fakes.hotplug import turns

pytestmark = [pytest.mark.unit, pytest.mark.devices]

BDF = "0000:01:00.0"
WANTED = DeviceRequest(id="d", address=parse_address("02/00"), kind=CommonExpectation())
SOMEBODY = Holder(kind=HolderKind.DESCRIPTOR, path="/dev/vdb", pid=42, command="dd")


class Changing(DeviceClass[CommonExpectation]):
    """A class that changes one thing; while `stuck` is set it does not get beyond that."""

    name = "common"
    expectation = CommonExpectation

    def __init__(self) -> None:
        self.changed = False
        self.stuck = False
        self.problem: AgentError | None = None

    def probe(self, tree: SysfsTree, place: Place, expected: CommonExpectation) -> Verdict[Found]:
        return Ready(Found(nodes=(), info=CommonInfo()))

    async def take(self, job: Job[CommonExpectation]) -> Taken:
        sighting = await job.until(self.probe)
        job.claim(sighting.place.directory)
        job.note({"former": "a"})
        self.changed = True
        job.undo.push("change it back", self._change_back)
        if self.stuck:
            await asyncio.Event().wait()
        return Taken(sighting=sighting, kept={"former": "a"})

    async def give_back(
        self, hands: Hands, device: AttachedDevice, kept: Mapping[str, str]
    ) -> None:
        if self.problem is not None:
            raise self.problem
        if kept == {"former": "a"}:
            self._change_back()

    def _change_back(self) -> None:
        self.changed = False


class Hanging:
    """A search for users that does not end."""

    async def of(
        self, device: AttachedDevice, nodes: Iterable[DeviceNode], deadline: Deadline
    ) -> tuple[Holder, ...]:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture
def changing() -> Changing:
    return Changing()


@pytest.fixture
async def lab(tmp_path: Path, changing: Changing) -> AsyncIterator[DeviceBench]:
    async with device_bench(tmp_path, classes=(changing,)) as made:
        made.sysfs.function(made.sysfs.port_with_slot(), BDF, driver="virtio-pci")
        yield made


async def died(task: asyncio.Task[object]) -> None:
    """End what the dead agent was at; only after the new one has looked."""
    task.cancel()
    await asyncio.wait([task])


async def new_agent(lab: DeviceBench) -> DeviceManager:
    new = lab.new_manager()
    await new.restore()
    return new


async def test_what_an_attach_had_changed_is_changed_back(
    lab: DeviceBench, changing: Changing
) -> None:
    changing.stuck = True
    attaching = asyncio.ensure_future(lab.devices.attach(WANTED))
    await turns()
    states = [changing.changed]
    new = await new_agent(lab)
    states.append(changing.changed)
    assert new.list() == ()
    await died(attaching)
    changing.stuck = False
    await new.attach(WANTED)
    await new.release_device("d")
    states.append(changing.changed)
    assert states == [True, False, False]
    assert lab.state.load_all("device-changes") == {}


async def test_what_was_attached_stays_as_it_is(lab: DeviceBench, changing: Changing) -> None:
    """The entry has what the note had, which may still be there."""
    await lab.devices.attach(WANTED)
    lab.devices._changes.note(WANTED, "common", {"former": "a"})
    new = await new_agent(lab)
    assert (changing.changed, new.get("d").state) == (True, DeviceState.ATTACHED)
    assert lab.state.load_all("device-changes") == {}


async def test_notes_of_another_shape_are_dropped(lab: DeviceBench) -> None:
    lab.state.save("device-changes", "d", {"from": "the future"})
    await new_agent(lab)
    assert lab.state.load_all("device-changes") == {}


async def test_a_prepare_cut_short_is_made_anew(lab: DeviceBench, changing: Changing) -> None:
    """It had not found out who uses the device: "done" would have the host unplug a disk
    that is mounted."""
    await lab.devices.attach(WANTED)
    lab.devices._holders = Hanging()
    preparing = asyncio.ensure_future(lab.devices.prepare_detach("d"))
    await turns()
    lab.users.found = (SOMEBODY,)
    new = await new_agent(lab)
    assert (changing.changed, new.get("d").state) == (True, DeviceState.ATTACHED)
    with pytest.raises(AgentError) as caught:
        await new.prepare_detach("d")
    assert caught.value.reason is Reason.STILL_IN_USE
    lab.users.found = ()
    await new.prepare_detach("d")
    assert not changing.changed
    await died(preparing)


async def test_one_that_could_not_be_brought_back_is_let_go_of_wholly(
    lab: DeviceBench, changing: Changing
) -> None:
    """PREPARE failed, and so did the way back: the next PREPARE may not say that it is done."""
    await lab.devices.attach(WANTED)
    changing.problem = AgentError("no", code=Code.INTERNAL, reason=Reason.KERNEL_REFUSED)
    lab.devices._table.mark(lab.devices._table.entry("d"), DeviceState.LEAVING)
    with pytest.raises(AgentError):
        await lab.devices.prepare_detach("d")
    changing.problem = None
    lab.users.found = (SOMEBODY,)
    with pytest.raises(AgentError) as caught:
        await lab.devices.prepare_detach("d")
    assert caught.value.reason is Reason.STILL_IN_USE


@pytest.mark.parametrize("way", ["detach", "release", "attach"])
async def test_what_outlives_a_vanished_device_is_changed_back(
    lab: DeviceBench, changing: Changing, way: str
) -> None:
    """Other functions of its group, a link in /dev, a choice of source."""
    device = await lab.devices.attach(WANTED)
    function = Path(device.sysfs_path)
    lab.guest.announce("remove", function, "pci")
    lab.sysfs.remove(function)
    await turns()
    assert lab.devices.get("d").state is DeviceState.VANISHED
    assert changing.changed
    match way:
        case "detach":
            await lab.devices.detach("d", 1.0)
        case "release":
            await lab.devices.release_device("d")
        case _:
            with pytest.raises(AgentError):
                await lab.devices.attach(replace(WANTED, timeout=0.01))
    assert not changing.changed


async def test_what_can_not_be_changed_back_keeps_no_id(
    lab: DeviceBench, changing: Changing
) -> None:
    """The device is gone: nothing that the host asks for later could help."""
    device = await lab.devices.attach(WANTED)
    lab.sysfs.remove(Path(device.sysfs_path))
    changing.problem = AgentError("no", code=Code.INTERNAL, reason=Reason.KERNEL_REFUSED)
    await lab.devices.detach("d", 1.0)
    assert lab.devices.list() == ()
