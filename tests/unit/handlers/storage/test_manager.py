"""The table of storages: mount, count, unmount, undo, restart."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.fileops import FsMount, MountCall, MountOption
from agent.core.model import DeviceNode, NodeType
from agent.handlers.storage.block import BlockStorage
from agent.handlers.storage.classes import ClassTable
from agent.handlers.storage.records import from_data, to_data
from agent.linux.mounting import MountFlag
from tests.fakes.hotplug import turns
from tests.fakes.storages import StorageBench, storage, storage_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[StorageBench]:
    async with storage_bench(tmp_path) as made:
        await made.plug()
        yield made
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def refused(awaitable: Awaitable[object], reason: Reason) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await awaitable
    assert caught.value.reason is reason, caught.value
    return caught.value


def own(lab: StorageBench, name: str = "data") -> str:
    return str(lab.roots.storages / name)


def directories(lab: StorageBench) -> list[str]:
    return sorted(os.listdir(lab.roots.storages))


async def test_a_disk_is_mounted_where_its_id_says(lab: StorageBench) -> None:
    mounted = await lab.storages.attach(storage(options=("noexec", "data=ordered")))
    assert mounted.mount_point == own(lab)
    assert lab.files.mounts == [
        FsMount(
            source=str(lab.roots.dev / "vdb"),
            fs_type="ext4",
            flags=MountFlag.NOEXEC,
            options=(MountOption(key="data", value="ordered"),),
        )
    ]
    assert directories(lab) == ["data"]
    assert lab.lab.devices.get("disk").users == {"storage data"}
    assert lab.lab.told()[-1] == ("storage-attached", "data")


async def test_read_only(lab: StorageBench) -> None:
    await lab.storages.attach(storage(read_only=True, options=("rw",)))
    assert lab.files.mounts[0].flags == MountFlag.RDONLY


async def test_detach_unmounts_and_lets_the_device_go(lab: StorageBench) -> None:
    before = lab.traces()
    await lab.storages.attach(storage())
    await refused(lab.lab.devices.prepare_detach("disk"), Reason.STILL_IN_USE)
    await lab.storages.detach("data")
    assert lab.traces() == before
    assert lab.lab.told()[-1] == ("storage-detached", "data")
    await lab.lab.devices.prepare_detach("disk")


async def test_a_device_that_is_not_attached(lab: StorageBench) -> None:
    before = lab.traces()
    error = await refused(lab.storages.attach(storage(device_id="other")), Reason.UNKNOWN_DEVICE)
    assert error.code is Code.NOT_FOUND
    assert lab.traces() == before


async def test_a_device_without_a_disk(lab: StorageBench) -> None:
    """A NIC, or a disk that was given to VFIO: there is nothing to mount."""
    devices = lab.lab.devices
    entry = devices._table.entry("disk")
    group = DeviceNode(path="/dev/vfio/7", type=NodeType.CHAR, major=240, minor=0)
    for nodes in ((), (group,)):
        devices._table.put(replace(entry, device=replace(entry.device, nodes=nodes)))
        error = await refused(lab.storages.attach(storage()), Reason.BAD_FIELD)
        assert "device disk has no block device" in error.message
    assert devices.get("disk").users == frozenset()


@pytest.mark.parametrize("fs_type", ["", "proc", "fuse", "overlay", "nfs", "Ext4", "ext4 "])
async def test_only_file_systems_of_disks(lab: StorageBench, fs_type: str) -> None:
    before = lab.traces()
    error = await refused(lab.storages.attach(storage(fs_type=fs_type)), Reason.BAD_FIELD)
    assert "ext4" in error.message
    assert lab.traces() == before


async def test_a_file_system_that_the_kernel_lacks_is_named(lab: StorageBench) -> None:
    lab.files.errors = [errno.ENODEV]
    error = await refused(lab.storages.attach(storage(fs_type="f2fs")), Reason.MOUNT_REFUSED)
    assert error.code is Code.FAILED_PRECONDITION
    assert error.hint == "this kernel has no f2fs and no module of that name"


async def test_a_refusal_is_told_at_once_with_all_of_it(lab: StorageBench) -> None:
    """EINVAL will not go away: it must not cost the deadline."""
    before = lab.traces()
    lab.files.errors = [errno.EINVAL]
    request = storage(options=("size=1m", "noexec"))
    error = await refused(lab.storages.attach(request), Reason.MOUNT_REFUSED)
    assert error.fields == {
        "source": str(lab.roots.dev / "vdb"),
        "target": own(lab),
        "fs_type": "ext4",
        "options": "size=1m",
        "errno": "EINVAL",
    }
    assert "NOEXEC" in error.message
    assert error.hint is not None
    assert "holds no ext4 file system" in error.hint
    assert lab.traces() == before
    assert [call for call, _ in lab.files.calls].count("mount") == 1


async def test_a_failed_mount_can_be_repeated_and_counts_once(lab: StorageBench) -> None:
    """The count must not stay up after a failure, or the retry would skip the mount."""
    lab.files.errors = [errno.EINVAL]
    await refused(lab.storages.attach(storage(fs_type="xfs")), Reason.MOUNT_REFUSED)
    await lab.storages.attach(storage())
    assert lab.storages.acquire("data", "c1").users == {"c1"}
    assert lab.files.mounted == [own(lab)]


async def test_transient_refusals_are_tried_again_when_the_disk_changes(lab: StorageBench) -> None:
    """No node yet (ENOENT), or the size it was plugged with is a stub's (ENOMEM)."""
    lab.files.errors = [errno.ENOENT, errno.ENOENT, errno.ENOMEM, errno.ENOMEM]
    attach = asyncio.ensure_future(lab.storages.attach(storage()))
    disk = "/devices/pci0000:00/0000:00:02.0/0000:02:00.0/virtio_vdb/block/vdb"
    for attempts in range(1, 5):
        await turns()
        assert [call for call, _ in lab.files.calls].count("mount") == attempts
        assert not attach.done()
        lab.lab.guest.kernel.send("change", disk, "block", RESIZE="1")
    assert (await attach).mount_point == own(lab)


