"""File systems on disks: by id, by place, in partitions, proven, encrypted, new, grown, frozen.

One VM for all; each test plugs disks of its own and takes them out again.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from innkeeper.shim.client import ColdDisk, VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import storages_pb2 as storages
from tests.fakes.plugs import plug
from tests.vm.ciphers import decrypted
from tests.vm.guest import Guest, booted, refused
from tests.vm.observer import Observer, observing
from tests.vm.test_containers import added, kill_agent
from tests.vm.volumes import BIG, GREETING, LEAST, MIB, Maker, Verity, flip

pytestmark = [pytest.mark.vm, pytest.mark.storage]

MOUNT = containers.StorageMount(storage_id="data", destination="/data")
BIG_SUM = hashlib.sha256(BIG).hexdigest()
READ = "cat /data/hello && sha256sum </data/big"
WHOLE = f"{GREETING}{BIG_SUM}  -\n"
KEY = b"Sixty-four bytes that nobody may find again wherever they search"
OTHER_KEY = KEY[::-1]
PATIENCE = 60.0
"""Seconds; under emulation ciphers test themselves for some of them at their first use."""


def precondition(reason: str) -> tuple[grpc.StatusCode, str]:
    return grpc.StatusCode.FAILED_PRECONDITION, reason


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker.in_place(tmp_path_factory.mktemp("volumes"))


@pytest.fixture
def own(maker: Maker, tmp_path: Path) -> Maker:
    """The same for images of one test."""
    return Maker(toolbox=maker.toolbox, place=tmp_path)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path, maker: Maker) -> AsyncIterator[Guest]:
    """A disk that is there from the start, which no device stands for, ports, and room
    for persistent memory."""
    spec = VmSpec(
        name="volumes",
        image=f"{image}/",
        transport="serial",
        ports=4,
        max_memory=1 << 30,
        cold_disks=(ColdDisk(file=maker.volume("ext4", "cold"), serial="cold"),),
    )
    async with booted(spec) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def observer(machine: Guest) -> AsyncIterator[Observer]:
    async with observing(machine) as running:
        yield running


@asynccontextmanager
async def disk(guest: Guest, file: Path, name: str = "disk", **more: Any) -> AsyncIterator[None]:
    content = host.DiskFile(file=str(file))
    await guest.host.Plug(plug(name, disk=host.Disk(content=content, **more)))
    try:
        yield
    finally:
        await guest.host.Unplug(host.UnplugRequest(id=name))


def stored(fs_type: str, *, read_only: bool = False, **source: Any) -> storages.Storage:
    """The storage "data" on the device "disk", unless the source says something else."""
    if "address" not in source:
        source = {"device_id": "disk", **source}
    block = storages.BlockSource(fs_type=fs_type, **source)
    return storages.Storage(id="data", read_only=read_only, block=block, timeout_seconds=PATIENCE)


async def attach(guest: Guest, storage: storages.Storage) -> storages.AttachedStorage:
    return await guest.storages.Attach(storages.AttachStorageRequest(storage=storage))


async def detach(guest: Guest) -> None:
    answer = await guest.storages.Detach(storages.DetachStorageRequest(id="data"))
    assert not answer.lazily
    assert list(answer.left) == []


@asynccontextmanager
async def attached(
    guest: Guest, storage: storages.Storage
) -> AsyncIterator[storages.AttachedStorage]:
    answer = await attach(guest, storage)
    try:
        yield answer
    finally:
        await detach(guest)


@asynccontextmanager
async def on_disk(
    guest: Guest, file: Path, storage: storages.Storage
) -> AsyncIterator[storages.AttachedStorage]:
    """Plugged and attached."""
    async with disk(guest, file), attached(guest, storage) as answer:
        yield answer


async def said(guest: Guest, script: str) -> str:
    """Output of a script that must succeed in a container with the storage on /data."""
    finished = await guest.run(script, storages=(MOUNT,))
    assert finished.code == 0, finished
    return finished.text


# Every file system.


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
async def test_what_is_written_is_there_again(machine: Guest, own: Maker, fs_type: str) -> None:
    async with disk(machine, own.volume(fs_type)):
        async with attached(machine, stored(fs_type)) as storage:
            assert storage.mount_point == "/run/innkeeper/storages/data"
            assert storage.fs_type == fs_type
            assert await said(machine, f"{READ}; echo new >/data/new") == WHOLE
        async with attached(machine, stored(fs_type)):
            assert await said(machine, "cat /data/new") == "new\n"


@pytest.mark.parametrize("fs_type", ["erofs", "squashfs", "iso9660"])
async def test_what_can_only_be_read(machine: Guest, own: Maker, fs_type: str) -> None:
    """The kernel says that it is read-only; the file system's module comes by itself."""
    async with on_disk(machine, own.volume(fs_type), stored(fs_type, read_only=True)):
        assert await said(machine, READ) == WHOLE
        finished = await machine.run("echo x >/data/x", storages=(MOUNT,))
        assert b"Read-only file system" in finished.stderr
        stats = await machine.storages.Stats(storages.StorageStatsRequest(id="data"))
        assert stats.health == storages.STORAGE_HEALTH_GOOD
        assert (stats.used > 0, stats.available, stats.inodes_free) == (True, 0, 0)


