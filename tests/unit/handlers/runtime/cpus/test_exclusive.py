"""Exclusive CPUs: granted, kept while CPUs come and go, given back, taken over."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.roots import Roots
from agent.handlers.runtime.cpus.exclusive import ExclusiveCpus
from tests.fakes.cpusets import FakeCpusets
from tests.fakes.hotplug import Bench, bench, turns
from tests.fakes.machine import FakeMachine
from tests.fakes.managers import FakeEvents

pytestmark = [pytest.mark.unit, pytest.mark.containers]


class Setting:
    """A guest with four CPUs and two containers, `a` and `b`."""

    def __init__(self, guest: Bench, top: Path) -> None:
        self.guest = guest
        self.machine = FakeMachine(guest.sysfs, guest.kernel, cpus=4)
        self.roots = Roots(cgroup=top)
        self.cpusets = FakeCpusets(top, lambda: self.machine.online)
        self.a, self.b = (self.cpusets.container(name) for name in "ab")
        self.events = FakeEvents()
        self.exclusive = self.life()

    def life(self) -> ExclusiveCpus:
        return ExclusiveCpus(
            roots=self.roots,
            events=self.events,
            board=self.guest.board,
            write=self.cpusets.write,
        )

    async def switch(self, number: int, *, online: bool) -> None:
        """The kernel updates its partitions before it tells."""
        path = self.guest.sysfs.sys / f"devices/system/cpu/cpu{number}/online"
        self.machine.write(path, "1" if online else "0")
        self.cpusets.update()
        await turns()

    def runs_on(self, group: str) -> str:
        return self.cpusets.effective(group)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Setting]:
    async with bench(tmp_path / "guest") as guest:
        setting = Setting(guest, tmp_path / "cgroup")
        await turns()
        yield setting
        await setting.exclusive.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def refused(setting: Setting, container: str, group: str, count: int) -> AgentError:
    with pytest.raises(AgentError) as error:
        await setting.exclusive.grant(container, group, count)
    return error.value


async def test_a_container_has_a_cpu_for_itself(here: Setting) -> None:
    assert await here.exclusive.grant("a", here.a, 1) == (3,)
    assert (here.runs_on(here.a), here.runs_on(here.b)) == ("3", "0-2")
    assert here.exclusive.of("a") == (3,)
    assert here.exclusive.of("b") == ()
    assert here.exclusive.reserved() == {3}


async def test_two_containers_have_their_own(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 1)
    assert await here.exclusive.grant("b", here.b, 2) == (1, 2)
    assert (here.runs_on(here.a), here.runs_on(here.b), here.runs_on("/pods")) == ("3", "1-2", "0")


async def test_containers_of_two_sandboxes(here: Setting) -> None:
    """Sets of /pods/s and /pods/t may not overlap at any moment."""
    other = here.cpusets.container("c", sandbox="t")
    await here.exclusive.grant("a", here.a, 1)
    await here.exclusive.grant("c", other, 1)
    assert here.cpusets.exclusive("/pods/s") == "3"
    assert here.cpusets.exclusive("/pods/t") == "2"
    assert here.cpusets.exclusive("/pods") == "2-3"
    await here.exclusive.release("a")
    assert await here.exclusive.grant("c", other, 2) == (2, 3)


async def test_the_same_again_changes_nothing(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 2)
    here.cpusets.writes.clear()
    assert await here.exclusive.grant("a", here.a, 2) == (2, 3)
    assert here.cpusets.writes == []
    assert here.events.published == []


async def test_the_same_again_repairs_what_somebody_else_broke(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 1)
    here.cpusets.write(here.roots.cgroup / "pods/s/a/cpuset.cpus.partition", "member")
    assert await here.exclusive.grant("a", here.a, 1) == (3,)
    assert here.runs_on(here.a) == "3"


async def test_more_and_fewer(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 1)
    assert await here.exclusive.grant("a", here.a, 3) == (1, 2, 3)
    assert await here.exclusive.grant("a", here.a, 1) == (3,)
    assert here.runs_on(here.b) == "0-2"
    assert await here.exclusive.grant("a", here.a, 0) == ()
    assert (here.runs_on(here.a), here.cpusets.partition(here.a)) == ("0-3", "member")


async def test_one_stays_for_everybody(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 2)
    error = await refused(here, "b", here.b, 2)
    assert (error.code, error.reason) == (Code.RESOURCE_EXHAUSTED, Reason.CPUS_EXHAUSTED)
    assert (error.fields["available"], error.fields["exclusive"]) == ("1", "2-3")
    assert (here.runs_on(here.a), here.runs_on(here.b)) == ("2-3", "0-1")
    assert here.exclusive.of("b") == ()


async def test_more_than_there_are_leaves_what_one_had(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 1)
    assert (await refused(here, "a", here.a, 4)).reason is Reason.CPUS_EXHAUSTED
    assert here.exclusive.of("a") == (3,)


async def test_what_the_kernel_refuses_leaves_nothing_behind(here: Setting) -> None:
    here.cpusets.refusals[here.a] = errno.EACCES
    error = await refused(here, "a", here.a, 1)
    assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, Reason.KERNEL_REFUSED)
    assert error.fields["errno"] == "EACCES"
    assert here.cpusets.exclusive("/pods") == here.cpusets.exclusive("/pods/s") == ""
    assert here.exclusive.reserved() == frozenset()


async def test_a_refusal_above_is_one_too(here: Setting) -> None:
    here.cpusets.refusals["/pods"] = errno.EINVAL
    assert (await refused(here, "a", here.a, 1)).fields["errno"] == "EINVAL"
    assert here.exclusive.of("a") == ()


async def test_a_container_without_a_group_gets_none(here: Setting) -> None:
    assert (await refused(here, "x", "/pods/s/x", 1)).fields["errno"] == "ENOENT"
    assert here.exclusive.reserved() == frozenset()


async def test_where_the_runtime_did_not_pass_cpuset_on(here: Setting) -> None:
    (here.roots.cgroup / "pods/s/cgroup.subtree_control").write_text("memory pids\n")
    await here.exclusive.grant("a", here.a, 1)
    assert ("/s/cgroup.subtree_control", "+cpuset") in here.cpusets.writes


async def test_one_that_went_offline_is_replaced(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 1)
    await here.switch(3, online=False)
    assert here.exclusive.of("a") == (2,)
    assert (here.runs_on(here.a), here.runs_on(here.b)) == ("2", "0-1")
    assert here.events.published == [
        ("resources-changed", "a", {"exclusive_cpus": "2", "promised": "1"})
    ]


async def test_without_another_it_is_short_until_one_comes(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 3)
    await here.switch(3, online=False)
    assert here.exclusive.of("a") == (1, 2)
    await here.switch(2, online=False)
    await here.switch(1, online=False)
    # Nothing left to give: it runs with everybody else.
    assert here.exclusive.of("a") == ()
    assert here.runs_on(here.a) == "0"
    await here.switch(2, online=True)
    assert here.exclusive.of("a") == (2,)
    await here.switch(1, online=True)
    await here.switch(3, online=True)
    assert (here.exclusive.of("a"), here.runs_on(here.a)) == ((1, 2, 3), "1-3")
    assert [details["exclusive_cpus"] for _, _, details in here.events.published] == [
        *("1-2", "1", "", "2", "1-2", "1-3")
    ]


async def test_one_that_is_short_can_still_be_asked_for_the_same(here: Setting) -> None:
    """An update of a container's limits makes sure of its CPUs too, and must not fail."""
    await here.exclusive.grant("a", here.a, 3)
    await here.switch(3, online=False)
    assert await here.exclusive.grant("a", here.a, 3) == (1, 2)
    assert await here.exclusive.grant("a", here.a, 1) == (2,)
    assert (await refused(here, "a", here.a, 3)).fields["available"] == "2"


