"""Storages that build on each other, share a mount under way, and leave in order."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason, timed_out
from agent.core.model import FsGroup
from agent.handlers.storage import taking
from agent.handlers.storage.pieces import PieceKind
from agent.linux.mounting import UnmountFlag
from tests.fakes.hotplug import turns
from tests.fakes.storage_classes import Things, on, plain, with_classes
from tests.fakes.storages import StorageBench, storage_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
def things(monkeypatch: pytest.MonkeyPatch) -> Things:
    made = Things()
    kinds = dict.fromkeys(PieceKind, made.take_back)
    monkeypatch.setattr(taking, "_BY_KIND", kinds)
    return made


@pytest.fixture
async def lab(tmp_path: Path, things: Things) -> AsyncIterator[StorageBench]:
    async with storage_bench(tmp_path) as made:
        with_classes(made, things)
        yield made


async def refused(awaitable: Awaitable[object], reason: Reason) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await awaitable
    assert caught.value.reason is reason, caught.value
    return caught.value


async def test_what_is_built_on_stays_and_its_builders_are_named(lab: StorageBench) -> None:
    await lab.storages.attach(plain("base"))
    await lab.storages.attach(on("x", "base"))
    await lab.storages.attach(on("y", "base"))
    assert lab.storages.get("base").used_by == {"x", "y"}
    error = await refused(lab.storages.detach("base"), Reason.STILL_IN_USE)
    assert error.code is Code.FAILED_PRECONDITION
    assert "the storages x, y" in error.message
    await lab.storages.detach("x")
    await lab.storages.detach("y")
    await lab.storages.detach("base")
    assert lab.files.mounted == []


async def test_all_go_in_reverse_order(lab: StorageBench) -> None:
    for request in (plain("base"), on("x", "base"), on("z", "x")):
        await lab.storages.attach(request)
    assert await lab.storages.detach_all() == ()
    ends = [Path(path).name for call, path in lab.files.calls if call == "unmount"]
    assert ends == ["z", "x", "base"]


async def test_a_base_that_is_not_there(lab: StorageBench) -> None:
    before = lab.traces()
    await refused(lab.storages.attach(on("x", "nobody")), Reason.UNKNOWN_STORAGE)
    assert lab.traces() == before


async def test_a_base_under_way_is_waited_for_and_shared(lab: StorageBench) -> None:
    lab.files.hang = asyncio.Event()
    base = asyncio.ensure_future(lab.storages.attach(plain("base")))
    await turns()
    users = [asyncio.ensure_future(lab.storages.attach(on(name, "base"))) for name in "xy"]
    container = asyncio.ensure_future(lab.storages.awaited("base"))
    await turns()
    assert not any(task.done() for task in (base, container, *users))
    lab.files.hang.set()
    await asyncio.gather(base, container, *users)
    assert lab.storages.acquire("base", "c1").used_by == {"x", "y"}
    assert [Path(path).name for path in lab.files.mounted].count("base") == 1


async def test_a_base_under_way_that_fails_is_no_base(lab: StorageBench) -> None:
    lab.files.hang = asyncio.Event()
    base = asyncio.ensure_future(lab.storages.attach(plain("base")))
    await turns()
    user = asyncio.ensure_future(lab.storages.attach(on("x", "base")))
    await turns()
    lab.files.errors = [errno.EIO]
    lab.files.hang.set()
    await refused(base, Reason.MOUNT_REFUSED)
    await refused(user, Reason.UNKNOWN_STORAGE)
    assert lab.storages.list() == ()
    assert lab.storages._graph.builders("base") == frozenset()


async def test_circles_are_refused_and_not_waited_for(lab: StorageBench) -> None:
    await refused(lab.storages.attach(on("x", "x")), Reason.BAD_FIELD)
    both = [asyncio.ensure_future(lab.storages.attach(on(*pair))) for pair in ("xy", "yx")]
    first, second = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(first, AgentError)
    assert isinstance(second, AgentError)
    assert {first.reason, second.reason} == {Reason.BAD_FIELD, Reason.UNKNOWN_STORAGE}
    assert lab.storages.list() == ()


async def test_a_builder_that_failed_builds_no_more(lab: StorageBench) -> None:
    await lab.storages.attach(plain("base"))
    lab.files.errors = [errno.EIO]
    await refused(lab.storages.attach(on("x", "base")), Reason.MOUNT_REFUSED)
    await lab.storages.detach("base")


async def test_nobody_builds_on_what_leaves(lab: StorageBench) -> None:
    await lab.storages.attach(plain("base"))
    lab.storages._leaving.add("base")
    await refused(lab.storages.attach(on("x", "base")), Reason.WRONG_STATE)
    with pytest.raises(AgentError, match="being detached"):
        lab.storages.using("base", "a copy")


async def test_a_visitor_is_named_until_it_is_done(lab: StorageBench) -> None:
    await lab.storages.attach(plain("base"))
    with lab.storages.using("base", "CopyIn"), lab.storages.using("base", "CopyIn"):
        error = await refused(lab.storages.detach("base"), Reason.STILL_IN_USE)
        assert "CopyIn" in error.message
    await lab.storages.detach("base")


@pytest.mark.parametrize("failing", [1, 2, 3])
async def test_pieces_are_taken_back_newest_first(
    lab: StorageBench, things: Things, failing: int
) -> None:
    before = lab.traces()
    await refused(lab.storages.attach(plain("s", 3, failing)), Reason.MAPPING_REFUSED)
    made = [f"s.{number}" for number in range(failing)]
    assert things.done == [f"make {name}" for name in made] + [
        f"take {name}" for name in reversed(made)
    ]
    assert (things.there, lab.traces()) == (set(), before)


async def test_a_refused_mount_takes_pieces_back(lab: StorageBench, things: Things) -> None:
    before = lab.traces()
    lab.files.errors = [errno.EIO]
    await refused(lab.storages.attach(plain("s", 2)), Reason.MOUNT_REFUSED)
    assert (things.there, lab.traces()) == (set(), before)


async def test_pieces_go_after_the_mount_and_one_that_stays_is_told(
    lab: StorageBench, things: Things
) -> None:
    await lab.storages.attach(plain("s", 3))
    things.stays = {"s.1"}
    detached = await lab.storages.detach("s")
    assert things.done[-2:] == ["take s.2", "take s.0"]
    assert len(detached.left) == 1
    assert "s.1" in detached.left[0]
    assert lab.storages.list() == ()


async def test_what_does_not_last_is_the_users_own(lab: StorageBench, things: Things) -> None:
    await lab.storages.attach(plain("s", 10))
    await lab.storages.detach("s")
    assert things.there == {"s.9"}


async def test_a_new_agent_takes_back_the_pieces_of_a_crash(
    lab: StorageBench, things: Things
) -> None:
    """The old one died while it made the second piece, and after the last one."""
    for name in ("half", "whole"):
        await lab.storages.attach(plain(name, 2))
        data = lab.lab.state.load("storages", name)
        assert data is not None
        lab.lab.state.save("storages", name, {**data, "phase": "mounting"})
    lab.files.drop(str(lab.roots.storages / "half"))
    new = lab.new_manager()
    await new.restore()
    assert (things.there, new.list(), lab.files.mounted) == (set(), (), [])


async def test_a_new_agent_knows_the_graph(lab: StorageBench) -> None:
    await lab.storages.attach(plain("base"))
    await lab.storages.attach(on("x", "base"))
    new = lab.new_manager()
    await new.restore()
    assert new.get("base").used_by == {"x"}
    await refused(new.detach("base"), Reason.STILL_IN_USE)
    assert await new.detach_all() == ()


async def test_a_group_gets_the_tree_and_a_failure_unmounts(lab: StorageBench) -> None:
    await lab.storages.attach(plain("s", fs_group=FsGroup(gid=123)))
    assert lab.files.groups == [(str(lab.roots.storages / "s"), 123)]
    await lab.storages.attach(plain("s", fs_group=FsGroup(gid=123)))
    assert len(lab.files.groups) == 1, "a second use must not reset what was changed since"
    before = lab.traces()
    real, lab.files.apply_fs_group = lab.files.apply_fs_group, no_space  # type: ignore[method-assign]
    error = await refused(
        lab.storages.attach(plain("t", fs_group=FsGroup(gid=1))), Reason.MOUNT_REFUSED
    )
    lab.files.apply_fs_group = real  # type: ignore[method-assign]
    assert "ENOSPC" in error.message
    assert lab.traces() == before


async def test_a_read_only_tree_stays_as_it_is(
    lab: StorageBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """chown(2) says EROFS there: no reason to refuse the mount."""

    async def read_only(path: str, gid: int, deadline: Deadline, **_more: bool) -> None:
        raise OSError(errno.EROFS, "fchownat: Read-only file system", path)

    monkeypatch.setattr(lab.files, "apply_fs_group", read_only)
    group = FsGroup(gid=1)
    await lab.storages.attach(plain("s", fs_group=group, read_only=True))
    await refused(lab.storages.attach(plain("t", fs_group=group)), Reason.MOUNT_REFUSED)


async def no_space(path: str, gid: int, deadline: Deadline, **_more: bool) -> None:
    raise OSError(errno.ENOSPC, "fchownat: No space left on device", path)


async def test_a_file_system_that_does_not_answer_is_left_to_the_kernel(
    lab: StorageBench,
) -> None:
    await lab.storages.attach(plain("s"))
    unmount = lab.files.unmount

    async def stuck(target: str, flags: UnmountFlag, deadline: Deadline) -> None:
        if UnmountFlag.DETACH not in flags:
            raise timed_out(f"unmount of {target} did not come back")
        await unmount(target, flags, deadline)

    lab.files.unmount = stuck  # type: ignore[method-assign]
    detached = await lab.storages.detach("s")
    assert detached.lazily
    assert (lab.files.mounted, lab.storages.list()) == ([], ())


async def test_what_someone_unmounted_is_used_by_nobody(lab: StorageBench) -> None:
    """What lies below the mount point would be taken for the storage."""
    await lab.storages.attach(plain("base"))
    lab.files.drop(str(lab.roots.storages / "base"))
    await refused(lab.storages.attach(on("x", "base")), Reason.WRONG_STATE)
    with pytest.raises(AgentError, match="not mounted any more"):
        lab.storages.acquire("base", "c1")
    with pytest.raises(AgentError, match="not mounted any more"):
        lab.storages.using("base", "a copy")
    await lab.storages.detach("base")


async def test_whoever_must_know_is_asked_before_the_unmount(lab: StorageBench) -> None:
    await lab.storages.attach(plain("s"))
    seen: list[tuple[str, list[str]]] = []

    async def hook(storage_id: str, deadline: Deadline) -> None:
        seen.append((storage_id, lab.files.mounted))

    lab.storages.before_unmount.append(hook)
    await lab.storages.detach("s")
    assert [(name, len(mounted)) for name, mounted in seen] == [("s", 1)]


async def test_what_stays_is_tried_again_by_the_next_one(lab: StorageBench, things: Things) -> None:
    """At a detachment, and when an attachment is undone."""
    await lab.storages.attach(plain("s", 2))
    things.stays = {"s.1"}
    assert len((await lab.storages.detach("s")).left) == 1
    error = await refused(lab.storages.attach(plain("s")), Reason.WRONG_STATE)
    assert "the mapping s.1" in error.message
    things.stays = set()
    await lab.storages.attach(plain("s"))
    assert things.there == set()

    things.stays = {"t.0"}
    error = await refused(lab.storages.attach(plain("t", 2, 2)), Reason.MAPPING_REFUSED)
    assert "t.0" in error.fields["not_undone"]
    assert things.there == {"t.0"}
    things.stays = set()
    await lab.new_manager().restore()
    assert things.there == set()
    assert lab.lab.state.load_all("storage-leftovers") == {}
