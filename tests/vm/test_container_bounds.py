"""What a container can't reach, and what none leaves behind: devices, paths, storages, rests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from innkeeper.shim.guest_disk import make_disk
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import storages_pb2 as storages
from innkeeper.v1 import types_pb2 as types
from tests.vm.guest import Guest, create_request, reason, refused
from tests.vm.observer import Observer, observing
from tests.vm.test_containers import added, done, ref

pytestmark = [pytest.mark.vm, pytest.mark.containers]

SOAK = bool(os.environ.get("INNKEEPER_SOAK"))
MIB = 1 << 20


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
    """A container may make a node, as OCI's defaults allow; the device filter refuses to open it."""
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
    """Nor any of the guest's mounts; and vsock is refused."""
    finished = await guest.run(
        "ls /run/innkeeper; cat /proc/net/unix | grep -c agent.sock; grep -c innkeeper/state /proc/mounts"
    )
    assert b"No such file" in finished.stderr
    assert finished.stdout.split()[-1] == b"0"


# Paths that lead out.


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hostile(
    guest: Guest, tmp_path_factory: pytest.TempPathFactory, root: Path
) -> AsyncIterator[str]:
    """A storage with a root whose links all lead out, on a disk that is plugged in."""
    tree = tmp_path_factory.mktemp("hostile")
    for name in ("proc", "sys", "dev", "tmp", "run", "var", "etc"):
        (tree / name).mkdir()
    links = {
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
    async with _plugged(guest, "hostile", tree):
        yield "hostile"
