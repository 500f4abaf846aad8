"""Storages between containers, layers, processes and agents: who holds what, and what is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from innkeeper.shim.client import VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import storages_pb2 as storages
from tests.fakes.plugs import disk_plug
from tests.vm.behind import taken_away
from tests.vm.guest import DEFAULT_ROOT, PROBE, Guest, booted, create_request, reason, refused
from tests.vm.observer import Observer, observing
from tests.vm.test_containers import kill_agent, ref, signal
from tests.vm.volumes import GREETING, LEAST, MIB, Maker

pytestmark = [pytest.mark.vm, pytest.mark.storage]

POINT = "/run/innkeeper/storages"
IDLE = "while :; do sleep 1; done"
STILL_IN_USE = (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
MOUNT_REFUSED = (grpc.StatusCode.FAILED_PRECONDITION, "MOUNT_REFUSED")
UNKNOWN_STORAGE = (grpc.StatusCode.NOT_FOUND, "UNKNOWN_STORAGE")
PATIENCE = 60.0
"""Seconds; under emulation ciphers test themselves for some of them at their first use."""
EXT4 = storages.BlockSource(device_id="disk", fs_type="ext4")


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker.in_place(tmp_path_factory.mktemp("volumes"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path, maker: Maker) -> AsyncIterator[Guest]:
    """With a disk "disk" that holds an ext4."""
    file = maker.volume("ext4")
    spec = VmSpec(name="life", image=f"{image}/", transport="serial", ports=3)
    async with booted(spec) as running:
        await running.host.Plug(disk_plug("disk", file))
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def observer(machine: Guest) -> AsyncIterator[Observer]:
    async with observing(machine) as running:
        yield running


def asked(name: str, **parts: Any) -> storages.AttachStorageRequest:
    storage = storages.Storage(id=name, timeout_seconds=PATIENCE, **parts)
    return storages.AttachStorageRequest(storage=storage)


def mount(name: str) -> containers.StorageMount:
    return containers.StorageMount(storage_id=name, destination=f"/{name}")


def inside(name: str, path: str = "") -> storages.StorageDirectory:
    return storages.StorageDirectory(storage_id=name, path=path)


async def attach(guest: Guest, name: str, **parts: Any) -> storages.AttachedStorage:
    return await guest.storages.Attach(asked(name, **parts))


async def detach(guest: Guest, name: str) -> storages.DetachStorageResponse:
    return await guest.storages.Detach(storages.DetachStorageRequest(id=name))


async def get(guest: Guest, name: str) -> storages.AttachedStorage:
    return await guest.storages.Get(storages.GetStorageRequest(id=name))


@asynccontextmanager
async def attached(guest: Guest, name: str, **parts: Any) -> AsyncIterator[None]:
    await attach(guest, name, **parts)
    try:
        yield
    finally:
        answer = await detach(guest, name)
        assert list(answer.left) == []


@asynccontextmanager
async def running(guest: Guest, *names: str, **parts: Any) -> AsyncIterator[str]:
    """A container that has these storages, for the length of a block."""
    mounts = tuple(mount(name) for name in names)
    container = await guest.start(parts.pop("script", IDLE), storages=mounts, **parts)
    try:
        yield container
    finally:
        await guest.remove(container)


async def mounts_below(observer: Observer) -> list[str]:
    """Where something is mounted in the guest below the storages' directory, in order."""
    return (await observer.ask(f"grep -o ' {POINT}/[^ ]* ' /proc/1/mountinfo")).split()


async def users_of_disk(guest: Guest) -> list[str]:
    device = await guest.devices.Get(devices.GetDeviceRequest(id="disk"))
    return list(device.users)


# Attempts that fail.


async def test_what_failed_is_as_if_never_asked(machine: Guest, observer: Observer) -> None:
    """The retry really mounts, and counts once (case 46)."""
    wrong = storages.BlockSource(device_id="disk", fs_type="xfs")
    point = f"{POINT}/place"
    assert await refused(attach(machine, "data", mount_point=point, block=wrong)) == MOUNT_REFUSED
    assert await users_of_disk(machine) == []
    assert await observer.ask(f"ls /guest{POINT}") == ""
    for _ in range(2):
        await attach(machine, "data", mount_point=point, block=EXT4)
        async with running(machine, "data"):
            assert await mounts_below(observer) == [point]
        await detach(machine, "data")
        assert await mounts_below(observer) == []


async def test_the_third_of_three_is_missing(machine: Guest, observer: Observer) -> None:
    """The other two are let go of; whoever asked is told which one it was (case 49)."""
    parts = {"tmpfs": storages.TmpfsSource(size=MIB)}
    async with attached(machine, "one", **parts), attached(machine, "two", **parts):
        names = ("one", "two", "three")
        request = create_request("box", IDLE, storages=tuple(mount(name) for name in names))
        with pytest.raises(aio.AioRpcError, match="three") as caught:
            await machine.containers.Create(request)
        assert (caught.value.code(), reason(caught.value)) == UNKNOWN_STORAGE
        layers = storages.OverlaySource(lower=[inside(name) for name in names])
        with pytest.raises(aio.AioRpcError, match="three") as caught:
            await attach(machine, "layers", overlay=layers)
        assert (caught.value.code(), reason(caught.value)) == UNKNOWN_STORAGE
        for name in ("one", "two"):
            storage = await get(machine, name)
            assert (list(storage.users), list(storage.used_by)) == ([], [])
        assert await mounts_below(observer) == [f"{POINT}/one", f"{POINT}/two"]
    assert await mounts_below(observer) == []


