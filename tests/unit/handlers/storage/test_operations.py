"""Trim, freeze and thaw of mounted storages."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason, timed_out
from tests.fakes.hotplug import turns
from tests.fakes.storage_operations import OperationsBench, operations_bench, refusal
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.storage]

MOMENT = 0.001
DISK = "254:16"


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[OperationsBench]:
    async with operations_bench(tmp_path) as made:
        yield made


def soon() -> Deadline:
    return Deadline.after(30.0)


async def freeze(lab: OperationsBench, name: str = "data", seconds: float | None = None) -> None:
    await lab.operations.freeze(name, seconds, soon())


async def refused(awaitable: Awaitable[object], reason: Reason) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await awaitable
    assert caught.value.reason is reason, caught.value
    return caught.value


async def test_trim_tells_the_bytes(lab: OperationsBench) -> None:
    lab.attach()
    lab.kernel.free = 1 << 33
    assert await lab.operations.trim("data", soon()) == 1 << 33


@pytest.mark.parametrize(
    ("number", "name", "hint"),
    [
        (errno.EOPNOTSUPP, "ENOTSUP", "discard=unmap"),
        (errno.ENOTTY, "ENOTTY", "nothing to trim"),
        (errno.EROFS, "EROFS", "read-only"),
    ],
)
async def test_a_trim_that_is_not_possible_says_what_is_missing(
    lab: OperationsBench, number: int, name: str, hint: str
) -> None:
    lab.kernel.errors["trim"] = [refusal(number, lab.attach())]
    error = await refused(lab.operations.trim("data", soon()), Reason.KERNEL_REFUSED)
    assert (error.code, error.fields["errno"]) == (Code.FAILED_PRECONDITION, name)
    assert hint in (error.hint or "")


async def test_a_storage_whose_mount_is_gone(lab: OperationsBench) -> None:
    lab.kernel.unmount(lab.attach())
    for operation in (
        lab.operations.trim("data", soon()),
        lab.operations.resize("data", soon()),
        lab.operations.freeze("data", None, soon()),
    ):
        assert "unmounted" in (await refused(operation, Reason.WRONG_STATE)).message


async def test_freeze_and_thaw(lab: OperationsBench) -> None:
    lab.attach()
    await freeze(lab)
    assert lab.kernel.frozen == {DISK}
    assert lab.operations.frozen("data")
    await lab.operations.thaw("data", soon())
    assert lab.kernel.frozen == set()
    assert not lab.operations.frozen("data")
    assert lab.told() == [("storage-frozen", "data"), ("storage-thawed", "data")]
    assert lab.state.load_all("freezes") == {}


async def test_a_freeze_ends_by_itself(lab: OperationsBench) -> None:
    lab.attach()
    await freeze(lab, seconds=MOMENT)
    await until(lambda: not lab.kernel.frozen)
    await until(lambda: len(lab.told()) == 2)
    last = lab.events._ring[-1]
    assert (last.kind, last.details["why"]) == ("storage-thawed", "its time is over")
    assert lab.state.load_all("freezes") == {}


async def test_it_is_saved_before_the_kernel_is_asked(lab: OperationsBench) -> None:
    lab.attach()
    lab.kernel.hang["freeze"] = asyncio.Event()
    asking = asyncio.ensure_future(freeze(lab))
    while lab.kernel.count("freeze") == 0:
        await turns(1)
    assert set(lab.state.load_all("freezes")) == {"data"}
    lab.kernel.hang["freeze"].set()
    await asking


async def test_freezing_again_is_longer_and_no_second_freeze(lab: OperationsBench) -> None:
    lab.attach()
    await freeze(lab, seconds=10.0)
    lab.clock.advance(5.0)
    await freeze(lab, seconds=200.0)
    assert lab.state.load_all("freezes")["data"]["until"] == 1205.0
    assert lab.told() == [("storage-frozen", "data")]
    await lab.operations.thaw("data", soon())
    assert lab.kernel.frozen == set()


async def test_freezing_again_after_somebody_thawed_it(lab: OperationsBench) -> None:
    lab.attach()
    await freeze(lab)
    lab.kernel.frozen.clear()
    await freeze(lab)
    assert lab.kernel.frozen == {DISK}


async def test_a_shorter_freeze_beats_a_longer_one(lab: OperationsBench) -> None:
    lab.attach()
    await freeze(lab, seconds=300.0)
    await freeze(lab, seconds=MOMENT)
    await until(lambda: not lab.kernel.frozen)


async def test_thaw_is_fine_without_a_freeze(lab: OperationsBench) -> None:
    lab.attach()
    await lab.operations.thaw("data", soon())
    assert lab.told() == []


async def test_a_thaw_while_it_still_freezes_comes_after(lab: OperationsBench) -> None:
    lab.attach()
    lab.kernel.hang["freeze"] = asyncio.Event()
    freezing = asyncio.ensure_future(freeze(lab))
    while lab.kernel.count("freeze") == 0:
        await turns(1)
    thawing = asyncio.ensure_future(lab.operations.thaw("data", soon()))
    await turns()
    lab.kernel.hang["freeze"].set()
    await asyncio.gather(freezing, thawing)
    assert lab.kernel.frozen == set()
    assert not lab.operations.frozen("data")
    assert lab.told() == [("storage-frozen", "data"), ("storage-thawed", "data")]


async def test_thaw_is_fine_after_somebody_else_thawed(lab: OperationsBench) -> None:
    lab.attach()
    await freeze(lab)
    lab.kernel.frozen.clear()
    await lab.operations.thaw("data", soon())
    assert not lab.operations.frozen("data")


async def test_a_freeze_that_somebody_else_made_is_not_ours(lab: OperationsBench) -> None:
    """EBUSY: it would never be known when that one ends. The host may end it."""
    lab.attach()
    lab.kernel.frozen.add(DISK)
    error = await refused(lab.operations.freeze("data", None, soon()), Reason.WRONG_STATE)
    assert "somebody else" in error.message
    assert lab.state.load_all("freezes") == {}
    assert not lab.operations.frozen("data")
    await lab.operations.thaw("data", soon())
    assert lab.kernel.frozen == set()


async def test_one_that_cannot_be_frozen(lab: OperationsBench) -> None:
    """tmpfs has no freeze_fs: EOPNOTSUPP."""
    point = lab.attach(device="0:40", rest="tmpfs tmpfs rw")
    lab.kernel.errors["freeze"] = [refusal(errno.EOPNOTSUPP, point)]
    error = await refused(lab.operations.freeze("data", None, soon()), Reason.KERNEL_REFUSED)
    assert error.fields["errno"] == "ENOTSUP"  # Python's first name of the same number
    assert lab.state.load_all("freezes") == {}


@pytest.mark.parametrize("seconds", [0.0, -1.0, 300.5, float("nan")])
async def test_a_freeze_has_a_limit(lab: OperationsBench, seconds: float) -> None:
    lab.attach()
    error = await refused(lab.operations.freeze("data", seconds, soon()), Reason.BAD_FIELD)
    assert error.fields["field"] == "timeout_seconds"
    assert lab.kernel.calls == []


async def test_the_agents_own_file_system_is_never_frozen(lab: OperationsBench) -> None:
    """A bind of a directory of the guest's root: the agent would wait for itself."""
    lab.attach(device="8:1", rest="ext4 /dev/root rw", root="/srv")
    error = await refused(lab.operations.freeze("data", None, soon()), Reason.WRONG_STATE)
    assert "the agent" in error.message
    assert lab.kernel.calls == []


