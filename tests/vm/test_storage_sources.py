"""Storages that need no device, as containers see them. One VM for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from innkeeper.shim.client import VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import storages_pb2 as storages
from tests.vm.guest import Guest, booted, refused
from tests.vm.observer import Observer, observing
from tests.vm.test_containers import kill_agent

pytestmark = [pytest.mark.vm, pytest.mark.storage]

MIB = 1 << 20
PAGE = 2 * MIB
PATIENCE = 120.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path) -> AsyncIterator[Guest]:
    async with booted(VmSpec(name="sources", image=f"{image}/", transport="serial")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def observer(machine: Guest) -> AsyncIterator[Observer]:
    async with observing(machine) as running:
        yield running


async def attach(guest: Guest, storage: storages.Storage) -> storages.AttachedStorage:
    return await guest.storages.Attach(storages.AttachStorageRequest(storage=storage))


@asynccontextmanager
async def attached(
    guest: Guest, *wanted: storages.Storage
) -> AsyncIterator[list[storages.AttachedStorage]]:
    """Detached in reverse order, and nothing is left of them."""
    found = [await attach(guest, each) for each in wanted]
    try:
        yield found
    finally:
        for each in reversed(wanted):
            answer = await guest.storages.Detach(storages.DetachStorageRequest(id=each.id))
            assert (answer.lazily, list(answer.left)) == (False, [])


def mount(storage_id: str, *options: str) -> containers.StorageMount:
    return containers.StorageMount(
        storage_id=storage_id, destination=f"/{storage_id}", options=options
    )


def at(storage_id: str, path: str = "") -> storages.StorageDirectory:
    return storages.StorageDirectory(storage_id=storage_id, path=path)


def memory(name: str = "base") -> storages.Storage:
    return storages.Storage(id=name, tmpfs=storages.TmpfsSource(size=64 * MIB))


async def said(guest: Guest, script: str, *ids: str) -> str:
    """What a container says that has these storages at /ID."""
    finished = await guest.run(script, storages=tuple(map(mount, ids)))
    assert finished.code == 0, finished
    return finished.text


async def test_tmpfs_is_shared_by_containers(machine: Guest) -> None:
    wanted = storages.Storage(
        id="t", tmpfs=storages.TmpfsSource(size=4 * MIB, mode=0o1777), options=["nosuid", "noexec"]
    )
    async with attached(machine, wanted) as (found,):
        assert (found.fs_type, found.source) == ("tmpfs", "tmpfs")
        await said(machine, "echo shared >/t/file", "t")
        text = await said(machine, "cat /t/file; df -Pk /t | tail -1; stat -c %a /t", "t")
        content, space, mode = text.splitlines()
        assert (content, space.split()[1], mode) == ("shared", "4096", "1777")


async def test_huge_pages_are_those_of_the_pool(machine: Guest, observer: Observer) -> None:
    pool = "cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    before = int(await observer.ask(pool))
    wanted = storages.Storage(
        id="h", hugetlb=storages.HugetlbSource(size=4 * PAGE), options=["pageSize=2Mi"]
    )
    async with attached(machine, wanted) as (found,):
        assert found.fs_type == "hugetlbfs"
        assert int(await observer.ask(pool)) == before + 4
        # truncate(1) makes a file of it; what the pool can't hold is refused.
        text = await said(
            machine, "stat -f -c '%S %b' /h; truncate -s 8M /h/x && stat -c %s /h/x", "h"
        )
        assert text.split() == [str(PAGE), "4", str(4 * PAGE)]
    assert int(await observer.ask(pool)) == before


async def test_huge_pages_that_are_not_to_be_had(machine: Guest, observer: Observer) -> None:
    """As many as the guest's whole memory, of which some is in use; then none of them stays.
    And one of a gigabyte, which no place in a smaller guest is large enough for."""
    pool = "cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    before = await observer.ask(pool)
    total = int(await observer.ask("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo"))
    whole = storages.HugetlbSource(size=total * 1024 // PAGE * PAGE)
    # The kernel looks long for the last ones, more so under emulation.
    wanted = storages.Storage(id="h", hugetlb=whole, timeout_seconds=PATIENCE)
    code, why = await refused(attach(machine, wanted))
    assert (code, why) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_HUGE_PAGES")
    assert await observer.ask(pool) == before
    wanted = storages.Storage(id="h", hugetlb=storages.HugetlbSource(page_size=1 << 30))
    wanted.hugetlb.size = 1 << 30
    code, why = await refused(attach(machine, wanted))
    assert (code, why) in (
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_HUGE_PAGES"),
        # The emulated processor may have no such pages.
        (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD"),
    )
    wanted.hugetlb.page_size = 3 * MIB
    assert await refused(attach(machine, wanted)) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "BAD_FIELD",
    )


async def test_a_read_only_bind_of_a_storage_that_is_written_to(machine: Guest) -> None:
    """Case 62."""
    bind = storages.Storage(
        id="b", bind=storages.BindSource(directory=at("base", "dir")), read_only=True
    )
    async with attached(machine, memory()):
        await said(machine, "mkdir /base/dir; echo one >/base/dir/file", "base")
        async with attached(machine, bind):
            script = "echo two >/base/dir/file; cat /b/file; (echo x >/b/file) 2>&1 || true"
            text = await said(machine, script, "base", "b")
            assert text.startswith("two\n")
            assert "Read-only file system" in text
            # A container's own wish for more is not what decides.
            finished = await machine.run("echo x >/b/file", storages=(mount("b", "rbind"),))
            assert finished.code != 0


async def test_flags_of_a_storage_hold_in_containers(machine: Guest) -> None:
    """crun sets just the flags that it is told of, and so clears the others."""
    base = memory()
    base.options.append("nosuid,nodev,noexec")
    bind = storages.Storage(
        id="b", bind=storages.BindSource(directory=at("base")), options=["bind", "ro"]
    )
    async with attached(machine, base, bind):
        text = await said(machine, "grep -o ' /b r.*nosuid.*' /proc/self/mountinfo", "base", "b")
        flags = text.split()[1].split(",")
        assert {"ro", "nosuid", "nodev", "noexec"} <= set(flags)


async def test_a_bind_of_the_guests_own(machine: Guest) -> None:
    shm = storages.Storage(id="shm", bind=storages.BindSource(path="/dev/shm"))
    async with attached(machine, shm):
        await said(machine, "echo x >/shm/from-a-container", "shm")
        assert "x" in await said(machine, "cat /shm/from-a-container; rm /shm/f*", "shm")
    for path in ("/run/innkeeper/state", "/run/innkeeper", "/run/innkeeper/storages"):
        bind = storages.Storage(id="no", bind=storages.BindSource(path=path))
        assert await refused(attach(machine, bind)) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "LEADS_OUTSIDE",
        )


@pytest.mark.parametrize("layers", [1, 60, 400])
async def test_an_overlay_of_many_layers(machine: Guest, layers: int) -> None:
    """Case 45: option strings far over a page; names with `,` and `:`."""
    names = [f"layer,{number}:{'x' * 40}" for number in range(layers)]
    script = """
        cd /base
        n=0
        while [ $n -lt %d ]; do
            d="layer,$n:%s"
            mkdir "$d"; echo $n >"$d/$n"; echo $n >"$d/same"
            n=$((n + 1))
        done
    """
    overlay = storages.Storage(
        id="o",
        overlay=storages.OverlaySource(
            lower=[at("base", name) for name in names], upper=at("base", "up")
        ),
    )
    async with attached(machine, memory()):
        await said(machine, script % (layers, "x" * 40), "base")
        async with attached(machine, overlay) as (found,):
            assert found.fs_type == "overlay"
            script = "ls /o | wc -l; cat /o/same; echo new >/o/same; cat /base/up/same; rm /o/0"
            text = await said(machine, script, "o", "base")
            assert text.split() == [str(layers + 1), "0", "new"]
            code, why = await refused(
                machine.storages.Detach(storages.DetachStorageRequest(id="base"))
            )
            assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
        text = await said(machine, f"cat '/base/{names[0]}/same' /base/up/same", "base")
        assert text.split() == ["0", "new"], "the writes are the user's, the layers as they were"


@pytest.mark.parametrize("base", ["", "base"])
async def test_a_local_directory_goes_with_its_content(
    machine: Guest, observer: Observer, base: str
) -> None:
    local = storages.Storage(id="l", local=storages.LocalSource(mode=0o1777, storage_id=base))
    look = "find /run/innkeeper/storages/base /var/lib/innkeeper/local -mindepth 1 | wc -l"
    async with attached(machine, memory()):
        before = await observer.ask(f"mkdir -p /guest/var/lib/innkeeper/local; cd /guest; {look}")
        async with attached(machine, local):
            script = "stat -c %a /l; mkdir -p /l/a/b; ln -s /etc /l/a/link; cp -r /bin /l/a/b"
            assert await said(machine, script, "l") == "1777\n"
        assert await observer.ask(f"cd /guest; {look}") == before


CONFIG = """
    set -e
    mkdir -p /base/config
    cd /base/config
    mkdir ..{0}
    for f in {1}; do echo {0} >..{0}/$f; done
    ln -s ..{0} ..tmp
    mv -T ..tmp ..data
    for f in {1}; do [ -L $f ] || ln -s ..data/$f $f; done
