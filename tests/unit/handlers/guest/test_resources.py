"""CPUs and memory come online, by the kernel's events, and go offline where it lets them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.handlers.guest.resources import (
    Amount,
    Resources,
    ResourcesOnline,
    ResourcesRequest,
)
from tests.fakes.hotplug import Bench, bench, turns
from tests.fakes.machine import BLOCK, FakeMachine
from tests.fakes.managers import FakeEvents

pytestmark = [pytest.mark.unit, pytest.mark.devices]

MIB = 1 << 20
AMPLE = 60.0


class Setting:
    """A guest with one CPU of four and 512 MiB in four blocks, all online."""

    def __init__(self, guest: Bench, *, cpus: int = 1) -> None:
        self.guest = guest
        self.machine = FakeMachine(guest.sysfs, guest.kernel, cpus=cpus)
        self.events = FakeEvents()
        self.reserved = frozenset[int]()
        self.resources = Resources(
            board=guest.board,
            files=self.machine,
            events=self.events,
            default_timeout=AMPLE,
            reserved=lambda: self.reserved,
        )

    async def online(self, **asked: Any) -> ResourcesOnline:
        return await self.resources.online(request(**asked))

    def begin(self, **asked: Any) -> asyncio.Task[ResourcesOnline]:
        return asyncio.create_task(self.online(**asked))

    async def late(self, **asked: Any) -> AgentError:
        """What a request that can't be met in time is refused with."""
        with pytest.raises(AgentError) as refused:
            await self.online(**{"timeout": 0.3, **asked})
        assert refused.value.reason is Reason.RESOURCES_NOT_ONLINE
        return refused.value


def request(
    *,
    cpus: int | None = None,
    more_cpus: int | None = None,
    memory: int | None = None,
    more_memory: int | None = None,
    **flags: Any,
) -> ResourcesRequest:
    return ResourcesRequest(
        cpus=amount(cpus, more_cpus),
        memory=amount(memory, more_memory),
        **flags,
    )


def amount(total: int | None, more: int | None) -> Amount | None:
    if total is not None:
        return Amount(number=total)
    return None if more is None else Amount(number=more, more=True)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Setting]:
    async with bench(tmp_path) as guest:
        yield Setting(guest)
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_is_there_comes_online_without_waiting(here: Setting) -> None:
    here.machine.add_cpu(1)
    here.machine.add_cpu(2)
    here.machine.add_block(32)
    told = await here.online()
    assert (told.cpus_online, told.cpus_added) == ((0, 1, 2), (1, 2))
    assert (told.blocks_added, told.memory_online) == ((32,), 640 * MIB)
    assert told.block_bytes == BLOCK
    assert here.events.published == [
        ("resources-changed", "", {"cpus": "0-2", "memory": str(640 * MIB)})
    ]


async def test_nothing_to_do_is_fine_and_no_event(here: Setting) -> None:
    told = await here.online()
    again = await here.online(cpus=1, memory=512 * MIB)
    assert told == again
    assert (told.cpus_online, told.memory_online) == ((0,), 512 * MIB)
    assert (here.machine.writes, here.events.published) == ([], [])


async def test_a_total_takes_the_lowest_and_no_more(here: Setting) -> None:
    for number in (3, 1, 2):
        here.machine.add_cpu(number)
    told = await here.online(cpus=3)
    assert told.cpus_online == (0, 1, 2)
    assert here.machine.writes == [("cpu1", "1"), ("cpu2", "1")]


async def test_a_number_counts_from_what_is_online(here: Setting) -> None:
    here.machine.add_cpu(1)
    here.machine.add_block(32)
    here.machine.add_block(33)
    told = await here.online(more_cpus=1, more_memory=BLOCK)
    assert (told.cpus_added, told.blocks_added) == ((1,), (32,))
    assert (await here.online(more_cpus=0, more_memory=0)).cpus_added == ()