async def test_the_format_of_small_disks_of_configuration(machine: Guest, own: Maker) -> None:
    """vfat finds its character sets; long names keep their letters."""
    async with on_disk(machine, own.volume("vfat"), stored("vfat")):
        name = "A name longer than eleven, with \u00e9"
        made = f"echo x >'/data/{name}'; cd /data; for each in *; do echo \"$each\"; done"
        assert await said(machine, made) == f"{name}\n"


# Places.


async def test_a_disk_by_its_place(machine: Guest) -> None:
    """No device of that name is attached before, and none is left."""
    address = devices.DeviceAddress(pci_path="05")
    async with attached(machine, stored("ext4", address=address)):
        assert await said(machine, READ) == WHOLE
        assert await _devices(machine) == ["storage.data"]
        request = devices.DetachDeviceRequest(id="storage.data", phase=devices.DETACH_PHASE_PREPARE)
        assert await refused(machine.devices.Detach(request)) == precondition("STILL_IN_USE")
    assert await _devices(machine) == []


async def test_a_place_where_no_disk_comes(machine: Guest) -> None:
    """It is waited for as long as the request says, and nothing is left of it."""
    storage = stored("ext4", address=devices.DeviceAddress(pci_path="0f"))
    storage.timeout_seconds = 0.5
    code, reason = await refused(attach(machine, storage))
    assert (code, reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEVICE_NOT_READY")
    assert await _devices(machine) == []


async def _devices(guest: Guest) -> list[str]:
    listed = await guest.devices.List(devices.ListDevicesRequest())
    return sorted(each.device.id for each in listed.devices)


@pytest.mark.parametrize(
    ("table", "model", "where"),
    [
        ("gpt", host.DISK_MODEL_VIRTIO, {"partition": 2}),
        ("gpt", host.DISK_MODEL_NVME, {"partition_label": "user data"}),
        ("dos", host.DISK_MODEL_NVME, {"partition": 2}),
        ("dos", host.DISK_MODEL_VIRTIO, {"partition": 2}),
    ],
    ids=["gpt-number", "nvme-gpt-label", "nvme-mbr-number", "mbr-number"],
)
async def test_a_partition(
    machine: Guest, own: Maker, table: str, model: int, where: dict[str, Any]
) -> None:
    """The names of its nodes differ: vda2, nvme0n1p2."""
    parts = {"system": own.volume("erofs"), "user data": own.volume("ext4")}
    async with disk(machine, own.partitioned("parted", table, parts), model=model):
        async with attached(machine, stored("ext4", **where)) as storage:
            assert storage.source.endswith("2")
            assert await said(machine, f"{READ}; echo x >/data/x") == WHOLE
        async with attached(machine, stored("erofs", read_only=True, partition=1)):
            assert await said(machine, READ) == WHOLE


@pytest.mark.parametrize("where", [{"partition": 3}, {"partition_label": "date"}])
async def test_a_partition_that_is_not_there(
    machine: Guest, own: Maker, where: dict[str, Any]
) -> None:
    """Never the whole disk instead."""
    parts = {"data": own.volume("ext4")}
    storage = stored("ext4", **where)
    storage.timeout_seconds = 0.5
    async with disk(machine, own.partitioned("parted", "gpt", parts)):
        code, reason = await refused(attach(machine, storage))
        assert (code, reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEVICE_NOT_READY")


# Proof.


def proof(verity: Verity, **more: Any) -> storages.Verity:
    offset = 0 if verity.hashes != verity.data else verity.data_blocks * 4096
    return storages.Verity(root_hash=verity.root_hash, hash_offset=offset, **more)


@pytest.mark.parametrize("fs_type", ["erofs", "ext4"])
async def test_a_change_is_found_when_it_is_read(machine: Guest, own: Maker, fs_type: str) -> None:
    """One bit of a file: an I/O error for that file, and the others are as they were."""
    verity = own.verity(own.volume(fs_type))
    storage = stored(fs_type, read_only=True, verity=proof(verity))
    changed = own.place / "changed.img"
    shutil.copy(verity.data, changed)
    flip(changed)
    async with on_disk(machine, verity.data, storage) as answer:
        assert answer.source.startswith("/dev/")
        assert await said(machine, READ) == WHOLE
    async with on_disk(machine, changed, storage):
        finished = await machine.run(READ, storages=(MOUNT,))
        assert finished.text == GREETING
        assert b"Input/output error" in finished.stderr


async def test_proof_without_superblock_from_another_disk(machine: Guest, own: Maker) -> None:
    verity = own.verity(own.volume("erofs"), separate=True, superblock=False, salt="00c0ffee")
    wanted = proof(
        verity,
        hash_device_id="hashes",
        no_superblock=True,
        salt=verity.salt,
        data_blocks=verity.data_blocks,
    )
    storage = stored("erofs", read_only=True, verity=wanted)
    async with (
        disk(machine, verity.hashes, "hashes"),
        on_disk(machine, verity.data, storage),
    ):
        assert await said(machine, READ) == WHOLE
        for name in ("disk", "hashes"):
            unplug = machine.host.Unplug(host.UnplugRequest(id=name))
            assert await refused(unplug) == precondition("STILL_IN_USE")


async def test_another_root_hash_is_refused(machine: Guest, own: Maker, observer: Observer) -> None:
    """And nothing stays mapped: the disk can go."""
    verity = own.verity(own.volume("erofs"), separate=True)
    wanted = proof(verity, hash_device_id="hashes")
    wanted.root_hash = f"{int(verity.root_hash, 16) ^ 1:064x}"
    storage = stored("erofs", read_only=True, verity=wanted)
    async with disk(machine, verity.data), disk(machine, verity.hashes, "hashes"):
        code, reason = await refused(attach(machine, storage))
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert reason in {"MAPPING_REFUSED", "MOUNT_REFUSED"}
    assert await _mapped(machine) == []


async def _mapped(guest: Guest) -> list[str]:
    return [name for name in (await guest.probe("ls /sys/block")).split() if "dm-" in name]


# Secrecy.


def encrypted(key: bytes, **more: Any) -> storages.Storage:
    crypt = storages.Crypt(key=key, **more)
    return stored("ext4", format_if_empty=True, crypt=crypt)


async def test_a_new_disk_is_encrypted_and_only_its_key_opens_it(
    machine: Guest, own: Maker
) -> None:
    """Another key makes noise of it, which must not look like an empty disk."""
    file = own.empty("secret", 16 * MIB)
    async with disk(machine, file):
        async with attached(machine, encrypted(KEY)):
            await said(machine, f"printf '{GREETING}' >/data/hello; sync")
        before = hashlib.sha256(file.read_bytes()).digest()
        assert await refused(attach(machine, encrypted(OTHER_KEY))) == (
            precondition("FORMAT_REFUSED")
        )
        assert hashlib.sha256(file.read_bytes()).digest() == before
        wrong = stored("ext4", crypt=storages.Crypt(key=OTHER_KEY))
        assert await refused(attach(machine, wrong)) == precondition("MOUNT_REFUSED")
        plain = stored("ext4", format_if_empty=False)
        assert await refused(attach(machine, plain)) == precondition("MOUNT_REFUSED")
        async with attached(machine, encrypted(KEY)):
            assert await said(machine, "cat /data/hello") == GREETING
    assert await _mapped(machine) == []
    content = file.read_bytes()
    assert GREETING.encode() not in content
    # ext4's magic number, from outside: fs/ext4/ext4.h, s_magic at 1024 + 0x38.
    assert decrypted(KEY, content[1024:1536], first_sector=2)[0x38:0x3A] == b"\x53\xef"


async def test_the_key_is_nowhere(machine: Guest, own: Maker) -> None:
    """It was in the request, and is in no answer, file, log, or command line."""
    async with disk(machine, own.empty("secret", 16 * MIB)):
        async with attached(machine, encrypted(KEY, sector_size=4096)):
            again = await attach(machine, encrypted(b"", sector_size=4096))
            assert again.storage.block.crypt.key == b""
            await kill_agent(machine)
            listed = await machine.storages.List(storages.ListStoragesRequest())
            assert [each.storage.block.crypt.key for each in listed.storages] == [b""]
            async with observing(machine) as observer:
                for spelling in (KEY.decode(), KEY.hex(), base64.b64encode(KEY).decode()):
                    await _is_nowhere(machine, observer, spelling)
        # The mapping was taken over, and went with the storage.
        assert await _mapped(machine) == []


async def _is_nowhere(guest: Guest, observer: Observer, secret: str) -> None:
    # In two parts, so that the search does not find itself.
    words = f"w='{secret[:16]}'; w=\"$w\"'{secret[16:]}'"
    # Not into pipes, and not into the roots of containers, which have a /proc.
    files = 'find /guest/run/innkeeper -xdev -type f -exec grep -lF "$w" {} +'
    started = 'grep -lF "$w" /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null'
    look = f'dmesg | grep -cF "$w"; {files}; {started}'
    assert (await observer.ask(f"{words}; {look}")).split() == ["0"]
    for log in guest.vm.directory.glob("*.log*"):
        assert secret not in log.read_text(errors="replace"), log


# New disks.


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
async def test_an_empty_disk_gets_its_file_system_once(
    machine: Guest, own: Maker, fs_type: str
) -> None:
    storage = stored(fs_type, format_if_empty=True)
    async with disk(machine, own.empty("new", LEAST[fs_type])):
        async with attached(machine, storage):
            await said(machine, "echo kept >/data/file")
        async with attached(machine, storage):
            assert await said(machine, "cat /data/file") == "kept\n"


@pytest.mark.parametrize("held", ["squashfs", "partitions"])
async def test_what_a_disk_holds_is_not_written_over(machine: Guest, own: Maker, held: str) -> None:
    file = own.volume("squashfs")
    if held == "partitions":
        file = own.partitioned("parted", "gpt", {"": file})
    before = file.read_bytes()
    async with disk(machine, file):
        refusal = await refused(attach(machine, stored("ext4", format_if_empty=True)))
        assert refusal == precondition("FORMAT_REFUSED")
    assert file.read_bytes() == before


# While it is used.


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
async def test_it_grows_with_its_disk(machine: Guest, own: Maker, fs_type: str) -> None:
    """A container that has it sees the room at once, and keeps its files."""
    least = LEAST[fs_type]
    async with on_disk(machine, own.volume(fs_type), stored(fs_type)):
        await machine.host.ResizeDisk(host.ResizeDiskRequest(id="disk", size=2 * least))
        answer = await machine.storages.Resize(storages.ResizeStorageRequest(id="data"))
        assert answer.device_size == 2 * least
        assert answer.before <= least
        assert answer.size > 1.5 * least
        assert await said(machine, READ) == WHOLE
        free = await said(machine, "df -k /data | tail -1")
        assert int(free.split()[1]) * 1024 == answer.size
        again = await machine.storages.Resize(storages.ResizeStorageRequest(id="data"))
        assert (again.before, again.size) == (answer.size, answer.size)


async def test_an_encrypted_one_grows_when_its_key_is_given_again(
    machine: Guest, own: Maker
) -> None:
    """What is mapped keeps the size that it was mapped with: the key is not there any more."""
    storage = encrypted(KEY)
    resize = storages.ResizeStorageRequest(id="data")
    async with disk(machine, own.empty("secret", 16 * MIB)):
        async with attached(machine, storage):
            await said(machine, "echo kept >/data/file")
            await machine.host.ResizeDisk(host.ResizeDiskRequest(id="disk", size=32 * MIB))
            refusal = await refused(machine.storages.Resize(resize))
            assert refusal == precondition("RESIZE_REFUSED")
        async with attached(machine, storage):
            answer = await machine.storages.Resize(resize)
            assert answer.device_size == 32 * MIB
            assert answer.size > 1.5 * answer.before
            assert await said(machine, "cat /data/file") == "kept\n"


async def test_what_is_read_only_does_not_grow(machine: Guest, own: Maker) -> None:
    async with on_disk(machine, own.volume("erofs"), stored("erofs", read_only=True)):
        resize = machine.storages.Resize(storages.ResizeStorageRequest(id="data"))
        assert await refused(resize) == precondition("RESIZE_REFUSED")


async def test_what_is_removed_is_given_back_to_the_host(machine: Guest, own: Maker) -> None:
    """The image on the host is sparse again."""
    file = own.volume("ext4", size=64 * MIB)
    async with on_disk(machine, file, stored("ext4")):
        await said(machine, "dd if=/data/big of=/data/more bs=1M; sync")
        write = "for n in 1 2 3 4 5 6 7 8; do cat /data/big /data/big >/data/$n; done; sync"
        await said(machine, write)
        full = _allocated(file)
        await said(machine, "rm /data/[0-9]; sync")
        answer = await machine.storages.Trim(storages.TrimStorageRequest(id="data"))
        assert answer.trimmed >= 16 * MIB
        assert _allocated(file) <= full - 12 * MIB


def _allocated(file: Path) -> int:
    return file.stat().st_blocks * 512


async def test_a_frozen_storage_waits_with_its_writers(
    machine: Guest, own: Maker, observer: Observer
) -> None:
    """They go on when it is thawed: by the host, or at the deadline without anybody."""
    async with on_disk(machine, own.volume("ext4"), stored("ext4")):
        box = await machine.start("while :; do sleep 1; done", storages=(MOUNT,))
        for seconds, thawed in ((60.0, True), (2.0, False)):
            freeze = storages.FreezeStorageRequest(id="data", timeout_seconds=seconds)
            await machine.storages.Freeze(freeze)
            writer = await added(machine, box, "exec tee /data/late </data/hello")
            if thawed:
                await _until_blocked(observer)
                assert (await _get(machine)).frozen
                await machine.storages.Thaw(storages.ThawStorageRequest(id="data"))
            assert (await machine.follow(writer)).code == 0
            assert not (await _get(machine)).frozen
        await machine.remove(box)


async def test_a_freeze_outlives_no_agent(machine: Guest, own: Maker) -> None:
    """Killed while it is frozen: the next one thaws it at the deadline."""
    async with on_disk(machine, own.volume("xfs"), stored("xfs")):
        box = await machine.start("while :; do sleep 1; done", storages=(MOUNT,))
        freeze = storages.FreezeStorageRequest(id="data", timeout_seconds=5)
        await machine.storages.Freeze(freeze)
        await kill_agent(machine)
        writer = await added(machine, box, "exec tee /data/late </data/hello")
        assert (await machine.follow(writer)).code == 0
        await machine.remove(box)


async def _get(guest: Guest) -> storages.AttachedStorage:
    return await guest.storages.Get(storages.GetStorageRequest(id="data"))


async def _until_blocked(observer: Observer) -> None:
    """The writer sleeps in the kernel and can't be woken (D): it waits for the thaw."""
    async with asyncio.timeout(PATIENCE):
        look = "ps -o stat,args | grep -q '^D.*[t]ee /data/late'"
        await observer.ask(f"until {look}; do usleep 100000; done")


async def test_persistent_memory_without_a_page_cache(machine: Guest, own: Maker) -> None:
    """What is written is in the host's file. It stays: nobody can take it out again."""
    file = own.volume("ext4", size=32 * MIB)
    await machine.host.Plug(plug("memory", pmem=host.Pmem(file=str(file))))
    source = storages.PmemSource(device_id="memory", fs_type="ext4", dax=True)
    async with attached(machine, storages.Storage(id="data", pmem=source)):
        assert await said(machine, READ) == WHOLE
        mounted = await said(machine, "echo proof of dax >/data/x; grep ' /data ' /proc/mounts")
        assert "dax=always" in mounted
    assert b"proof of dax" in file.read_bytes()
