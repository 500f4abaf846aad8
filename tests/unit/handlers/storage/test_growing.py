"""Storages.Resize: when a disk is bigger, how it is found out, what cannot grow."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.handlers.storage.growing import ResizedStorage
from tests.fakes.hotplug import turns
from tests.fakes.storage_operations import SIZE, OperationsBench, operations_bench, refusal

pytestmark = [pytest.mark.unit, pytest.mark.storage]

BIGGER = SIZE * 4


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[OperationsBench]:
    async with operations_bench(tmp_path) as made:
        yield made


async def resize(lab: OperationsBench) -> ResizedStorage:
    return await lab.operations.resize("data", Deadline.after(30.0))


async def refused(lab: OperationsBench, reason: Reason = Reason.RESIZE_REFUSED) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await resize(lab)
    assert caught.value.reason is reason, caught.value
    return caught.value


async def test_a_disk_that_is_bigger_already(lab: OperationsBench) -> None:
    lab.attach()
    lab.resize_disk(BIGGER)
    resized = await resize(lab)
    assert resized == ResizedStorage(before=SIZE, size=BIGGER, device_size=BIGGER)
    assert lab.records.visits == [("data", "Storages.Resize")]


async def test_a_disk_that_did_not_grow_is_no_error(lab: OperationsBench) -> None:
    lab.attach()
    assert await resize(lab) == ResizedStorage(before=SIZE, size=SIZE, device_size=SIZE)


async def test_news_of_the_size_that_are_still_on_their_way(lab: OperationsBench) -> None:
    """The host answers its own resize before the guest's interrupt has come."""
    lab.operations = lab.new_operations(patience=30.0)
    lab.attach()
    asking = asyncio.ensure_future(resize(lab))
    while lab.kernel.count("grow") == 0:
        await turns(1)
    await turns()
    assert not asking.done()
    lab.resize_disk(BIGGER)
    assert (await asking).size == BIGGER


async def test_an_event_that_changes_nothing_is_not_taken_for_growth(lab: OperationsBench) -> None:
    lab.operations = lab.new_operations(patience=30.0)
    lab.attach()
    asking = asyncio.ensure_future(resize(lab))
    while lab.kernel.count("grow") == 0:
        await turns(1)
    lab.guest.announce("change", lab.disk)
    await turns()
    assert lab.kernel.count("grow") == 1
    lab.resize_disk(BIGGER)
    assert (await asking).size == BIGGER


@pytest.mark.parametrize(
    ("subsystem", "file"),
    [
        ("scsi", "rescan"),
        ("nvme", "rescan_controller"),
        ("nvme-subsystem", "nvme3/rescan_controller"),
    ],
)
async def test_scsi_and_nvme_disks_are_asked_to_look(
    lab: OperationsBench, subsystem: str, file: str
) -> None:
    device = (lab.disk / "device").resolve()
    lab.sysfs.link(device / "subsystem", f"../../../../bus/{subsystem}")
    lab.sysfs.write(device / file, "")
    lab.guest.files.effect = lambda _path, _text: lab.resize_disk(BIGGER)
    lab.attach()
    assert (await resize(lab)).size == BIGGER
    assert lab.guest.files.writes == [(lab.disk / "device" / file, "1\n")]


async def test_a_virtio_disk_is_not_asked(lab: OperationsBench) -> None:
    """A PCI function above it has a `rescan` as well, which is for buses."""
    lab.sysfs.write((lab.disk / "device").resolve() / "rescan", "")
    lab.attach()
    await resize(lab)
    assert lab.guest.files.writes == []


async def test_a_disk_that_refuses_to_look(lab: OperationsBench) -> None:
    device = (lab.disk / "device").resolve()
    lab.sysfs.link(device / "subsystem", "../../../../bus/scsi")
    lab.sysfs.write(device / "rescan", "")
    lab.guest.files.refusal = OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    lab.attach()
    error = await refused(lab)
    assert error.fields["errno"] == "ENODEV"


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
async def test_the_file_systems_that_grow(lab: OperationsBench, fs_type: str) -> None:
    lab.attach(rest=f"{fs_type} /dev/vdb rw")
    lab.resize_disk(BIGGER)
    assert (await resize(lab)).size == BIGGER


