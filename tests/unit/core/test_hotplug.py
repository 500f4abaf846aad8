"""The hotplug board: every way in which a device may come, or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.hotplug import Wish
from agent.core.tree import SysfsTree
from agent.core.verdict import Failed, NotYet, Ready, SlowRead, Verdict
from tests.fakes.hotplug import Bench, bench, turns
from tests.fakes.uevents import message

pytestmark = [pytest.mark.unit, pytest.mark.devices]

DEVICE = "/devices/pci0000:00/0000:00:02.0/0000:01:00.0"


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made
        assert asyncio.all_tasks() == {asyncio.current_task()}


def soon() -> Deadline:
    """Comes at once, for waits that must expire."""
    return Deadline.after(0.0)


def ample() -> Deadline:
    return Deadline.after(60.0)


class Probe:
    """Ready once `there`; counts the looks."""

    def __init__(self, near: tuple[str, ...] = (DEVICE,)) -> None:
        self.there = False
        self.looks = 0
        self.near = near

    def __call__(self, tree: SysfsTree) -> Verdict[str]:
        self.looks += 1
        if self.there:
            return Ready("found")
        return NotYet(evidence=f"look {self.looks}", near=self.near)

    @property
    def wish(self) -> Wish[str]:
        return Wish(what="device d1", probe=self)


async def waiting(guest: Bench, probe: Probe) -> asyncio.Future[str]:
    """A wait that has looked once."""
    task = asyncio.ensure_future(guest.board.wait(probe.wish, ample()))
    await turns()
    assert probe.looks == 1
    return task


async def test_what_is_there_already_needs_no_event(guest: Bench) -> None:
    probe = Probe()
    probe.there = True
    assert await guest.board.wait(probe.wish, soon()) == "found"
    assert probe.looks == 1


async def test_an_event_that_came_before_the_wait_does_not_matter(guest: Bench) -> None:
    """The device came and its event was read: the state answers, not the event."""
    guest.kernel.send("add", DEVICE, "pci")
    await turns()
    probe = Probe()
    probe.there = True
    assert await guest.board.wait(probe.wish, ample()) == "found"


async def test_an_event_between_binding_and_looking_is_kept_by_the_socket(guest: Bench) -> None:
    """The device comes after the look, its event lies in the socket since before it."""
    probe = Probe()
    guest.kernel.send("add", DEVICE, "pci")
    task = asyncio.ensure_future(guest.board.wait(probe.wish, ample()))
    await turns(1)
    probe.there = True
    assert await task == "found"


async def test_an_event_wakes_the_wait(guest: Bench) -> None:
    probe = Probe()
    task = await waiting(guest, probe)
    probe.there = True
    guest.kernel.send("add", DEVICE, "pci")
    assert await task == "found"
    assert guest.board.counters.late_finds == 0


@pytest.mark.parametrize(
    "devpath",
    [
        "/devices/pci0000:00/0000:00:02.0/0000:01:00.0/virtio3/block/vdb",
        "/devices/pci0000:00/0000:00:02.0/0000:01:00.0",
        "/devices/pci0000:00/0000:00:02.0",
    ],
)
async def test_events_below_at_and_above_the_device_wake(guest: Bench, devpath: str) -> None:
    probe = Probe()
    task = await waiting(guest, probe)
    guest.kernel.send("change", devpath, "x")
    await turns()
    assert probe.looks == 2
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    "devpath",
    [
        "/devices/pci0000:00/0000:00:12.0/0000:01:00.0",
        "/devices/pci0000:00/0000:00:02.0/0000:01:00.00",
        "/devices/pci0000:00/0000:00:02.0/0000:01:01.0",
        "/devices/pci0000:00/0000:00:02.0/pci_bus/0000:01",
        "/devices/virtual/bdi/254:16",
        "/devices/pci0000:00/0000:00:02.01",
    ],
)
async def test_neighbours_whose_text_contains_it_do_not_wake(guest: Bench, devpath: str) -> None:
    """A match is on whole path components (0:1 is not 0:10, slot 02 is not slot 12)."""
    probe = Probe()
    task = await waiting(guest, probe)
    guest.kernel.send("add", devpath, "block", DEVNAME="vdb")
    await turns()
    assert probe.looks == 1
    task.cancel()
    await asyncio.wait([task])


async def test_a_wait_without_a_place_to_look_wakes_by_any_event(guest: Bench) -> None:
    probe = Probe(near=())
    task = await waiting(guest, probe)
    probe.there = True
    guest.kernel.send("add", "/devices/pci0000:20", "pci")
    assert await task == "found"


@pytest.mark.parametrize(
    ("devpath", "properties", "node"),
    [
        ("/devices/pci0000:00/0000:00:05.0/net/eth0", {"INTERFACE": "eth0"}, None),
        ("/devices/virtual/vfio/12", {"DEVNAME": "vfio/12"}, "vfio/12"),
        ("/devices/virtual/misc/hw_random", {"DEVNAME": "hw_random"}, "hw_random"),
    ],
)
async def test_any_subsystem_can_be_awaited_by_its_path(
    guest: Bench, devpath: str, properties: dict[str, str], node: str | None
) -> None:
    """Events without a DEVNAME, or with a slash in it, count like all others."""
    probe = Probe(near=(devpath,))
    task = await waiting(guest, probe)
    probe.there = True
    guest.kernel.send("add", devpath, "any", **properties)
    assert await task == "found"
    with guest.board.watch((devpath,)) as watch:
        guest.kernel.send("add", devpath, "any", **properties)
        assert await watch.news(ample())
        assert (f"({node})" in watch.seen[0]) == (node is not None)


async def test_lost_events_make_every_wait_look(guest: Bench) -> None:
    """The awaited event is among the lost ones: ENOBUFS is as good as the event."""
    probes = [Probe(), Probe(near=("/devices/elsewhere",))]
    tasks = [await waiting(guest, probe) for probe in probes]
    for probe in probes:
        probe.there = True
    guest.kernel.overflow()
    assert await asyncio.gather(*tasks) == ["found", "found"]
    assert guest.board.counters.overflows == 1
    # Not by the look that every wait takes at its deadline.
    assert guest.board.counters.late_finds == 0


async def test_a_truncated_event_makes_every_wait_look(guest: Bench) -> None:
    probe = Probe()
    task = await waiting(guest, probe)
    probe.there = True
    guest.kernel.send_bytes(message("add", DEVICE, "pci")[:10], truncated=True)
    assert await task == "found"
    assert guest.board.counters.truncated == 1


async def test_a_forged_event_is_refused_and_counted(guest: Bench) -> None:
    """Any root process of the network namespace can multicast; only port 0 is the kernel."""
    probe = Probe()
    task = await waiting(guest, probe)
    guest.kernel.send_bytes(message("add", DEVICE, "pci"), port=4711)
    await turns()
    assert probe.looks == 1
    assert guest.board.counters.foreign == 1
    assert guest.board.counters.events == 0
    task.cancel()
    await asyncio.wait([task])


async def test_the_deadline_error_has_evidence_and_events(guest: Bench) -> None:
    probe = Probe()
    task = asyncio.ensure_future(guest.board.wait(probe.wish, Deadline.after(0.05)))
    await turns()
    guest.kernel.send("add", DEVICE, "pci")
    with pytest.raises(AgentError) as caught:
        await task
    error = caught.value
    assert (error.code, error.reason) == (Code.DEADLINE_EXCEEDED, Reason.DEVICE_NOT_READY)
    assert f"look {probe.looks}" in error.message
    assert f"add pci {DEVICE}" in error.message
    assert error.fields["events_seen"] == "1"


async def test_events_in_an_error_are_few_however_many_came(guest: Bench) -> None:
    probe = Probe()
    with guest.board.watch((DEVICE,)) as watch:
        for number in range(300):
            guest.kernel.send("change", f"{DEVICE}/x{number}", "x")
            await turns(3)
    assert watch.total == 300
    assert len(watch.seen) == 16
    assert watch.seen[-1].endswith("x299")
    assert probe.looks == 0


async def test_a_wait_looks_once_more_at_its_deadline(guest: Bench) -> None:
    """What came without any event is found, and counted as a wake-up that was missed."""
    probe = Probe()
    task = asyncio.ensure_future(guest.board.wait(probe.wish, Deadline.after(0.05)))
    await turns()
    probe.there = True
    assert await task == "found"
    assert guest.board.counters.late_finds == 1


async def test_a_removal_is_announced_before_it_is_true(tmp_path: Path) -> None:
    """device_del sends its event before the directory goes, and no other follows."""
    async with bench(tmp_path, relooks=(0.001, 0.001)) as guest:
        probe = Probe()

        def look_late(tree: SysfsTree) -> Verdict[str]:
            probe.there = probe.looks >= 4
            return probe(tree)

        task = asyncio.ensure_future(guest.board.wait(Wish(what="d1", probe=look_late), ample()))
        while probe.looks < 3:
            await turns(1)
        guest.kernel.send("remove", DEVICE, "pci")
        assert await task == "found"


async def test_failed_ends_the_wait_at_once(guest: Bench) -> None:
    wish: Wish[str] = Wish(what="device d1", probe=lambda _: Failed("the driver refused it"))
    with pytest.raises(AgentError, match="device d1: the driver refused it") as caught:
        await guest.board.wait(wish, ample())
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert caught.value.reason is Reason.DEVICE_FAILED


async def test_the_last_verdict_chooses_the_reason(guest: Bench) -> None:
    other = NotYet(evidence="serial B", reason=Reason.UNEXPECTED_DEVICE)
    wish: Wish[str] = Wish(what="device d1", probe=lambda _: other)
    with pytest.raises(AgentError, match="serial B") as caught:
        await guest.board.wait(wish, soon())
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert caught.value.reason is Reason.UNEXPECTED_DEVICE


async def test_a_cancelled_wait_leaves_no_watch(guest: Bench) -> None:
    probe = Probe()
    task = await waiting(guest, probe)
    task.cancel()
    await asyncio.wait([task])
    guest.kernel.send("add", DEVICE, "pci")
    await turns()
    assert probe.looks == 1
    assert guest.board._watches == set()


async def test_a_hundred_waits_each_wake_by_their_own_device(guest: Bench) -> None:
    probes = [Probe(near=(f"{DEVICE}{number:03}",)) for number in range(100)]
    tasks = [await waiting(guest, probe) for probe in probes]
    for number in reversed(range(100)):
        probes[number].there = True
        guest.kernel.send("add", f"{DEVICE}{number:03}", "pci")
        assert await tasks[number] == "found"
    assert {probe.looks for probe in probes} == {2}


def slow(read: SlowRead, tree: SysfsTree) -> Verdict[str]:
    text = tree.slow_text(read)
    if text is None:
        return NotYet(evidence="serial not read", near=(DEVICE,), needs=(read,))
    return Ready(text)


async def test_slow_files_are_read_by_the_board_once(guest: Bench) -> None:
    path = guest.sysfs.sys / "serial"
    guest.sysfs.write(path, "ABC")
    read = SlowRead(path=path, instance="1")
    wish: Wish[str] = Wish(what="d1", probe=partial(slow, read))
    assert await guest.board.wait(wish, ample()) == "ABC"
    assert guest.files.reads == [path]


async def test_a_slow_file_that_has_no_answer_reads_as_empty(guest: Bench) -> None:
    read = SlowRead(path=guest.sysfs.sys / "nowhere", instance="1")
    wish: Wish[str] = Wish(what="d1", probe=partial(slow, read))
    assert await guest.board.wait(wish, ample()) == ""


async def test_a_slow_file_that_hangs_costs_only_its_own_wait(guest: Bench) -> None:
    path = guest.sysfs.sys / "serial"
    guest.files.hang.add(path)
    wish: Wish[str] = Wish(what="d1", probe=partial(slow, SlowRead(path=path, instance="1")))
    stuck = asyncio.ensure_future(guest.board.wait(wish, Deadline.after(0.05)))
    probe = Probe()
    probe.there = True
    assert await guest.board.wait(probe.wish, ample()) == "found"
    with pytest.raises(AgentError, match="serial not read"):
        await stuck


def rescanning(probe: Probe) -> Wish[str]:
    return Wish(what="device d1", probe=probe, rescan=True)


async def test_a_platform_without_notice_is_asked_to_rescan_once(tmp_path: Path) -> None:
    """Neither ACPI nor pciehp: nobody tells the kernel of a device that was plugged in."""
    async with bench(tmp_path, acpi=False) as guest:
        probe = Probe()
        task = asyncio.ensure_future(guest.board.wait(rescanning(probe), ample()))
        await turns()
        guest.kernel.send("change", DEVICE, "pci")
        await turns()
        assert guest.files.writes == [(guest.sysfs.sys / "bus/pci/rescan", "1\n")]
        probe.there = True
        guest.kernel.send("add", DEVICE, "pci")
        assert await task == "found"
        assert len(guest.files.writes) == 1


async def test_a_device_that_is_there_needs_no_rescan(tmp_path: Path) -> None:
    async with bench(tmp_path, acpi=False) as guest:
        probe = Probe()
        probe.there = True
        assert await guest.board.wait(rescanning(probe), ample()) == "found"
        assert guest.files.writes == []


async def test_a_rescan_that_finds_the_device_needs_no_event(tmp_path: Path) -> None:
    async with bench(tmp_path, acpi=False) as guest:
        probe = Probe()

        def look(tree: SysfsTree) -> Verdict[str]:
            probe.there = bool(guest.files.writes)
            return probe(tree)

        wish = Wish(what="device d1", probe=look, rescan=True)
        assert await guest.board.wait(wish, ample()) == "found"


async def test_a_guest_with_acpi_is_never_rescanned(guest: Bench) -> None:
    with pytest.raises(AgentError):
        await guest.board.wait(rescanning(Probe()), soon())
    assert guest.files.writes == []
    assert guest.board.gives_notice


async def test_a_guest_with_pciehp_is_never_rescanned(tmp_path: Path) -> None:
    async with bench(tmp_path, acpi=False) as guest:
        assert not guest.board.gives_notice
        guest.sysfs.link(
            guest.sysfs.sys / "bus/pci_express/drivers/pciehp/0000:00:02.0:pcie004", "x"
        )
        assert guest.board.gives_notice


async def test_a_refused_rescan_is_told_and_the_wait_goes_on(tmp_path: Path) -> None:
    async with bench(tmp_path, acpi=False) as guest:
        guest.files.refusal = PermissionError(13, "Permission denied", "rescan")
        probe = Probe()
        task = asyncio.ensure_future(guest.board.wait(rescanning(probe), ample()))
        await turns()
        probe.there = True
        guest.kernel.send("add", DEVICE, "pci")
        assert await task == "found"
        with pytest.raises(AgentError, match=r"a bus rescan was refused: .*Permission denied"):
            await guest.board.wait(rescanning(Probe()), Deadline.after(0.01))