async def test_other_disks_do_not_make_it_try_again(lab: StorageBench) -> None:
    lab.files.errors = [errno.ENOENT]
    attach = asyncio.ensure_future(lab.storages.attach(storage()))
    await turns()
    lab.lab.guest.kernel.send("change", "/devices/virtual/block/loop0", "block")
    await turns()
    assert [call for call, _ in lab.files.calls].count("mount") == 1
    attach.cancel()
    await asyncio.wait([attach])


async def test_a_transient_refusal_at_the_deadline_is_told(lab: StorageBench) -> None:
    before = lab.traces()
    lab.files.errors = [errno.ENOMEM]
    error = await refused(lab.storages.attach(storage(timeout=0.05)), Reason.MOUNT_REFUSED)
    assert error.code is Code.DEADLINE_EXCEEDED
    assert error.fields["errno"] == "ENOMEM"
    assert lab.traces() == before


async def test_the_third_of_three_fails_and_the_first_two_stand(lab: StorageBench) -> None:
    """Each request is undone by itself; what a host attached before is the host's."""
    await lab.plug("disk2", "03", "vdc")
    await lab.storages.attach(storage("a"))
    await lab.storages.attach(storage("b", "disk2"))
    before = lab.traces()
    error = await refused(lab.storages.attach(storage("c", "missing")), Reason.UNKNOWN_DEVICE)
    assert "missing" in error.message
    assert lab.traces() == before
    assert await lab.storages.detach_all() == ()
    assert lab.files.calls[-2:] == [("unmount", own(lab, "b")), ("unmount", own(lab, "a"))]
    assert list(lab.roots.storages.iterdir()) == []


async def test_it_stays_mounted_until_the_last_container_left(lab: StorageBench) -> None:
    await lab.storages.attach(storage())
    for container in ("a", "b", "c", "a"):
        lab.storages.acquire("data", container)
    for left in ({"b", "c"}, {"c"}):
        lab.storages.release("data", sorted({"a", "b", "c"} - left)[-1])
        error = await refused(lab.storages.detach("data"), Reason.STILL_IN_USE)
        assert error.fields["users"] == ", ".join(sorted(left))
        assert lab.files.mounted == [own(lab)]
    lab.storages.release("data", "c")
    lab.storages.release("data", "c")
    await lab.storages.detach("data")
    assert lab.files.mounted == []


