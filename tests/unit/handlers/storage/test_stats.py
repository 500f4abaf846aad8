"""Storages.Stats: figures as df(1) shows them, and what the kernel shows of a sick one."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, exhausted, timed_out
from agent.core.sources import BindSource, LocalSource, OverlaySource, StorageDirectory
from agent.handlers.storage.health import Health, StorageStats
from tests.fakes.hotplug import turns
from tests.fakes.storage_operations import (
    SIZE,
    OperationsBench,
    operations_bench,
    refusal,
)

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[OperationsBench]:
    async with operations_bench(tmp_path) as made:
        yield made


async def stats(lab: OperationsBench, storage_id: str = "data") -> StorageStats:
    return await lab.operations.stats(storage_id, Deadline.after(30.0))


async def test_the_figures_are_those_of_df(lab: OperationsBench) -> None:
    """Used is all but what is free; available leaves out what is reserved for root."""
    lab.attach()
    lab.kernel.free = 10 << 20
    told = await stats(lab)
    assert told == StorageStats(
        health=Health.GOOD,
        size=SIZE,
        used=SIZE - (10 << 20),
        available=5 << 20,
        inodes=100,
        inodes_used=30,
        inodes_free=70,
    )


async def test_an_unknown_storage(lab: OperationsBench) -> None:
    with pytest.raises(AgentError) as caught:
        await stats(lab)
    assert caught.value.reason is Reason.UNKNOWN_STORAGE


async def test_one_that_does_not_answer_is_stalled(lab: OperationsBench) -> None:
    lab.attach()
    lab.kernel.errors["statfs"] = [timed_out("statfs of /mnt/data did not come back")]
    told = await stats(lab)
    assert (told.health, told.size) == (Health.STALLED, 0)
    assert "did not come back" in told.detail


async def test_one_that_is_still_stuck_is_not_asked_again(lab: OperationsBench) -> None:
    """Each call on it would cost another worker, until there are none for anybody."""
    lab.kernel.stuck.add(lab.attach())
    assert (await stats(lab)).health is Health.STALLED
    assert lab.kernel.calls == []


async def test_many_who_ask_at_once_share_one_call(lab: OperationsBench) -> None:
    lab.attach()
    lab.kernel.hang["statfs"] = asyncio.Event()
    asking = [asyncio.ensure_future(stats(lab)) for _ in range(20)]
    await turns()
    lab.kernel.hang["statfs"].set()
    assert {one.health for one in await asyncio.gather(*asking)} == {Health.GOOD}
    assert lab.kernel.count("statfs") == 1


async def test_a_server_that_is_gone_is_told_with_its_errno(lab: OperationsBench) -> None:
    point = lab.attach(device="0:50", rest="fuse tag rw")
    lab.kernel.errors["statfs"] = [refusal(errno.ENOTCONN, point)]
    told = await stats(lab)
    assert told.health is Health.STALLED
    assert "ENOTCONN" in told.detail


async def test_no_worker_left_is_no_fault_of_the_storage(lab: OperationsBench) -> None:
    lab.attach()
    lab.kernel.errors["statfs"] = [exhausted("all workers are busy", reason=Reason.LIMIT_REACHED)]
    with pytest.raises(AgentError) as caught:
        await stats(lab)
    assert caught.value.reason is Reason.LIMIT_REACHED


async def test_a_mount_that_is_gone_is_lost(lab: OperationsBench) -> None:
    lab.kernel.unmount(lab.attach())
    assert (await stats(lab)).health is Health.LOST
    assert lab.kernel.calls == []


async def test_a_mount_under_another_one_is_lost(lab: OperationsBench) -> None:
    point = lab.attach()
    lab.kernel.mount("0:99", point, "tmpfs tmpfs rw")
    assert (await stats(lab)).health is Health.LOST


async def test_a_file_system_that_the_kernel_made_read_only(lab: OperationsBench) -> None:
    """mountinfo's words of an ext4 with errors=remount-ro on kernels before 6.12."""
    lab.attach(rest="ext4 /dev/vdb ro,errors=remount-ro")
    lab.kmsg.log("EXT4-fs (vdb): mounted filesystem r/w with ordered data mode.")
    text = "EXT4-fs error (device vdb): ext4_lookup:1855: inode #2: comm ls: deleted inode 12"
    lab.kmsg.log(text, priority=2)
    lab.kmsg.log("EXT4-fs (vdb): Remounting filesystem read-only", priority=2)
    told = await stats(lab)
    assert (told.health, told.size) == (Health.READ_ONLY, SIZE)
    assert "deleted inode 12" in told.detail
    assert "Remounting filesystem read-only" in told.detail