async def test_nor_that_of_its_run_directory(lab: OperationsBench) -> None:
    run = lab.sysfs.roots.run
    lab.kernel.mount("254:16", str(run.parent), "ext4 /dev/vdb rw")
    lab.attach()
    error = await refused(lab.operations.freeze("data", None, soon()), Reason.WRONG_STATE)
    assert str(run) in error.message


class TestTwoStoragesOfOneSuperblock:
    """A bind of a directory of the other: the kernel freezes both, and only once."""

    @pytest.fixture
    async def lab(self, tmp_path: Path) -> AsyncIterator[OperationsBench]:
        async with operations_bench(tmp_path) as made:
            made.attach("base")
            made.attach("part", root="/part")
            yield made

    async def test_both_show_it(self, lab: OperationsBench) -> None:
        await freeze(lab, "base")
        assert lab.operations.frozen("part")

    async def test_it_ends_with_the_last_one(self, lab: OperationsBench) -> None:
        await freeze(lab, "base")
        await freeze(lab, "part")
        await lab.operations.thaw("base", soon())
        assert lab.kernel.frozen == {DISK}
        assert lab.operations.frozen("base")
        await lab.operations.thaw("part", soon())
        assert lab.kernel.frozen == set()
        assert not lab.operations.frozen("base")

    async def test_each_ends_at_its_own_time(self, lab: OperationsBench) -> None:
        await freeze(lab, "base", seconds=300.0)
        await freeze(lab, "part", seconds=MOMENT)
        await until(lambda: ("storage-thawed", "part") in lab.told())
        assert lab.kernel.frozen == {DISK}

    async def test_a_mount_that_is_gone_is_thawed_through_the_other(
        self, lab: OperationsBench
    ) -> None:
        await freeze(lab, "base")
        lab.kernel.unmount("/mnt/base")
        await lab.operations.thaw("base", soon())
        assert lab.kernel.frozen == set()

    async def test_another_file_system_has_its_own(self, lab: OperationsBench) -> None:
        lab.attach("other", device="254:32", rest="xfs /dev/vdc rw")
        await freeze(lab, "other")
        assert not lab.operations.frozen("base")
        assert lab.kernel.frozen == {"254:32"}


async def test_a_frozen_storage_is_thawed_before_it_is_unmounted(lab: OperationsBench) -> None:
    """The kernel keeps the superblock of a frozen file system, frozen, after the last umount."""
    lab.attach()
    await freeze(lab)
    lab.records.leaving.add("data")
    await lab.operations.before_unmount("data", soon())
    assert lab.kernel.frozen == set()
    await refused(lab.operations.freeze("data", None, soon()), Reason.WRONG_STATE)
    assert lab.kernel.frozen == set()


