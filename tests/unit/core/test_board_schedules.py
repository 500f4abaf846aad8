"""The hotplug board under random schedules: devices that were there before, come during a
wait, part by part, after it or never, that are taken away and replaced, several at once,
while the kernel loses events. The answer never depends on the order: it is the device that
is there now. That these tests would find a fault is shown by making one.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from agent.core import hotplug
from agent.core.deadlines import Deadline
from agent.core.hotplug import HotplugBoard, Wish
from agent.core.tree import SysfsTree
from agent.core.verdict import Ready, Verdict
from tests.fakes.hotplug import FakeSlowFiles, bench, turns
from tests.fakes.netlink_queue import NetlinkQueue
from tests.fakes.schedules import Place, Plain, ScsiDisk, VirtioDisk
from tests.fakes.sysfs import FakeSysfs
from tests.unit.core import test_hotplug

pytestmark = [pytest.mark.unit, pytest.mark.devices]

SCHEDULES = 200
UNTIL_FOUND = 2000
"""Schedules in which a fault must show itself; a few dozen do."""
PLACES = range(6)
FAST = Path("/dev/shm")
"""Thousands of small files are made and removed."""
ENOUGH = 24
"""Turns of the loop after which nothing is left to do."""

OVERDUE = "what they wait for is there, and they wait on"
DISTURBED = "looked for another's device"


@dataclass(slots=True)
class Waiting:
    """A request that waits at a place, for a certain device or for any."""

    place: Place
    expected: str | None
    looks: int = 0
    task: asyncio.Future[str] | None = None

    @property
    def is_due(self) -> bool:
        return self.place.present is not None and self.expected in (None, self.place.present)

    def wish(self) -> Wish[str]:
        plain = self.place.wish(self.expected)

        def probe(tree: SysfsTree) -> Verdict[str]:
            self.looks += 1
            verdict = plain.probe(tree)
            if isinstance(verdict, Ready):
                # The wait ends with this, and nothing comes or goes in between.
                assert self.is_due
                assert verdict.result == self.place.present
            return verdict

        return replace(plain, probe=probe)


class Guest:
    """A board without relooks, so that only events and what is told of lost ones wake it;
    six places, some of whose names are parts of others'."""

    def __init__(self, base: Path, room: int) -> None:
        sysfs = FakeSysfs(base)
        self.kernel = NetlinkQueue(room)
        self.board = HotplugBoard(
            tree=sysfs.tree, source=self.kernel, files=FakeSlowFiles(), relooks=()
        )
        sysfs.root_bus()
        host = (
            sysfs.virtio(
                sysfs.function(sysfs.port_with_slot("1f", "09"), "0000:09:00.0"), "virtio2"
            )
            / "host0"
        )
        sysfs.link(sysfs.sys / "class/scsi_host/host0", str(host / "scsi_host/host0"))
        (host / "scsi_host/host0").mkdir(parents=True)
        virtual = sysfs.sys / "devices/virtual/misc"
        self.places: list[Place] = [
            VirtioDisk(sysfs, self.kernel, slot="02.0", bus="01"),
            VirtioDisk(sysfs, self.kernel, slot="02.1", bus="02"),
            ScsiDisk(sysfs, self.kernel, host=host, lun=1),
            ScsiDisk(sysfs, self.kernel, host=host, lun=10),
            Plain(sysfs, self.kernel, virtual / "thing1"),
            Plain(sysfs, self.kernel, virtual / "thing10"),
        ]
        self.waits: list[Waiting] = []

    def ask(self, place: Place, expected: str | None) -> Waiting:
        wait = Waiting(place, expected)
        wait.task = asyncio.ensure_future(self.board.wait(wait.wish(), Deadline.after(600.0)))
        self.waits.append(wait)
        return wait

    async def run(self, count: int) -> None:
        await turns(count)
        for wait in [wait for wait in self.waits if wait.task is not None and wait.task.done()]:
            self.waits.remove(wait)
            assert wait.task is not None
            wait.task.result()

    async def next_look(self) -> None:
        before = [wait.looks for wait in self.waits]
        for _ in range(ENOUGH):
            if before != [wait.looks for wait in self.waits]:
                return
            await turns(1)

    async def settle(self) -> None:
        """Everything was read, and every wait that can be answered is."""
        await self.run(ENOUGH)
        overdue = [wait for wait in self.waits if wait.is_due]
        assert not overdue, f"{OVERDUE}: {overdue}"

    async def close(self) -> None:
        tasks = [wait.task for wait in self.waits if wait.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.board.close()


places = st.sampled_from(PLACES)


class Schedules(RuleBasedStateMachine):
    """Steps in any order; the loop runs only where a step says so."""

    @initialize(room=st.sampled_from([16, 32, 4, 1]))
    def boot(self, room: int) -> None:
        self.directory = tempfile.TemporaryDirectory(dir=FAST if FAST.is_dir() else None)
        self.loop = asyncio.new_event_loop()
        self.guest = Guest(Path(self.directory.name), room)

        async def start() -> None:
            self.guest.board.start()

        self.loop.run_until_complete(start())

    @rule(at=places, cut=st.booleans())
    def a_part_comes(self, at: int, *, cut: bool) -> None:
        self.guest.places[at].advance(cut=cut)

    @rule(at=places)
    def a_device_comes(self, at: int) -> None:
        self.guest.places[at].arrive()

    @rule(at=places)
    def a_device_goes(self, at: int) -> None:
        self.guest.places[at].remove()

    @rule(at=places)
    def a_device_is_replaced(self, at: int) -> None:
        self.guest.places[at].remove()
        self.guest.places[at].arrive()

    @rule(at=places, device=st.sampled_from(["any", "this", "next"]))
    def somebody_asks(self, at: int, device: str) -> None:
        self._ask(at, device)

    @rule(at=places, times=st.integers(1, 20))
    def a_device_is_noisy(self, at: int, times: int) -> None:
        for _ in range(times):
            self.guest.places[at].stir()

    @rule(count=st.integers(1, 6))
    def the_loop_runs_a_little(self, count: int) -> None:
        self.loop.run_until_complete(self.guest.run(count))

    @rule()
    def the_loop_runs(self) -> None:
        self.loop.run_until_complete(self.guest.settle())

    @rule(at=places)
    def only_whom_it_concerns_looks(self, at: int) -> None:
        for other in PLACES:
            self._ask(other, "next")
        self.the_loop_runs()
        place = self.guest.places[at]
        others = [wait for wait in self.guest.waits if wait.place.family != place.family]
        before = [wait.looks for wait in others]
        place.stir()
        self.the_loop_runs()
        assert [wait.looks for wait in others] == before, DISTURBED

    @rule(at=places)
    def a_device_comes_in_a_storm(self, at: int) -> None:
        """When everybody has just looked because something was lost."""
        self.a_device_goes(at)
        self._ask(at, "this")
        self.the_loop_runs()
        self.a_device_is_noisy((at + 1) % len(PLACES), self.guest.kernel.room + 1)
        self.loop.run_until_complete(self.guest.next_look())
        self.a_device_comes(at)
        self.the_loop_runs()

    def _ask(self, at: int, device: str) -> None:
        place = self.guest.places[at]
        name, _, number = place.coming.rpartition("-")
        following = f"{name}-{int(number) + 1}"
        expected = {"any": None, "this": place.coming, "next": following}[device]

        async def ask() -> None:
            self.guest.ask(place, expected)

        self.loop.run_until_complete(ask())

    def teardown(self) -> None:
        if not hasattr(self, "guest"):
            return
        try:
            self.loop.run_until_complete(self.guest.settle())
        finally:
            self.loop.run_until_complete(self.guest.close())
            self.loop.close()
            self.directory.cleanup()


def run_schedules(number: int, phases: Collection[Phase] = tuple(Phase)) -> None:
    """Raises what goes wrong in one of them."""
    wanted = settings(
        max_examples=number,
        stateful_step_count=20,
        phases=phases,
        database=None,
        report_multiple_bugs=False,
        deadline=None,
    )
    run_state_machine_as_test(Schedules, settings=wanted)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few events are as many as a storm: the loop runs between the batches."""
    monkeypatch.setattr(hotplug, "_BATCH", 3)


def test_no_schedule_gives_a_wrong_answer(small_batches: None) -> None:
    run_schedules(SCHEDULES)


@asynccontextmanager
async def booted(base: Path, room: int) -> AsyncIterator[Guest]:
    guest = Guest(base, room)
    guest.board.start()
    try:
        yield guest
    finally:
        await guest.close()


async def test_one_lost_event_is_made_up_for(tmp_path: Path) -> None:
    async with booted(tmp_path, room=1) as guest:
        disk, other = guest.places[:2]
        guest.ask(disk, None)
        await guest.settle()
        other.stir()
        disk.arrive()
        assert guest.kernel.lost == 4
        await guest.settle()
        assert guest.waits == []
        assert guest.board.counters.overflows == 1


async def test_what_is_lost_after_the_loss_was_told_is_made_up_for(
    tmp_path: Path, small_batches: None
) -> None:
    """A congested socket drops in silence until it has been read empty: everybody looked when
    ENOBUFS came, and the device came while the rest of the queue was being read."""
    async with booted(tmp_path, room=20) as guest:
        disk, other = guest.places[:2]
        wait = guest.ask(disk, None)
        await guest.settle()
        for _ in range(21):
            other.stir()
        while wait.looks < 2:
            await guest.run(1)
        assert guest.board.counters.events < guest.kernel.room
        disk.arrive()
        await guest.settle()
        assert guest.waits == []


def text_matches(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    a, b = "/".join(one), "/".join(other)
    return a in b or b in a


def nothing(board: HotplugBoard) -> None:
    """In the place of a method that has all waits look."""


class TestFaultsAreFound:
    """Each fault makes the tests fail that are there to find it."""

    @pytest.fixture
    def match_by_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hotplug, "_touches", text_matches)

    @pytest.fixture
    def no_rescan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(HotplugBoard, "_all_look", nothing)

    @pytest.fixture
    def no_second_rescan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(HotplugBoard, "_drained", nothing)

    def test_schedules_find_a_match_by_text(self, small_batches: None, match_by_text: None) -> None:
        with pytest.raises(AssertionError, match=DISTURBED):
            run_schedules(UNTIL_FOUND, (Phase.generate,))

    async def test_neighbours_find_a_match_by_text(
        self, tmp_path: Path, match_by_text: None
    ) -> None:
        neighbour = f"{test_hotplug.DEVICE}0"
        async with bench(tmp_path) as guest:
            test = test_hotplug.test_neighbours_whose_text_contains_it_do_not_wake
            with pytest.raises(AssertionError):
                await test(guest, neighbour)
            await cancel_others()

    def test_schedules_find_a_dropped_rescan(self, small_batches: None, no_rescan: None) -> None:
        with pytest.raises(AssertionError, match=OVERDUE):
            run_schedules(UNTIL_FOUND, (Phase.generate,))

    async def test_a_lost_event_finds_a_dropped_rescan(
        self, tmp_path: Path, no_rescan: None
    ) -> None:
        with pytest.raises(AssertionError, match=OVERDUE):
            await test_one_lost_event_is_made_up_for(tmp_path)

    def test_schedules_find_a_rescan_that_comes_too_early(
        self, small_batches: None, no_second_rescan: None
    ) -> None:
        with pytest.raises(AssertionError, match=OVERDUE):
            run_schedules(UNTIL_FOUND, (Phase.generate,))

    async def test_silent_losses_find_a_rescan_that_comes_too_early(
        self, tmp_path: Path, small_batches: None, no_second_rescan: None
    ) -> None:
        with pytest.raises(AssertionError, match=OVERDUE):
            await test_what_is_lost_after_the_loss_was_told_is_made_up_for(tmp_path, None)


async def cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