async def test_memory_is_rounded_up_to_blocks(here: Setting) -> None:
    here.machine.add_block(32)
    here.machine.add_block(33)
    assert (await here.online(memory=512 * MIB + 1)).blocks_added == (32,)
    assert (await here.online(more_memory=1)).blocks_added == (33,)


async def test_it_waits_for_what_is_still_on_its_way(here: Setting) -> None:
    task = here.begin(cpus=3, memory=768 * MIB)
    await turns()
    here.machine.add_cpu(1)
    await turns()
    here.machine.add_block(32)
    here.machine.add_cpu(2)
    await turns()
    assert here.machine.online == {0, 1, 2}
    assert not task.done()
    here.machine.add_block(33)
    told = await task
    assert (told.cpus_added, told.blocks_added) == ((1, 2), (32, 33))


async def test_memory_that_is_added_because_the_last_is_used(here: Setting) -> None:
    """virtio-mem adds no more blocks as long as too many of its own are offline
    (the driver's offline_threshold): bringing one online makes the next come."""
    task = here.begin(memory=512 * MIB + 4 * BLOCK)
    for number in range(40, 44):
        await turns()
        assert len(here.machine.blocks()) == number - 36
        here.machine.add_block(number)
    assert (await task).blocks_added == (40, 41, 42, 43)


async def test_lost_events_make_it_look(here: Setting) -> None:
    task = here.begin(cpus=2)
    await turns()
    real, here.machine._tell = here.machine._tell, lambda *_: None  # type: ignore[method-assign]
    here.machine.add_cpu(1)
    here.machine._tell = real  # type: ignore[method-assign]
    here.guest.kernel.overflow()
    assert (await task).cpus_added == (1,)


async def test_a_kernel_that_does_it_itself_is_told_truthfully(here: Setting) -> None:
    """With memhp_default_state=online blocks are online at once; nothing is written."""
    here.machine.brings_online = True
    here.machine.add_block(32)
    assert (await here.online(memory=640 * MIB)).blocks_added == ()
    task = here.begin(memory=768 * MIB, cpus=2)
    await turns()
    here.machine.add_block(33)
    here.machine.add_cpu(1)
    told = await task
    assert (told.blocks_added, told.cpus_added, told.refused) == ((33,), (1,), ())
    assert here.machine.writes == []
    assert here.events.kinds() == ["resources-changed"]


async def test_one_that_was_faster_than_our_write_is_no_refusal(here: Setting) -> None:
    """Writing `online` to a block that is online is EINVAL."""
    here.machine.add_block(32)
    write = here.machine.write

    def overtaken(path: Path, text: str) -> None:
        write(path, text)
        write(path, text)

    here.machine.write = overtaken  # type: ignore[method-assign]
    told = await here.online(memory=640 * MIB)
    assert (told.blocks_added, told.refused) == ((32,), ())


async def test_movable_memory_can_go_again(here: Setting) -> None:
    here.machine.add_block(32)
    await here.online(memory=640 * MIB, movable=True)
    assert here.machine.writes == [("memory32", "online_movable")]
    told = await here.online(memory=512 * MIB, allow_offline=True)
    assert (told.blocks_removed, told.memory_online) == ((32,), 512 * MIB)


async def test_fewer_is_not_taken_away_unless_it_is_allowed(here: Setting) -> None:
    here.machine.add_cpu(1)
    assert (await here.online()).cpus_online == (0, 1)
    assert (await here.online(cpus=1)).cpus_online == (0, 1)
    told = await here.online(cpus=1, allow_offline=True)
    assert (told.cpus_online, told.cpus_removed) == ((0,), (1,))


async def test_the_highest_go_first_and_cpu_0_never(tmp_path: Path) -> None:
    async with bench(tmp_path) as guest:
        here = Setting(guest, cpus=4)
        told = await here.online(cpus=2, allow_offline=True)
        assert told.cpus_removed == (2, 3)
        assert here.machine.writes == [("cpu3", "0"), ("cpu2", "0")]
        assert (await here.online(cpus=1, allow_offline=True)).cpus_online == (0,)