async def test_a_thaw_that_does_not_come_back_does_not_keep_a_storage(
    lab: OperationsBench,
) -> None:
    """Storages.Detach: a file system that does not answer is taken off lazily."""
    lab.attach()
    await freeze(lab)
    lab.kernel.errors["thaw"] = [timed_out("thaw of /mnt/data did not come back")]
    await lab.operations.before_unmount("data", soon())
    assert lab.operations.frozen("data")


async def test_a_thaw_that_is_refused_does(lab: OperationsBench) -> None:
    lab.attach()
    await freeze(lab)
    lab.kernel.errors["thaw"] = [OSError(errno.EIO, "thaw", "/mnt/data")]
    await refused(lab.operations.before_unmount("data", soon()), Reason.KERNEL_REFUSED)


async def test_an_unmount_without_a_freeze_asks_nothing_of_the_file_system(
    lab: OperationsBench,
) -> None:
    lab.attach()
    await lab.operations.before_unmount("data", soon())
    assert lab.kernel.calls == []


async def test_a_freeze_that_did_not_come_back_is_taken_back(lab: OperationsBench) -> None:
    """The worker was killed; the kernel may have frozen all the same."""
    lab.attach()
    lab.kernel.errors["freeze"] = [timed_out("freeze of /mnt/data did not come back")]
    lab.kernel.frozen.add(DISK)
    await refused(lab.operations.freeze("data", None, soon()), Reason.OPERATION_TIMED_OUT)
    await until(lambda: not lab.kernel.frozen)
    await until(lambda: not lab.operations.frozen("data"))
    assert lab.state.load_all("freezes") == {}


async def test_a_longer_time_that_did_not_come_back_leaves_the_one_before(
    lab: OperationsBench,
) -> None:
    lab.attach()
    await freeze(lab, seconds=100.0)
    lab.kernel.errors["freeze"] = [timed_out("freeze of /mnt/data did not come back")]
    await refused(lab.operations.freeze("data", 200.0, soon()), Reason.OPERATION_TIMED_OUT)
    assert lab.kernel.frozen == {DISK}
    assert lab.state.load_all("freezes")["data"]["until"] == 1100.0


async def test_a_caller_who_leaves_does_not_leave_a_freeze_without_an_end(
    lab: OperationsBench,
) -> None:
    lab.attach()
    lab.kernel.hang["freeze"] = asyncio.Event()
    asking = asyncio.ensure_future(freeze(lab, seconds=0.2))
    while lab.kernel.count("freeze") == 0:
        await turns(1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    lab.clock.advance(1.0)
    lab.kernel.hang["freeze"].set()
    await until(lambda: lab.told() == [("storage-frozen", "data"), ("storage-thawed", "data")])
    assert lab.kernel.frozen == set()


async def test_a_new_agent_goes_on_with_the_freeze(lab: OperationsBench) -> None:
    lab.attach()
    await freeze(lab, seconds=100.0)
    await lab.operations.close()
    assert lab.kernel.frozen == {DISK}
    lab.operations = lab.new_operations()
    await lab.operations.restore()
    assert lab.operations.frozen("data")
    await freeze(lab, seconds=50.0)
    await lab.operations.thaw("data", soon())
    assert lab.kernel.frozen == set()


async def test_a_new_agent_ends_a_freeze_that_is_over(lab: OperationsBench) -> None:
    lab.attach()
    await freeze(lab, seconds=100.0)
    await lab.operations.close()
    lab.clock.advance(101.0)
    lab.operations = lab.new_operations()
    await lab.operations.restore()
    await until(lambda: not lab.kernel.frozen)


async def test_an_agent_that_died_before_the_kernel_froze(lab: OperationsBench) -> None:
    """What was saved is taken for a freeze: thawing what is not frozen is fine."""
    point = lab.attach()
    data = {"storage_id": "data", "path": point, "mount_id": 22, "device": [254, 16], "until": 1.0}
    lab.state.save("freezes", "data", data)
    await lab.operations.restore()
    await until(lambda: not lab.operations.frozen("data"))
    assert lab.kernel.count("thaw") == 1


async def test_a_saved_freeze_of_another_shape_is_dropped(lab: OperationsBench) -> None:
    lab.state.save("freezes", "data", {"until": 1.0})
    await lab.operations.restore()
    assert lab.state.load_all("freezes") == {}


async def test_a_file_system_that_is_mounted_nowhere_any_more(lab: OperationsBench) -> None:
    lab.attach()
    await freeze(lab, seconds=100.0)
    lab.kernel.unmount("/mnt/data")
    await lab.operations.thaw("data", soon())
    assert lab.state.load_all("freezes") == {}


async def test_a_thaw_that_is_refused_keeps_the_freeze_in_the_table(lab: OperationsBench) -> None:
    point = lab.attach()
    await freeze(lab, seconds=100.0)
    lab.kernel.errors["thaw"] = [refusal(errno.EIO, point)]
    await refused(lab.operations.thaw("data", soon()), Reason.KERNEL_REFUSED)
    assert lab.operations.frozen("data")
    await lab.operations.thaw("data", soon())
    assert lab.kernel.frozen == set()
