"""What a container can't reach, and what none leaves behind: devices, paths, storages, rests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import storages_pb2 as storages
from tests.vm.disks import copy_busybox, mounted, on_disk
from tests.vm.guest import Guest, create_request, reason, refused
from tests.vm.observer import Observer, observing
from tests.vm.test_containers import added, attached, done, ref

pytestmark = [pytest.mark.vm, pytest.mark.containers]

SOAK = bool(os.environ.get("INNKEEPER_SOAK"))


@pytest_asyncio.fixture(loop_scope="session")
async def observer(guest: Guest) -> AsyncIterator[Observer]:
    async with observing(guest) as running:
        yield running


# Devices and cgroups.


async def test_the_default_devices_are_there_and_work(guest: Guest) -> None:
    """Also where the specification has rules of its own (case 24)."""
    rules = [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "b", "major": 254, "minor": 0, "access": "m"},
    ]
    script = (
        "echo x >/dev/null && head -c 4 /dev/zero | wc -c && head -c 4 /dev/urandom | wc -c"
        " && (echo x >/dev/full; echo $?) 2>&1 && head -c 4 /dev/random | wc -c && tty"
    )
    finished = await guest.run(
        script, linux={"resources": {"devices": rules}}, process={"terminal": True}
    )
    lines = finished.stdout.decode().split("\r\n")
    assert lines[:2] == ["4", "4"]
    assert "No space left" in lines[2]
    assert lines[3:] == ["1", "4", "/dev/pts/0", ""]


async def test_the_guests_disk_is_out_of_reach(guest: Guest) -> None:
    """A container may make a node, as OCI's defaults allow; it can't open what it made."""
    root = (await guest.probe("stat -c '%d' /guest/usr")).strip()
    major, minor = os.major(int(root)), os.minor(int(root))
    nodes = f"mknod /disk b {major} {minor} && mknod /mem c 1 1 && mknod /kmsg c 1 11; "
    finished = await guest.run(nodes + "for n in disk mem kmsg; do head -c 1 /$n; done")
    assert finished.stdout == b""
    assert finished.stderr.count(b"Operation not permitted") == 3
    assert (await guest.probe("head -c 1 /dev/vda | wc -c")).strip() == "1"


async def test_a_container_sees_its_own_cgroup_only(guest: Guest) -> None:
    """Without a cgroup namespace in its specification it saw the guest's whole tree (case 106)."""
    linux = {"namespaces": [{"type": "mount"}, {"type": "pid"}]}
    script = "cat /proc/self/cgroup; ls -d /sys/fs/cgroup/*/; cat /sys/fs/cgroup/cgroup.procs"
    finished = await guest.run(script, linux=linux)
    first, *members = finished.stdout.decode().split()
    assert first == "0::/"
    assert "1" in members
    assert b"No such file" in finished.stderr


async def test_the_agents_sockets_are_not_in_a_container(guest: Guest) -> None:
    finished = await guest.run("ls /run/innkeeper; grep innkeeper/spools /proc/mounts")
    assert b"No such file" in finished.stderr
    assert finished.stdout == b""