async def test_unknown_storages(lab: StorageBench) -> None:
    error = await refused(lab.storages.detach("nobody"), Reason.UNKNOWN_STORAGE)
    assert error.code is Code.NOT_FOUND
    with pytest.raises(AgentError, match="no storage 'x'"):
        lab.storages.get("x")
    with pytest.raises(AgentError, match="no storage 'x'"):
        lab.storages.acquire("x", "c")
    lab.storages.release("x", "c")


@pytest.mark.parametrize("bad", ["", "..", "a/b", "-o", "x" * 65])
async def test_bad_ids(lab: StorageBench, bad: str) -> None:
    before = lab.traces()
    await refused(lab.storages.attach(storage(bad)), Reason.BAD_ID)
    assert lab.traces() == before


async def test_the_same_request_twice_mounts_once(lab: StorageBench) -> None:
    first = await lab.storages.attach(storage(timeout=5.0))
    assert await lab.storages.attach(storage(timeout=6.0)) == first
    assert await lab.storages.attach(storage()) == first
    assert len(lab.files.mounts) == 1


async def test_the_same_request_at_the_same_time_mounts_once(lab: StorageBench) -> None:
    first, second = await asyncio.gather(
        lab.storages.attach(storage()), lab.storages.attach(storage())
    )
    assert first == second
    assert len(lab.files.mounts) == 1


async def test_another_request_under_the_id(lab: StorageBench) -> None:
    await lab.storages.attach(storage())
    await refused(lab.storages.attach(storage(read_only=True)), Reason.ID_IN_USE)


async def test_a_mount_point_has_one_owner(lab: StorageBench) -> None:
    await lab.plug("disk2", "03", "vdc")
    await lab.storages.attach(storage("a"))
    taken = storage("b", "disk2", mount_point=own(lab, "a"))
    error = await refused(lab.storages.attach(taken), Reason.MOUNT_POINT_IN_USE)
    assert "belongs to storage a" in error.message
    assert lab.lab.devices.get("disk2").users == frozenset()


async def test_a_foreign_mount_is_not_covered(lab: StorageBench) -> None:
    lab.files.add(FsMount(source="x", fs_type="tmpfs"), own(lab))
    before = lab.traces()
    await refused(lab.storages.attach(storage()), Reason.MOUNT_POINT_IN_USE)
    assert lab.traces() == before


async def test_an_existing_directory_must_be_empty_and_stays(lab: StorageBench) -> None:
    place = lab.roots.run.parent / "volumes"
    wanted = storage(mount_point=str(place))
    error = await refused(lab.storages.attach(wanted), Reason.MOUNT_REFUSED)
    assert "ENOENT" in error.message
    place.mkdir()
    (place / "file").touch()
    await refused(lab.storages.attach(wanted), Reason.MOUNT_REFUSED)
    (place / "file").unlink()
    assert (await lab.storages.attach(wanted)).mount_point == str(place)
    await lab.storages.detach("data")
    assert place.is_dir()