async def test_cpus_that_come_are_for_everybody(here: Setting) -> None:
    await here.switch(3, online=False)
    await here.exclusive.grant("a", here.a, 1)
    await here.switch(3, online=True)
    assert (here.exclusive.of("a"), here.runs_on(here.b)) == ((2,), "0-1,3")
    assert here.events.published == []


async def test_lost_events_are_made_good(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 1)
    here.machine._tell = lambda *_: None  # type: ignore[method-assign]
    await here.switch(3, online=False)
    assert here.exclusive.of("a") == (3,)
    here.guest.kernel.overflow()
    await turns()
    assert here.exclusive.of("a") == (2,)


async def test_a_container_that_is_gone_gives_its_cpus_back(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 1)
    here.cpusets.remove(here.a)
    await here.exclusive.release("a")
    assert here.cpusets.exclusive("/pods") == here.cpusets.exclusive("/pods/s") == ""
    assert await here.exclusive.grant("b", here.b, 3) == (1, 2, 3)
    await here.exclusive.release("never-there")


async def test_what_is_given_back_fills_up_who_is_short(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 1)
    await here.exclusive.grant("b", here.b, 2)
    await here.switch(2, online=False)
    assert here.exclusive.of("b") == (1,)
    await here.exclusive.release("a")
    assert here.exclusive.of("b") == (1, 3)


async def test_a_neighbour_that_is_bound_keeps_a_cpu(here: Setting) -> None:
    here.cpusets.container("c", own="3")
    assert await here.exclusive.grant("a", here.a, 1) == (2,)


async def test_the_next_agent_takes_over(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 1)
    await here.exclusive.grant("b", here.b, 1)
    await here.exclusive.close()
    # While nobody looked, b's CPU went, and a container ended without its agent.
    stray = here.cpusets.container("gone")
    here.cpusets.write(here.roots.cgroup / "pods/cpuset.cpus.exclusive", "1-3")
    here.cpusets.write(here.roots.cgroup / "pods/s/cpuset.cpus.exclusive", "1-3")
    here.cpusets.write(here.roots.cgroup / "pods/s/gone/cpuset.cpus.exclusive", "1")
    here.cpusets.write(here.roots.cgroup / "pods/s/gone/cpuset.cpus.partition", "root")
    here.exclusive = here.life()
    await here.switch(2, online=False)
    await here.exclusive.restore({"a": (here.a, 1), "b": (here.b, 1), "none": ("/pods/s/n", 0)})
    assert (here.exclusive.of("a"), here.exclusive.of("b")) == ((3,), (1,))
    assert (here.runs_on(here.a), here.runs_on(here.b), here.runs_on(stray)) == ("3", "1", "0")
    assert here.cpusets.exclusive(stray) == ""


async def test_taking_over_what_is_as_it_was_writes_nothing(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 2)
    here.exclusive = here.life()
    here.cpusets.writes.clear()
    await here.exclusive.restore({"a": (here.a, 2)})
    assert here.exclusive.of("a") == (2, 3)
    assert here.cpusets.writes == []


async def test_a_container_that_is_refused_does_not_harm_others(here: Setting) -> None:
    await here.exclusive.grant("a", here.a, 1)
    await here.exclusive.grant("b", here.b, 1)
    here.cpusets.refusals[here.a] = errno.EIO
    await here.switch(2, online=False)
    assert here.exclusive.of("b") == (1,)
    await here.switch(3, online=False)
    assert here.exclusive.of("a") == ()
    assert here.exclusive.of("b") == (1,)
    told = here.events.published[-1]
    assert told[1] == "a"
    assert "Input/output error" in told[2]["refused"]