# Paths that lead out.


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def data(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A storage with one file, `file`."""
    tree = tmp_path_factory.mktemp("data")
    (tree / "file").write_text("content\n")
    async with mounted(guest, "data", tree) as name:
        yield name


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hostile(
    guest: Guest, tmp_path_factory: pytest.TempPathFactory, image: Path
) -> AsyncIterator[str]:
    """A storage with a root whose links all lead out, on a disk that is plugged in."""
    tree = tmp_path_factory.mktemp("hostile")
    for name in ("proc", "sys", "dev", "tmp", "run", "var", "etc", "usr/bin"):
        (tree / name).mkdir(parents=True)
    copy_busybox(image, tree / "usr/bin/busybox")
    (tree / "usr/bin/busybox").chmod(0o755)
    links = {
        "usr/bin/sh": "busybox",
        "usr/bin/cat": "busybox",
        "bin": "/usr/bin",
        "var/run": "/run",
        "var/run2": "/run2",
        "run2": "/tmp/run2",
        "up": "../../../../../../run/innkeeper",
        "a": "b",
        "b": "a",
        "etc/localtime": "/usr/share/zoneinfo/missing",
    }
    for name, target in links.items():
        (tree / name).symlink_to(target)
    async with mounted(guest, "hostile", tree) as name:
        yield name


def _in_hostile_root(
    name: str, script: str, destination: str, *, layer: bool = True, **more: Any
) -> containers.CreateContainerRequest:
    mount = containers.StorageMount(storage_id="data", destination=destination)
    request = create_request(name, script, storages=(mount,), **more)
    request.storage_id = "hostile"
    request.writable_layer = layer
    return request


@pytest.mark.parametrize("layer", [True, False])
async def test_links_of_a_root_stay_in_it(
    guest: Guest, observer: Observer, data: str, hostile: str, layer: bool
) -> None:
    """Targets below absolute links once landed in the guest, and chains of them were
    refused with "File exists" (cases 56 and 57)."""
    places = {
        "/var/run/example": "/run/example",
        "/var/run2/secrets/x/y": "/tmp/run2/secrets/x/y",
        "/up/evil": "/run/innkeeper/evil",
    }
    look = "find /guest/run /guest/tmp -xdev | grep -v innkeeper/"
    before = await observer.ask(look)
    for destination, place in places.items():
        name = "links"
        script = f"cat {destination}/file {place}/file"
        await guest.containers.Create(_in_hostile_root(name, script, destination, layer=layer))
        await guest.containers.Start(containers.StartContainerRequest(id=name))
        assert (await guest.follow(ref(name))).stdout == b"content\n" * 2, destination
        assert await observer.ask(look) == before
        await guest.remove(name)


async def test_a_loop_of_links_is_an_error(
    guest: Guest, observer: Observer, data: str, hostile: str
) -> None:
    before = await observer.census()
    with pytest.raises(aio.AioRpcError) as caught:
        await guest.containers.Create(_in_hostile_root("loop", "true", "/a/x"))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert reason(caught.value) == "MOUNT_REFUSED"
    assert "/a/x" in (caught.value.details() or "")
    await observer.returns_to(before)


async def test_a_file_over_a_dangling_link(guest: Guest, data: str, hostile: str) -> None:
    """The target comes to be in the root; no puzzle of EEXIST (case 59)."""
    mount = {
        "destination": "/etc/localtime",
        "type": "bind",
        "source": "/usr/lib/os-release",
        "options": ["bind", "ro"],
    }
    await guest.containers.Create(
        _in_hostile_root("zone", "cat /etc/localtime", "/mnt", mounts=[mount])
    )
    await guest.containers.Start(containers.StartContainerRequest(id="zone"))
    finished = await guest.follow(ref("zone"))
    assert b"Debian" in finished.stdout
    await guest.remove("zone")


# Storages.


async def test_containers_share_a_storage_and_it_is_counted(guest: Guest, data: str) -> None:
    """While one of them is left it is not unmounted; afterwards it is."""
    mount = containers.StorageMount(storage_id=data, destination="/data")
    first = await guest.start("echo one >/data/shared; sleep 300", storages=(mount,))
    second = await guest.start("read line; cat /data/shared", storages=(mount,))
    assert await _users(guest, data) == sorted((first, second))
    used = (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
    detach = storages.DetachStorageRequest(id=data)
    assert await refused(guest.storages.Detach(detach)) == used
    attachment = await attached(guest, ref(second))
    await attachment.send(b"go\n")
    assert (await attachment.to_the_end()).stdout == b"one\n"
    await guest.remove(first)
    assert await refused(guest.storages.Detach(detach)) == used
    assert await refused(guest.host.Unplug(host.UnplugRequest(id=data))) == used
    await guest.remove(second)
    assert await _users(guest, data) == []
    await guest.storages.Detach(detach)
    await guest.storages.Attach(storages.AttachStorageRequest(storage=on_disk(data, data)))


async def _users(guest: Guest, name: str) -> list[str]:
    storage = await guest.storages.Get(storages.GetStorageRequest(id=name))
    return list(storage.users)


async def test_a_storage_is_read_only_where_it_was_asked_for(guest: Guest, data: str) -> None:
    """The flag counts for this mount alone (case 62)."""
    read_only = containers.StorageMount(storage_id=data, destination="/ro", options=["ro"])
    writable = containers.StorageMount(storage_id=data, destination="/rw")
    finished = await guest.run(
        "echo x >/rw/x && rm /rw/x && echo written; echo x >/ro/x", storages=(read_only, writable)
    )
    assert finished.stdout == b"written\n"
    assert b"Read-only file system" in finished.stderr


# What is left behind.


async def test_a_create_that_fails_leaves_nothing(guest: Guest, observer: Observer) -> None:
    """It carries the runtime's own words."""
    await guest.run("true")
    before = await observer.census()
    refusals: tuple[tuple[dict[str, Any], str], ...] = (
        ({"args": ["/no/such/program"]}, "/no/such/program"),
        ({"args": ["/etc"]}, "regular file"),
        ({"args": ["true"], "cwd": "/no/such/directory"}, "/no/such/directory"),
        ({"args": ["true"], "scheduler": {"policy": "SCHED_ISO"}}, "SCHED_ISO"),
    )
    for number, (process, words) in enumerate(refusals):
        request = create_request(f"failing{number}", "", process=process)
        request.writable_layer = number % 2 == 0 and "cwd" not in process
        with pytest.raises(aio.AioRpcError) as caught:
            await guest.containers.Create(request)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION, process
        assert reason(caught.value) == "RUNTIME_REFUSED"
        assert words in (caught.value.details() or "")
    await observer.returns_to(before)


async def test_an_exec_that_fails_leaves_nothing(guest: Guest, observer: Observer) -> None:
    name = await guest.start("sleep 300")
    await done(guest, name, "true", terminal=True)
    await done(guest, name, "true")
    before = await observer.census()
    for terminal in (False, True):
        for _ in range(10):
            code, why = await refused(
                added(guest, name, "", args=["/no/such/program"], terminal=terminal)
            )
            assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "RUNTIME_REFUSED")
    await observer.returns_to(before)
    await guest.remove(name)


@pytest.mark.timeout(900)
async def test_orphans_leave_no_zombies(guest: Guest, observer: Observer) -> None:
    """Without a pid namespace PID 1 takes them in at once (case 82)."""
    before = await observer.census()
    name = await guest.start("sleep 300", linux={"namespaces": [{"type": "mount"}]})
    for _ in range(200 if SOAK else 20):
        assert (await done(guest, name, "(sleep 0.1 &); (true &); exit 0")).code == 0
    await observer.sees_no_zombies()
    await guest.remove(name)
    await observer.returns_to(before)


async def test_orphans_of_a_pid_namespace_end_with_it(guest: Guest, observer: Observer) -> None:
    """Its own first process has to take them in; one that doesn't leaves none behind itself."""
    before = await observer.census()
    name = await guest.start("exec sleep 300")
    assert (await done(guest, name, "(sleep 0.1 &); (true &); exit 0")).code == 0
    await guest.remove(name)
    await observer.returns_to(before)