"""
READER = """
    echo $(cat /w/a /w/b)
    while [ "$(cat /w/a)" = 1 ]; do usleep 20000; done
    cd -P /w/..data; echo $(cat a c) $(ls); ls /w
    (echo x >/w/a) 2>&1 || true
"""


async def test_a_container_sees_a_change_as_one_switch(machine: Guest) -> None:
    """It was started before: the new files come into its own mount."""
    watched = storages.Storage(
        id="w",
        watched=storages.WatchedSource(directory=at("base", "config"), interval_seconds=0.2),
    )
    async with attached(machine, memory()):
        await said(machine, CONFIG.format(1, "a b"), "base")
        async with attached(machine, watched):
            reading = asyncio.ensure_future(said(machine, READER, "w"))
            await _has_user(machine, "w")
            await said(machine, CONFIG.format(2, "a c") + "rm b", "base")
            text = await reading
            first, second, *rest = text.splitlines()
            assert first == "1 1"
            assert second == "2 2 a c"
            assert rest[:2] == ["a", "c"]
            assert "Read-only file system" in rest[2]


async def _has_user(guest: Guest, name: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await guest.storages.Get(storages.GetStorageRequest(id=name))
            if found.users:
                return
            await asyncio.sleep(0.1)


async def test_refresh_and_a_new_agent(machine: Guest) -> None:
    watched = storages.Storage(
        id="w", watched=storages.WatchedSource(directory=at("base", "config"), only_refresh=True)
    )
    refresh = storages.RefreshStorageRequest(id="w")
    async with attached(machine, memory()):
        await said(machine, CONFIG.format(1, "a"), "base")
        async with attached(machine, watched):
            assert not (await machine.storages.Refresh(refresh)).changed
            await said(machine, CONFIG.format(2, "a"), "base")
            assert await said(machine, "cat /w/a", "w") == "1\n"
            await kill_agent(machine)
            answer = await machine.when_serving(lambda: machine.storages.Refresh(refresh))
            assert answer.changed
            assert not (await machine.storages.Refresh(refresh)).changed
            assert await said(machine, "cat /w/a", "w") == "2\n"
        assert await refused(
            machine.storages.Refresh(storages.RefreshStorageRequest(id="base"))
        ) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "WRONG_STATE",
        )