async def test_memory_in_use_stays_and_is_told(here: Setting) -> None:
    for number in (32, 33):
        here.machine.add_block(number)
    await here.online()
    here.machine.refusals["memory33"] = errno.EBUSY
    told = await here.online(memory=512 * MIB, allow_offline=True)
    # Memory of the boot is not taken instead.
    assert told.blocks_removed == (32,)
    assert told.refused == ("memory33 offline: Device or resource busy [EBUSY]",)
    assert told.memory_online == 640 * MIB


async def test_a_block_that_takes_long_has_not_the_time_of_all(here: Setting) -> None:
    for number in (32, 33):
        here.machine.add_block(number)
    await here.online()
    here.machine.hangs.add("memory33")
    told = await here.online(memory=512 * MIB, allow_offline=True, timeout=0.3)
    assert told.blocks_removed == (32,)
    assert [line.partition(":")[0] for line in told.refused] == ["memory33 offline"]
    # What the kernel made of the call is looked at only when the worker is out of it.
    assert here.machine.settled_after == ["memory33"]


async def test_cpus_that_a_container_has_for_itself_stay(tmp_path: Path) -> None:
    async with bench(tmp_path) as guest:
        here = Setting(guest, cpus=4)
        here.reserved = frozenset({3})
        told = await here.online(cpus=2, allow_offline=True)
        assert (told.cpus_online, told.cpus_removed) == ((0, 1, 3), (2,))
        assert told.refused == ("cpu3 offline: a container has it for itself alone",)


async def test_what_does_not_come_is_told_at_the_deadline(here: Setting) -> None:
    here.machine.add_cpu(1)
    here.machine.add_block(32)
    await turns()
    error = await here.late(cpus=3, memory=768 * MIB)
    assert error.code is Code.DEADLINE_EXCEEDED
    assert error.fields["evidence"] == (
        "2 of 3 CPUs are online, 2 are present, "
        "5 of 6 blocks of memory (134217728 bytes each) are online, 5 are present"
    )
    assert (error.fields["cpus_present"], error.fields["cpus_online"]) == ("0-1", "0-1")
    assert (error.fields["blocks_online"], error.fields["blocks_added"]) == ("0-3,32", "32")
    assert error.fields["refused"] == "none"
    # What came stays, and those who watch are told of it.
    assert here.machine.online == {0, 1}
    assert here.machine.blocks() == {0, 1, 2, 3, 32}
    assert here.events.kinds() == ["resources-changed"]


async def test_what_the_kernel_refuses_is_in_the_error(here: Setting) -> None:
    """A DIMM of which one block can't come online, as for lack of memory for its own pages."""
    here.machine.add_block(32)
    here.machine.add_block(33)
    here.machine.refusals["memory33"] = errno.ENOMEM
    error = await here.late(memory=768 * MIB)
    assert error.fields["refused"] == "memory33 online: Cannot allocate memory [ENOMEM]"
    assert error.fields["blocks_added"] == "32"
    assert "memory32" in error.fields["events"]


async def test_events_seen_are_those_of_cpus_and_memory(here: Setting) -> None:
    task = asyncio.create_task(here.late(cpus=2))
    await turns()
    here.guest.kernel.send("add", "/devices/pci0000:00/0000:00:02.0", "pci")
    here.machine.add_block(32)
    error = await task
    assert error.fields["events"] == "add memory /devices/system/memory/memory32"


async def test_a_switch_without_effect_is_no_success(here: Setting) -> None:
    here.machine.add_cpu(1)
    here.machine.deaf.add("cpu1")
    told = await here.online()
    assert told.cpus_added == ()
    assert told.refused == ("cpu1 online: the kernel took the order, but it is not online",)