# Who holds it.


async def test_it_stays_for_the_last_of_three_containers(machine: Guest) -> None:
    """Each is counted by name, whichever goes first (case 47)."""
    await attach(machine, "data", block=EXT4)
    boxes = {await machine.start(IDLE, storages=(mount("data"),)) for _ in range(3)}
    first, second, third = sorted(boxes)
    for name in (second, first, third):
        assert set((await get(machine, "data")).users) == boxes
        assert await refused(detach(machine, "data")) == STILL_IN_USE
        await machine.remove(name)
        boxes.remove(name)
    await detach(machine, "data")
    assert await refused(get(machine, "data")) == UNKNOWN_STORAGE


async def test_a_layer_under_a_running_container(machine: Guest, observer: Observer) -> None:
    """Asked to take the lower one away (case 52): the upper one is named, then the container."""
    overlay = storages.OverlaySource(lower=[inside("base")], upper=inside("top"))
    async with AsyncExitStack() as stack:
        base = attached(machine, "base", read_only=True, block=EXT4)
        await stack.enter_async_context(base)
        top = attached(machine, "top", tmpfs=storages.TmpfsSource(size=4 * MIB))
        await stack.enter_async_context(top)
        await stack.enter_async_context(attached(machine, "layers", overlay=overlay))
        for name in ("base", "top"):
            assert list((await get(machine, name)).used_by) == ["layers"]
        async with running(machine, "layers", script="echo new >/layers/hello; exec sleep 999"):
            for name, user in (("base", "layers"), ("top", "layers"), ("layers", "c")):
                with pytest.raises(aio.AioRpcError, match=user) as caught:
                    await detach(machine, name)
                assert (caught.value.code(), reason(caught.value)) == STILL_IN_USE
        finished = await machine.run(
            "cat /layers/hello /base/hello", storages=(mount("layers"), mount("base"))
        )
        assert finished.text == f"new\n{GREETING}"
    assert await mounts_below(observer) == []
    assert await users_of_disk(machine) == []


async def test_a_container_lives_on_layers(machine: Guest) -> None:
    """Its root is a storage: what it writes is in the upper layer, and stays there."""
    system = storages.BindSource(path=DEFAULT_ROOT)
    overlay = storages.OverlaySource(lower=[inside("system")], upper=inside("data", "roots/one"))
    async with AsyncExitStack() as stack:
        for name, parts in (
            ("system", {"read_only": True, "bind": system}),
            ("data", {"block": EXT4}),
            ("root", {"overlay": overlay}),
        ):
            await stack.enter_async_context(attached(machine, name, **parts))
        request = create_request("layered", "echo $$ >/etc/written; ls /bin/busybox")
        request.ClearField("rootfs")
        request.storage_id, request.writable_layer = "root", False
        await machine.containers.Create(request)
        await machine.containers.Start(containers.StartContainerRequest(id="layered"))
        finished = await machine.follow(ref("layered"))
        assert (finished.code, finished.text) == (0, "/bin/busybox\n"), finished
        assert await refused(detach(machine, "root")) == STILL_IN_USE
        await machine.remove("layered")
        look = "cat /data/roots/one/etc/written; ls -d /data/roots/*"
        found = await machine.run(look, storages=(mount("data"),))
        assert found.text == "1\n/data/roots/one\n/data/roots/work\n"


async def test_a_process_in_the_way_is_named(machine: Guest, observer: Observer) -> None:
    """One that no container stands for: an operator's. The storage stays, and can go later."""
    await attach(machine, "data", block=EXT4)
    begin = f"nsenter -t 1 -m -- sh -c 'cd {POINT}/data; exec sleep 999' & echo $!"
    pid = (await observer.ask(begin)).strip()
    arrived = f'[ "$(readlink /proc/{pid}/cwd)" = {POINT}/data ]'
    await observer.ask(f"until {arrived}; do usleep 50000; done")
    with pytest.raises(aio.AioRpcError) as caught:
        await detach(machine, "data")
    assert reason(caught.value) == "UNMOUNT_REFUSED"
    said = caught.value.details() or ""
    assert pid in said
    assert "sleep" in said
    assert await mounts_below(observer) == [f"{POINT}/data"]
    await observer.ask(f"kill {pid}; wait {pid}")
    await detach(machine, "data")
    assert await mounts_below(observer) == []