@pytest.mark.parametrize(
    "line",
    [
        # 6.12 and later leave mountinfo as it is.
        "EXT4-fs (vdb): Remounting filesystem read-only",
        "EXT4-fs (vdb): shut down requested (1)",
        "XFS (vdb): User initiated shutdown received.",
        "XFS (vdb): Log I/O Error (0x2) detected at xlog_ioend_work.  Shutting down filesystem.",
        "BTRFS info (device vdb state E): forced readonly",
    ],
)
async def test_one_that_only_the_log_shows(lab: OperationsBench, line: str) -> None:
    lab.attach()
    lab.kmsg.log(line, priority=2)
    told = await stats(lab)
    assert told.health is Health.READ_ONLY
    assert line in told.detail


@pytest.mark.parametrize(
    "line",
    [
        "EXT4-fs (vdb): mounted filesystem 6b0e r/w with ordered data mode. Quota mode: none.",
        "XFS (vdb): Mounting V5 Filesystem 6b0e",
        "BTRFS info (device vdb): first mount of filesystem 6b0e",
    ],
)
async def test_what_the_log_says_of_an_earlier_mount_is_over(
    lab: OperationsBench, line: str
) -> None:
    lab.attach()
    lab.kmsg.log("EXT4-fs (vdb): Remounting filesystem read-only", priority=2)
    lab.kmsg.log(line)
    assert (await stats(lab)).health is Health.GOOD


async def test_another_disks_trouble_is_its_own(lab: OperationsBench) -> None:
    lab.attach()
    lab.kmsg.log("EXT4-fs (vdba): Remounting filesystem read-only", priority=2)
    lab.kmsg.log("XFS (vdc): User initiated shutdown received.", priority=1)
    assert (await stats(lab)).health is Health.GOOD


@pytest.mark.parametrize("word", ["emergency_ro", "shutdown"])
async def test_the_words_of_newer_kernels(lab: OperationsBench, word: str) -> None:
    lab.attach(rest=f"ext4 /dev/vdb rw,{word}")
    told = await stats(lab)
    assert told.health is Health.READ_ONLY
    assert word in told.detail


@pytest.mark.parametrize(
    "more",
    [
        {"read_only": True},
        {"options": ("noatime,ro",)},
        {"options": ("rw", "ro")},
        {"rest": "squashfs /dev/vdb ro"},
        {"rest": "erofs /dev/vdb ro,user_xattr"},
        {"source": BindSource(path="/usr")},
        {"source": LocalSource(storage_id="base")},
        {
            "rest": "overlay overlay ro,lowerdir+=/a",
            "device": "0:60",
            "source": OverlaySource(lower=(StorageDirectory(storage_id="base"),)),
        },
    ],
)
async def test_one_that_was_to_be_read_only_is_well(
    lab: OperationsBench, more: dict[str, object]
) -> None:
    lab.attach(**{"rest": "ext4 /dev/vdb ro", **more})  # type: ignore[arg-type]
    assert (await stats(lab)).health is Health.GOOD


async def test_the_last_word_of_the_options_counts(lab: OperationsBench) -> None:
    lab.attach(rest="ext4 /dev/vdb ro", options=("ro", "rw"))
    assert (await stats(lab)).health is Health.READ_ONLY


async def test_the_disk_of_a_btrfs_is_found_by_its_node(lab: OperationsBench) -> None:
    """Its superblock has an anonymous number."""
    node = lab.sysfs.roots.dev / "vdb"
    node.touch()
    lab.attach(device="0:44", rest=f"btrfs {node} rw,subvolid=5")
    lab.kmsg.log("BTRFS info (device vdb state E): forced readonly")
    assert (await stats(lab)).health is Health.READ_ONLY