@pytest.mark.parametrize("fs_type", ["erofs", "squashfs", "vfat", "tmpfs", "overlay", "virtiofs"])
async def test_the_others_do_not(lab: OperationsBench, fs_type: str) -> None:
    lab.attach(rest=f"{fs_type} /dev/vdb rw")
    error = await refused(lab)
    assert fs_type in error.message
    assert lab.kernel.calls == []


@pytest.mark.parametrize(
    "rest", ["ext4 /dev/vdb ro", "ext4 /dev/vdb ro,errors=remount-ro", "xfs /dev/vdb ro"]
)
async def test_a_read_only_storage_does_not_grow(lab: OperationsBench, rest: str) -> None:
    lab.attach(rest=rest, read_only=True)
    assert "read-only" in (await refused(lab)).message


async def test_a_partition_is_named(lab: OperationsBench) -> None:
    lab.sysfs.write(lab.disk / "vdb1/partition", "1")
    lab.sysfs.link(lab.sysfs.sys / "dev/block/254:17", str(lab.disk / "vdb1"))
    lab.attach(device="254:17", rest="ext4 /dev/vdb1 rw")
    error = await refused(lab)
    assert "partition vdb1" in error.message
    assert "table" in (error.hint or "")


async def test_a_mapped_device_keeps_its_size(lab: OperationsBench) -> None:
    mapped = lab.sysfs.sys / "devices/virtual/block/dm-0"
    lab.sysfs.write(mapped / "dm/uuid", "CRYPT-PLAIN-x")
    lab.sysfs.write(mapped / "size", str(SIZE // 512))
    lab.sysfs.link(lab.sysfs.sys / "dev/block/253:0", str(mapped))
    lab.attach(device="253:0", rest="ext4 /dev/dm-0 rw")
    error = await refused(lab)
    assert "mapped device dm-0" in error.message
    assert "attach it again" in (error.hint or "")


async def test_a_source_that_is_no_block_device(lab: OperationsBench) -> None:
    lab.attach(device="0:77", rest="btrfs /dev/gone rw")
    assert "/dev/gone" in (await refused(lab)).message


async def test_the_kernels_refusal_comes_with_its_own_words(lab: OperationsBench) -> None:
    """The errno alone says little: ext4 puts the reason into the log."""
    point = lab.attach()
    lab.resize_disk(BIGGER)
    why = "There are errors in the filesystem, so online resizing is not allowed"
    lab.kmsg.log(f"EXT4-fs warning (device vdb): ext4_resize_begin:83: {why}", priority=4)
    lab.kernel.errors["grow"] = [refusal(errno.EPERM, point)]
    error = await refused(lab)
    assert error.fields["errno"] == "EPERM"
    assert why in (error.hint or "")


async def test_a_frozen_storage_is_thawed_first(lab: OperationsBench) -> None:
    """The ioctl would wait for the thaw."""
    lab.attach()
    await lab.operations.freeze("data", None, Deadline.after(30.0))
    error = await refused(lab, Reason.WRONG_STATE)
    assert "frozen" in error.message


async def test_one_that_is_being_detached_is_left_alone(lab: OperationsBench) -> None:
    lab.attach()
    lab.records.leaving.add("data")
    await refused(lab, Reason.WRONG_STATE)
    assert lab.kernel.calls == []


async def test_a_small_btrfs_takes_no_small_size(lab: OperationsBench) -> None:
    """btrfs_ioctl_resize refuses what is below 256 MiB with a bare EINVAL."""
    lab.sysfs.write(lab.disk / "size", str((200 << 20) // 512))
    point = lab.attach(rest="btrfs /dev/vdb rw")
    lab.kernel.errors["grow"] = [refusal(errno.EINVAL, point)]
    assert str(256 << 20) in ((await refused(lab)).hint or "")