async def test_a_mount_point_that_is_not_empty_stays(machine: Guest, observer: Observer) -> None:
    """It is told of, and nothing in it is removed (case 51); the storage is gone all the same."""
    await attach(machine, "data", block=EXT4)
    # The directory below the mount, seen beside it.
    beside = "mkdir -p /guest/run/beside; mount -o bind /guest/run/innkeeper/storages"
    left = await observer.ask(
        f"{beside} /guest/run/beside && echo kept >/guest/run/beside/data/file; echo $?;"
        " umount /guest/run/beside; rmdir /guest/run/beside"
    )
    assert left.split()[0] == "0", left
    answer = await detach(machine, "data")
    (why,) = answer.left
    assert f"{POINT}/data" in why
    assert await mounts_below(observer) == []
    assert await observer.ask(f"cat /guest{POINT}/data/file") == "kept\n"
    await observer.ask(f"rm -r /guest{POINT}/data")
    async with attached(machine, "data", block=EXT4):
        assert await mounts_below(observer) == [f"{POINT}/data"]


# Disks that go, and agents that die.


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
async def test_the_host_takes_the_disk_of_a_mounted_one(
    machine: Guest, maker: Maker, fs_type: str
) -> None:
    """Writers get errors, who asks is told, and it can still be detached; then all is as before."""
    name = f"taken-{fs_type}"
    await machine.host.Plug(disk_plug(name, maker.volume(fs_type, name)))
    source = storages.BlockSource(device_id=name, fs_type=fs_type)
    script = "until ! sh -c 'echo x >/data/x && sync /data/x'; do :; done"
    async with (
        attached(machine, "data", block=source),
        running(machine, "data", script=script) as box,
    ):
        await taken_away(machine, name)
        assert (await machine.follow(ref(box))).code == 0
        told = await machine.storages.Stats(storages.StorageStatsRequest(id="data"))
        assert told.health == storages.STORAGE_HEALTH_READ_ONLY, told
        assert told.detail
    request = devices.DetachDeviceRequest(id=name, phase=devices.DETACH_PHASE_COMPLETE)
    await machine.devices.Detach(request)
    async with attached(machine, "data", block=EXT4), running(machine, "data", script="true"):
        pass


async def test_another_agent_takes_all_over(machine: Guest) -> None:
    """What a container has stays open under it, and the new agent can take it all apart."""
    overlay = storages.OverlaySource(lower=[inside("base")], upper=inside("top"))
    parts: dict[str, dict[str, Any]] = {
        "base": {"block": EXT4, "read_only": True},
        "top": {"tmpfs": storages.TmpfsSource(size=4 * MIB)},
        "layers": {"overlay": overlay},
    }
    for name, each in parts.items():
        await attach(machine, name, **each)
    # It has the file open, and reads it when it is told to.
    script = "exec 3</layers/hello; trap 'cat <&3; echo x >/layers/x; exit 9' USR1; "
    async with running(machine, "layers", script=script + IDLE) as box:
        before = await machine.storages.List(storages.ListStoragesRequest())
        await kill_agent(machine)
        after = await machine.storages.List(storages.ListStoragesRequest())
        assert after == before
        for name, each in parts.items():
            assert await attach(machine, name, **each) == await get(machine, name)
        assert list((await get(machine, "layers")).users) == [box]
        assert await refused(detach(machine, "base")) == STILL_IN_USE
        assert await users_of_disk(machine) == ["storage base"]
        await signal(machine, ref(box), 10)
        finished = await machine.follow(ref(box))
        assert (finished.code, finished.text) == (9, GREETING)
    for name in reversed(parts):
        await detach(machine, name)
    # An observer's own stream ended with the agent.
    assert POINT not in await machine.probe("cat /proc/1/mountinfo")
    assert await users_of_disk(machine) == []


@pytest.mark.parametrize(
    ("fs_type", "crypt"),
    [("xfs", None), ("btrfs", storages.Crypt(key=bytes(range(64))))],
    ids=["xfs", "encrypted-btrfs"],
)
async def test_killed_while_it_makes_a_file_system(
    machine: Guest, maker: Maker, fs_type: str, crypt: storages.Crypt | None
) -> None:
    """The same request again ends with a file system that is whole, encrypted or not."""
    file = maker.empty(f"half-{fs_type}", LEAST[fs_type])
    await machine.host.Plug(disk_plug("new", file))
    source = storages.BlockSource(
        device_id="new", fs_type=fs_type, format_if_empty=True, crypt=crypt
    )
    agent = (await machine.describe()).agent_pid
    begun = f"pidof mkfs.{fs_type} || [ -e /guest{POINT}/new ]"
    killer = await machine.start(
        f"until {begun}; do usleep 20000; done >/dev/null; kill -9 {agent}", **PROBE
    )
    await refused(attach(machine, "new", block=source))
    assert (await machine.wait(killer)).code == 0
    await machine.remove(killer)
    file_system = await machine.when_serving(lambda: attach(machine, "new", block=source))
    assert file_system.fs_type == fs_type
    async with running(machine, "new", script="echo x >/new/x && cat /new/x") as box:
        assert (await machine.follow(ref(box))).text == "x\n"
    await detach(machine, "new")
    assert "dm-" not in await machine.probe("ls /sys/block")
    await machine.host.Unplug(host.UnplugRequest(id="new"))