async def test_a_passing_refusal_is_tried_again_with_any_news(here: Setting) -> None:
    """While a PCI device is probed CPUs can't be switched (cpu_hotplug_disable: EBUSY);
    that it is over shows in an event of that device."""
    here.machine.add_cpu(1)
    here.machine.refusals["cpu1"] = errno.EBUSY
    await turns()
    task = here.begin(cpus=2)
    await turns()
    assert here.machine.writes == [("cpu1", "1")]
    del here.machine.refusals["cpu1"]
    here.guest.kernel.send("bind", "/devices/pci0000:00/0000:00:02.0", "pci")
    told = await task
    assert (told.cpus_added, told.refused) == ((1,), ())


async def test_a_lasting_refusal_is_not_tried_again(here: Setting) -> None:
    here.machine.add_block(32)
    here.machine.refusals["memory32"] = errno.EINVAL
    task = here.begin(memory=640 * MIB)
    for _ in range(3):
        await turns()
        here.guest.kernel.send("change", "/devices/system/memory/memory3", "memory")
    await turns()
    assert here.machine.writes == [("memory32", "online")]
    # Another block does as well.
    here.machine.add_block(33)
    told = await task
    assert told.blocks_added == (33,)
    assert told.refused == ("memory32 online: Invalid argument [EINVAL]",)


async def test_the_same_block_later_by_itself_is_no_refusal_any_more(here: Setting) -> None:
    here.machine.add_block(32)
    here.machine.refusals["memory32"] = errno.EINVAL
    task = here.begin(memory=640 * MIB)
    await turns()
    here.machine.refusals.clear()
    here.machine.write(here.guest.sysfs.sys / "devices/system/memory/memory32/state", "online")
    assert (await task).refused == ()


async def test_more_cpus_than_the_kernel_has_room_for_are_refused_at_once(here: Setting) -> None:
    with pytest.raises(AgentError) as refused:
        await here.online(cpus=5)
    assert refused.value.code is Code.FAILED_PRECONDITION
    assert refused.value.reason is Reason.RESOURCES_NOT_ONLINE
    assert refused.value.fields["possible"] == "0-3"


async def test_without_hotplug_of_memory_it_is_refused_at_once(here: Setting) -> None:
    here.machine.without_memory_hotplug()
    with pytest.raises(AgentError) as refused:
        await here.online(memory=1 << 30)
    assert refused.value.code is Code.FAILED_PRECONDITION
    assert (await here.online()).block_bytes == 0


async def test_who_waits_keeps_nobody_from_looking(here: Setting) -> None:
    first = here.begin(cpus=2)
    await turns()
    assert (await here.online(cpus=1, memory=1)).cpus_online == (0,)
    here.machine.add_block(32)
    assert (await here.online(more_memory=BLOCK)).blocks_added == (32,)
    here.machine.add_cpu(1)
    told = await first
    # Each tells what it did itself.
    assert (told.cpus_added, told.blocks_added) == ((1,), ())


async def test_two_that_want_the_same_switch_it_once(here: Setting) -> None:
    first, second = here.begin(cpus=2), here.begin(cpus=2)
    await turns()
    here.machine.add_cpu(1)
    told = (await first, await second)
    assert [each.cpus_online for each in told] == [(0, 1), (0, 1)]
    assert here.machine.writes == [("cpu1", "1")]
    assert sorted(each.cpus_added for each in told) == [(), (1,)]
    assert here.events.kinds() == ["resources-changed"]


async def test_calls_switch_one_after_the_other(here: Setting) -> None:
    """A write that hangs costs others their time, and they say so."""
    here.machine.add_cpu(1)
    here.machine.add_block(32)
    here.machine.hangs.add("memory32")
    first = here.begin(memory=640 * MIB)
    await turns()
    told = await here.online(timeout=0.3)
    assert told.refused[0] == "cpu1 online: another change of CPUs or memory did not end in time"
    assert here.machine.writes == [("memory32", "online")]
    first.cancel()
    await asyncio.wait([first])


async def test_a_caller_who_leaves_makes_room(here: Setting) -> None:
    first = here.begin(cpus=2)
    await turns()
    first.cancel()
    await asyncio.wait([first])
    here.machine.add_cpu(1)
    assert (await here.online(cpus=2)).cpus_added == (1,)