async def test_a_mount_point_that_cannot_be_removed_is_only_a_warning(
    lab: StorageBench, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is never removed with what is in it."""
    await lab.storages.attach(storage())
    (Path(own(lab)) / "left").touch()
    await lab.storages.detach("data")
    assert lab.storages.list() == ()
    assert (Path(own(lab)) / "left").exists()
    assert "stays" in caplog.text


async def test_a_busy_mount_names_who_holds_it(lab: StorageBench) -> None:
    await lab.storages.attach(storage())
    process = lab.roots.proc / "4711"
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("tail\n")
    (process / "fd/3").symlink_to(f"{own(lab)}/log")
    lab.files.unmount_error = errno.EBUSY
    error = await refused(lab.storages.detach("data"), Reason.UNMOUNT_REFUSED)
    assert error.code is Code.FAILED_PRECONDITION
    assert f"process 4711 (tail) with {own(lab)}/log" in error.message
    assert lab.storages.acquire("data", "c1").users == {"c1"}
    lab.storages.release("data", "c1")
    lab.files.unmount_error = None
    await lab.storages.detach("data")


async def test_a_mount_that_someone_else_unmounted_is_forgotten(lab: StorageBench) -> None:
    await lab.storages.attach(storage())
    lab.files.drop(own(lab))
    error = await refused(lab.storages.attach(storage()), Reason.WRONG_STATE)
    assert "not mounted any more" in error.message
    await lab.storages.detach("data")
    assert lab.storages.list() == ()


async def test_a_mount_over_ours_is_not_taken_for_ours(lab: StorageBench) -> None:
    await lab.storages.attach(storage())
    lab.files.add(FsMount(source="none", fs_type="tmpfs"), own(lab))
    error = await refused(lab.storages.detach("data"), Reason.UNMOUNT_REFUSED)
    assert "tmpfs of none" in error.message
    assert lab.files.mounted == [own(lab), own(lab)]


async def test_detach_all_goes_on_after_a_failure_and_says_what_stays(lab: StorageBench) -> None:
    await lab.plug("disk2", "03", "vdc")
    await lab.storages.attach(storage("a"))
    await lab.storages.attach(storage("b", "disk2"))
    lab.storages.acquire("b", "c1")
    left = await lab.storages.detach_all()
    assert [(storage_id, error.reason) for storage_id, error in left] == [
        ("b", Reason.STILL_IN_USE)
    ]
    assert lab.files.mounted == [own(lab, "b")]


async def test_a_cancelled_mount_is_taken_back(lab: StorageBench) -> None:
    before = lab.traces()
    lab.files.hang = asyncio.Event()
    attach = asyncio.ensure_future(lab.storages.attach(storage()))
    await turns()
    lab.files.stuck[own(lab)].set()
    lab.files.add(FsMount(source="x", fs_type="ext4"), own(lab))
    attach.cancel()
    await asyncio.wait([attach])
    assert lab.files.calls[-1] == ("detach", own(lab))
    assert lab.traces() == before


async def test_a_mount_that_is_still_in_the_kernel_is_taken_off_when_it_comes(
    lab: StorageBench,
) -> None:
    lab.files.hang = asyncio.Event()
    attach = asyncio.ensure_future(lab.storages.attach(storage()))
    await turns()
    attach.cancel()
    await asyncio.wait([attach])
    assert directories(lab) == []
    lab.files.hang = None
    error = await refused(lab.storages.attach(storage()), Reason.MOUNT_POINT_IN_USE)
    assert "not come back from the kernel" in error.message
    lab.files.add(FsMount(source="x", fs_type="ext4"), own(lab))
    lab.files.stuck.pop(own(lab)).set()
    await turns()
    assert lab.files.mounted == []
    await lab.storages.attach(storage())


async def test_no_new_user_while_it_is_unmounted(lab: StorageBench) -> None:
    await lab.storages.attach(storage())
    lab.files.stuck[own(lab)] = asyncio.Event()

    seen: list[Reason] = []

    async def late_user(obj: str, patience: float | None = None) -> bool:
        with pytest.raises(AgentError) as caught:
            lab.storages.acquire("data", "c1")
        seen.append(caught.value.reason)
        await refused(lab.storages.attach(storage()), Reason.WRONG_STATE)
        return True

    lab.files.settled = late_user  # type: ignore[method-assign]
    await lab.storages.detach("data")
    assert seen == [Reason.WRONG_STATE]


async def test_a_user_that_came_first_stops_the_detach(lab: StorageBench) -> None:
    await lab.storages.attach(storage())
    detach = asyncio.ensure_future(lab.storages.detach("data"))
    await asyncio.sleep(0)
    lab.storages.acquire("data", "c1")
    await refused(detach, Reason.STILL_IN_USE)
    assert lab.files.mounted == [own(lab)]


async def test_a_new_agent_takes_over_mounts_and_counts(lab: StorageBench) -> None:
    await lab.plug("disk2", "03", "vdc")
    await lab.storages.attach(storage("z"))
    await lab.storages.attach(storage("a", "disk2"))
    lab.storages.acquire("a", "c1")
    lab.storages.acquire("a", "c2")
    lab.lab.devices.release("disk", "storage z")
    new = lab.new_manager()
    await new.restore()
    assert [each.request.id for each in new.list()] == ["z", "a"]
    assert new.get("a").users == {"c1", "c2"}
    assert lab.lab.devices.get("disk").users == {"storage z"}
    new.keep_users({"c2"})
    assert new.get("a").users == {"c2"}
    await refused(new.detach("a"), Reason.STILL_IN_USE)
    new.release("a", "c2")
    assert await new.detach_all() == ()
    assert [path for call, path in lab.files.calls if call == "unmount"] == [
        own(lab, "a"),
        own(lab, "z"),
    ]


async def test_a_new_agent_drops_mounts_that_are_gone(lab: StorageBench) -> None:
    await lab.storages.attach(storage())
    lab.files.drop(own(lab))
    lab.files.add(FsMount(source="other", fs_type="tmpfs"), own(lab))
    new = lab.new_manager()
    await new.restore()
    assert new.list() == ()
    assert lab.lab.told()[-1] == ("storage-lost", "data")
    assert lab.files.mounted == [own(lab)]


async def test_a_new_agent_sweeps_what_a_crash_left(lab: StorageBench) -> None:
    """The old agent died between mount(2) and saving that it was done."""
    await lab.storages.attach(storage())
    data = lab.lab.state.load("storages", "data")
    assert data is not None
    data["phase"] = "mounting"
    lab.lab.state.save("storages", "data", data)
    new = lab.new_manager()
    await new.restore()
    assert new.list() == ()
    assert lab.files.mounted == []
    assert list(lab.roots.storages.iterdir()) == []
    assert lab.lab.state.load_all("storages") == {}


async def test_a_storage_whose_device_vanished_can_still_be_detached(lab: StorageBench) -> None:
    await lab.storages.attach(storage())
    lab.lab.sysfs.remove(Path(lab.lab.devices.get("disk").sysfs_path))
    devices = lab.lab.new_manager()
    await devices.restore()
    lab.lab.devices = devices
    new = lab.new_manager()
    await new.restore()
    await new.detach("data")
    assert lab.files.mounted == []


async def test_saved_state_of_another_shape_is_dropped(lab: StorageBench) -> None:
    lab.lab.state.save("storages", "x", {"phase": "flying"})
    new = lab.new_manager()
    await new.restore()
    assert new.list() == ()
    assert lab.lab.state.load_all("storages") == {}


async def test_a_record_comes_back_as_it_was(lab: StorageBench) -> None:
    await lab.storages.attach(storage(options=("a", "b"), read_only=True))
    lab.storages.acquire("data", "c1")
    record = lab.storages._table["data"]
    assert from_data(to_data(record)) == record


async def test_a_full_run_directory_refuses_and_undoes(
    lab: StorageBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State goes to a tmpfs: when it is full, the mount is taken back."""
    before = lab.traces()
    original = Path.write_text

    def full(path: Path, text: str, **more: object) -> int:
        if '"mounted"' in text:
            raise OSError(28, "No space left on device")
        return original(path, text, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        await refused(lab.storages.attach(storage()), Reason.NO_SPACE)
    assert lab.traces() == before
    assert lab.files.calls[-1] == ("detach", own(lab))


async def test_a_mount_that_mountinfo_does_not_show_is_refused(lab: StorageBench) -> None:
    """mount(2) said yes, and something else lies there."""

    async def elsewhere(call: MountCall, target: str, deadline: object) -> None:
        lab.files.add(FsMount(source="/dev/other", fs_type="ext4"), target)

    lab.files.mount = elsewhere  # type: ignore[method-assign]
    error = await refused(lab.storages.attach(storage()), Reason.MOUNT_REFUSED)
    assert "mountinfo shows ext4 of /dev/other" in error.message
    assert lab.files.mounted == []


async def test_the_table_has_a_limit(lab: StorageBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.handlers.storage.attaching.STORAGE_LIMIT", 0)
    await refused(lab.storages.attach(storage()), Reason.LIMIT_REACHED)


async def test_a_leftover_directory_is_used_again(lab: StorageBench) -> None:
    os.makedirs(own(lab))
    await lab.storages.attach(storage())
    await lab.storages.detach("data")
    assert directories(lab) == []
    shutil.rmtree(lab.roots.storages)
    await lab.storages.attach(storage())


def test_two_classes_for_one_source_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="two storage classes serve BlockSource"):
        ClassTable((BlockStorage(), BlockStorage()))
