"""Failures below the agent: system calls of mkfs and crun that fail, and disks that do.

What was asked for is refused with a reason, nothing is left of it, and the next one succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from innkeeper.image.builder import build
from innkeeper.image.model import BuildOptions
from innkeeper.image.progress import Silent
from innkeeper.shim.client import VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import storages_pb2 as storages
from tests.fakes.plugs import disk_plug
from tests.vm.guest import Guest, booted, create_request, refused
from tests.vm.observer import Observer, observing
from tests.vm.tampering import mapping, remap, shell, tampered
from tests.vm.volumes import MIB, Maker

pytestmark = [pytest.mark.vm, pytest.mark.storage]

SIZE = 16 * MIB
SECTORS = SIZE // 512
FAILED = grpc.StatusCode.FAILED_PRECONDITION
TMPFS = storages.TmpfsSource(size=MIB)


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker.in_place(tmp_path_factory.mktemp("volumes"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(tmp_path_factory: pytest.TempPathFactory, maker: Maker) -> AsyncIterator[Guest]:
    """With strace, dm-flakey, a disk "new" that holds nothing and one "disk" with an ext4."""
    options = BuildOptions(
        out=tmp_path_factory.mktemp("images"), packages=("strace",), modules=("dm_flakey",)
    )
    image = build(options, Silent()).directory
    spec = VmSpec(name="faults", image=f"{image}/", transport="serial", ports=3)
    async with booted(spec) as running:
        await running.host.Plug(disk_plug("new", maker.empty("new", SIZE)))
        await running.host.Plug(disk_plug("disk", maker.volume("ext4", size=SIZE)))
        # What the first attachment makes for good is there.
        await attach(running, tmpfs=TMPFS)
        await detach(running)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def observer(machine: Guest) -> AsyncIterator[Observer]:
    async with observing(machine) as running:
        assert await shell(running, "modprobe dm_flakey") == ""
        yield running


async def attach(guest: Guest, **parts: Any) -> storages.AttachedStorage:
    storage = storages.Storage(id="data", **parts)
    return await guest.storages.Attach(storages.AttachStorageRequest(storage=storage))


async def detach(guest: Guest) -> None:
    answer = await guest.storages.Detach(storages.DetachStorageRequest(id="data"))
    assert list(answer.left) == []


async def tables(guest: Guest) -> object:
    """Who has what, as the agent tells."""
    attached = await guest.devices.List(devices.ListDevicesRequest())
    mounted = await guest.storages.List(storages.ListStoragesRequest())
    return (
        {each.device.id: list(each.users) for each in attached.devices},
        {each.storage.id: list(each.users) for each in mounted.storages},
    )


@pytest.mark.parametrize(
    "inject",
    [
        *(
            "pwrite64:error=EIO:when=1",
            "pwrite64:error=ENOSPC:when=20",
            "pwrite64:error=EIO:when=60+",
        ),
        *("fsync:error=EIO:when=1", "pwrite64:signal=KILL:when=30"),
    ],
)
async def test_a_mkfs_that_fails(machine: Guest, observer: Observer, inject: str) -> None:
    """The disk is as new as before, and the next mkfs finishes."""
    wanted = storages.BlockSource(device_id="new", fs_type="ext4", format_if_empty=True)
    async with tampered(observer, "/usr/sbin/mkfs.ext4") as mkfs:
        before = await observer.census(), await tables(machine)
        await mkfs.fails(inject)
        assert await refused(attach(machine, block=wanted)) == (FAILED, "FORMAT_REFUSED")
        await observer.returns_to(before[0])
        assert await tables(machine) == before[1]
        await mkfs.works()
        mounted = await attach(machine, block=wanted)
        assert mounted.fs_type == "ext4"
        await detach(machine)
        await observer.returns_to(before[0])
        assert await tables(machine) == before[1]
    await shell(observer, "dd if=/dev/zero of=/dev/vdb bs=1M count=16 conv=fsync 2>/dev/null")


@pytest.mark.parametrize(
    "inject",
    [
        *("mount:error=EIO:when=1", "mount:error=ENOSPC:when=4", "mount:error=EBUSY:when=7"),
        *("move_mount:error=EIO:when=1", "pivot_root:error=EBUSY:when=1", "mkdirat:error=ENOSPC"),
    ],
)
async def test_a_container_that_crun_cannot_make(
    machine: Guest, observer: Observer, inject: str
) -> None:
    """Its storages are free again, with no mount of its in anybody's way."""
    async with tampered(observer, "/usr/bin/crun", " create ") as crun:
        await attach(machine, tmpfs=TMPFS)
        before = await observer.census(), await tables(machine)
        await crun.fails(inject)
        mount = containers.StorageMount(storage_id="data", destination="/data")
        request = create_request("box", "exec sleep 999", storages=(mount,))
        created = machine.containers.Create(request, timeout=60)
        assert await refused(created) == (FAILED, "RUNTIME_REFUSED")
        await crun.works()
        await observer.returns_to(before[0])
        assert await tables(machine) == before[1]
        finished = await machine.run("touch /data/x", storages=(mount,))
        assert finished.code == 0
        await detach(machine)


async def test_a_disk_that_cannot_be_read(machine: Guest, observer: Observer) -> None:
    """dm-error: neither mounted nor taken for empty."""
    before = await observer.census(), await tables(machine)
    async with mapping(observer, "broken", SECTORS, "error") as node:
        address = devices.DeviceAddress(path=node)
        plain = storages.BlockSource(address=address, fs_type="ext4")
        assert await refused(attach(machine, block=plain)) == (FAILED, "MOUNT_REFUSED")
        new = storages.BlockSource(address=address, fs_type="ext4", format_if_empty=True)
        assert await refused(attach(machine, block=new)) == (FAILED, "FORMAT_REFUSED")
        assert await tables(machine) == before[1]
    await observer.returns_to(before[0])


async def test_a_disk_that_begins_to_fail(machine: Guest, observer: Observer) -> None:
    """dm-flakey: the file system goes read-only, which is told, and is detached all the same."""
    disk = (await machine.devices.Get(devices.GetDeviceRequest(id="disk"))).nodes[0]
    good, bad = f"{disk.path} 0 3600 0", f"{disk.path} 0 0 3600"
    before = await observer.census(), await tables(machine)
    async with mapping(observer, "flakey", SECTORS, "flakey", good) as node:
        source = storages.BlockSource(address=devices.DeviceAddress(path=node), fs_type="ext4")
        await attach(machine, block=source, options=["errors=remount-ro"])
        mount = containers.StorageMount(storage_id="data", destination="/data")
        assert (await machine.run("echo one >/data/one; sync", storages=(mount,))).code == 0
        assert (await stats(machine)).health == storages.STORAGE_HEALTH_GOOD
        await remap(observer, "flakey", SECTORS, "flakey", bad)
        await machine.run("echo two >/data/two; sync; echo three >/data/three", storages=(mount,))
        told = await stats(machine)
        assert told.health == storages.STORAGE_HEALTH_READ_ONLY
        assert "EXT4-fs" in told.detail
        await detach(machine)
        assert await tables(machine) == before[1]
    await observer.returns_to(before[0])


async def stats(guest: Guest) -> storages.StorageStatsResponse:
    async with asyncio.timeout(60):
        return await guest.storages.Stats(storages.StorageStatsRequest(id="data"))
