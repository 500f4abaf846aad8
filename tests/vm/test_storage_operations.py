"""Operations on mounted storages in a real guest: disks of each bus grow, freezes end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from innkeeper.shim.guest_disk import make_disk
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import storages_pb2 as storages
from tests.fakes.plugs import disk_plug, plug
from tests.vm.guest import PROBE, Guest

pytestmark = [pytest.mark.vm, pytest.mark.storage]

MIB = 1 << 20
SIZE = 32 * MIB
FROZEN_SECONDS = 20.0
"""Longer than an agent takes to come back under emulation."""


def image(tmp_path: Path) -> host.DiskFile:
    """An ext4 of SIZE bytes."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "kept").write_text("kept")
    return host.DiskFile(file=str(make_disk(tree, tmp_path / "disk.img", size=SIZE).file))


@asynccontextmanager
async def attached(guest: Guest, name: str, **more: Any) -> AsyncIterator[str]:
    """The disk of that name as a storage; where it is mounted."""
    block = storages.BlockSource(device_id=name, fs_type="ext4")
    storage = storages.Storage(id=name, block=block, **more)
    request = storages.AttachStorageRequest(storage=storage)
    try:
        yield (await guest.storages.Attach(request)).mount_point
    finally:
        await guest.storages.Detach(storages.DetachStorageRequest(id=name))


@asynccontextmanager
async def mounted(guest: Guest, tmp_path: Path, name: str, **more: Any) -> AsyncIterator[str]:
    """The same with a virtio disk of its own."""
    await guest.host.Plug(disk_plug(name, image(tmp_path).file))
    try:
        async with attached(guest, name, **more) as point:
            yield point
    finally:
        await guest.host.Unplug(host.UnplugRequest(id=name))


async def doubled(guest: Guest, name: str) -> None:
    before = await guest.storages.Stats(storages.StorageStatsRequest(id=name))
    await guest.host.ResizeDisk(host.ResizeDiskRequest(id=name, size=2 * SIZE))
    resized = await guest.storages.Resize(storages.ResizeStorageRequest(id=name), timeout=60)
    assert resized.device_size == 2 * SIZE
    assert resized.before == before.size
    assert resized.size > before.size + SIZE * 0.8
    after = await guest.storages.Stats(storages.StorageStatsRequest(id=name))
    assert (after.size, after.health) == (resized.size, storages.STORAGE_HEALTH_GOOD)
    again = await guest.storages.Resize(storages.ResizeStorageRequest(id=name), timeout=60)
    assert (again.before, again.size) == (resized.size, resized.size)


async def test_a_virtio_disk_tells_its_new_size_by_itself(guest: Guest, tmp_path: Path) -> None:
    async with mounted(guest, tmp_path, "grows"):
        await doubled(guest, "grows")


async def test_a_scsi_disk_is_asked(guest: Guest, tmp_path: Path) -> None:
    """QEMU can grow disks on these two buses only: NVMe's is in tests/unit."""
    await guest.host.Plug(plug("bus", scsi_controller=host.ScsiController()))
    try:
        disk = host.ScsiDisk(content=image(tmp_path), controller="bus", target=1, lun=2)
        await guest.host.Plug(plug("scsi", scsi_disk=disk))
        try:
            async with attached(guest, "scsi"):
                await doubled(guest, "scsi")
        finally:
            await guest.host.Unplug(host.UnplugRequest(id="scsi"))
    finally:
        await guest.host.Unplug(host.UnplugRequest(id="bus"))


async def test_trimmed_blocks_come_back_to_the_hosts_disk(guest: Guest, tmp_path: Path) -> None:
    async with mounted(guest, tmp_path, "trims") as point:
        await guest.probe(
            f"dd if=/dev/zero of=/guest{point}/big bs=1M count=8; sync; rm /guest{point}/big; sync"
        )
        file = tmp_path / "disk.img"
        before = file.stat().st_blocks * 512
        assert before > 8 * MIB
        answer = await guest.storages.Trim(storages.TrimStorageRequest(id="trims"))
        assert answer.trimmed >= 8 * MIB
        assert file.stat().st_blocks * 512 < before - 6 * MIB


async def test_a_freeze_outlives_the_agent_and_ends(guest: Guest, tmp_path: Path) -> None:
    """The new agent knows of it, and thaws when its time is over: a writer then goes on."""
    get = storages.GetStorageRequest(id="frozen")
    async with mounted(guest, tmp_path, "frozen"):
        freeze = storages.FreezeStorageRequest(id="frozen", timeout_seconds=FROZEN_SECONDS)
        await guest.storages.Freeze(freeze)
        agent = (await guest.describe()).agent_pid
        killer = await guest.start(f"kill -9 {agent}", **PROBE)
        await guest.wait(killer)
        assert (await guest.describe()).agent_pid != agent
        assert (await guest.storages.Get(get)).frozen
        finished = await guest.run(
            "echo written > /data/file; cat /data/file",
            storages=(containers.StorageMount(storage_id="frozen", destination="/data"),),
        )
        assert (finished.code, finished.text) == (0, "written\n")
        assert not (await guest.storages.Get(get)).frozen
        await guest.remove(killer)


async def test_a_frozen_storage_is_detached_thawed(guest: Guest, tmp_path: Path) -> None:
    """Else the superblock stayed in the kernel, frozen, and held the disk for ever."""
    await guest.host.Plug(disk_plug("cold", image(tmp_path).file))
    try:
        async with attached(guest, "cold"):
            await guest.storages.Freeze(storages.FreezeStorageRequest(id="cold"))
        async with attached(guest, "cold") as point:
            assert await guest.probe(f"echo new > /guest{point}/new; cat /guest{point}/new")
    finally:
        await guest.host.Unplug(host.UnplugRequest(id="cold"))


async def test_an_error_on_the_disk_shows_in_the_stats(guest: Guest, tmp_path: Path) -> None:
    async with mounted(guest, tmp_path, "sick", options=["errors=remount-ro"]) as point:
        disk = f"$(basename $(grep ' {point} ' /proc/1/mounts | cut -d' ' -f1))"
        await guest.probe(f"echo boom > /sys/fs/ext4/{disk}/trigger_fs_error")
        stats = await guest.storages.Stats(storages.StorageStatsRequest(id="sick"))
    assert stats.health == storages.STORAGE_HEALTH_READ_ONLY
    assert "boom" in stats.detail


async def test_a_group_owns_what_containers_make(guest: Guest, tmp_path: Path) -> None:
    async with mounted(guest, tmp_path, "shared", fs_group=123):
        finished = await guest.run(
            "cd /data; umask 022; : > new; stat -c '%g %a' . kept new",
            process={"user": {"uid": 1001, "gid": 1001, "additionalGids": [123]}},
            storages=(containers.StorageMount(storage_id="shared", destination="/data"),),
        )
    assert finished.text.splitlines() == ["123 2775", "123 664", "123 644"], finished
