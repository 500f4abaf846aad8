"""Mount options that other agents stumbled over, in one VM (cases 40, 41 and 45)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from innkeeper.shim.client import VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import storages_pb2 as storages
from tests.vm.guest import Guest, booted
from tests.vm.refusals import refusal

pytestmark = [pytest.mark.vm, pytest.mark.storage]

MIB = 1 << 20
LABEL = "system_u:object_r:container_file_t:s0:c1,c2"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path) -> AsyncIterator[Guest]:
    async with booted(VmSpec(name="cases", image=f"{image}/", transport="serial")) as running:
        yield running


def memory(*options: str) -> storages.Storage:
    return storages.Storage(id="t", tmpfs=storages.TmpfsSource(), options=options)


@asynccontextmanager
async def attached(guest: Guest, storage: storages.Storage) -> AsyncIterator[None]:
    await guest.storages.Attach(storages.AttachStorageRequest(storage=storage))
    try:
        yield
    finally:
        await guest.storages.Detach(storages.DetachStorageRequest(id=storage.id))


async def said(guest: Guest, script: str, name: str = "t") -> str:
    mount = containers.StorageMount(storage_id=name, destination=f"/{name}")
    finished = await guest.run(script, storages=(mount,))
    assert finished.code == 0, finished
    return finished.text


@pytest.mark.parametrize(
    "options",
    [
        ["defaults", "_netdev", "x-systemd.automount", "nofail", "size=1m", "mode=755"],
        ["", "auto", "nouser", "size=1m,mode=755"],
    ],
)
async def test_words_of_user_space_do_not_reach_the_kernel(
    machine: Guest, options: list[str]
) -> None:
    """`defaults` would be its EINVAL; what is the file system's own does go there (case 40)."""
    async with attached(machine, memory(*options)):
        text = await said(machine, "df -Pk /t | tail -1; stat -c %a /t")
        assert (text.split()[1], text.split()[-1]) == ("1024", "755")


async def test_an_unknown_option_is_told_with_the_others(machine: Guest) -> None:
    attach = storages.AttachStorageRequest(storage=memory("no-such-option", "mode=755"))
    found = await refusal(machine.storages.Attach(attach))
    assert (found.code, found.reason, found.fields["errno"]) == (
        *(grpc.StatusCode.FAILED_PRECONDITION, "MOUNT_REFUSED"),
        "EINVAL",
    )
    assert "no-such-option,mode=755" in found.text


@pytest.mark.parametrize("entry", [f'context="{LABEL}"', f"context={LABEL}"])
async def test_labels_are_dropped_where_there_is_no_selinux(machine: Guest, entry: str) -> None:
    """The kernel's answer to one would be EINVAL (case 41). What a container's specification
    asks of SELinux is more than a mount's option, and refused (test_bad_input.py)."""
    mount = containers.StorageMount(storage_id="t", destination="/t")
    async with attached(machine, memory(entry)):
        finished = await machine.run("echo fine > /t/x; cat /t/x", storages=(mount,))
    assert finished.text == "fine\n", finished


@pytest.mark.parametrize("length", [4094, 4095, 4096, 5468])
async def test_layers_whose_names_fill_a_page(machine: Guest, length: int) -> None:
    """As one string for mount(2) they would be cut in silence from a page on, and then not
    be found (case 45)."""
    names = _names(length)
    script = f"cd /t; for d in {' '.join(names)}; do mkdir $d; echo $d > $d/${{d%%x*}}; done"
    layers = [storages.StorageDirectory(storage_id="t", path=name) for name in names]
    overlay = storages.Storage(id="o", overlay=storages.OverlaySource(lower=layers))
    async with attached(machine, memory()):
        await said(machine, script)
        async with attached(machine, overlay):
            found = (await said(machine, "ls /o; cat /o/last", "o")).split()
    assert len(found) == len(names) + 1
    assert found[-1] == names[-1]


def _names(length: int) -> list[str]:
    """60 names and one more, so that "lowerdir=A:B..." of their paths has that length."""
    below = len("/run/innkeeper/storages/t/")
    names = [f"n{number:02}" + "x" * 30 for number in range(60)]
    left = length - len("lowerdir=") - sum(below + len(name) + 1 for name in names) - below
    if left > 200:
        names = [name + "x" * ((left - 100) // 60) for name in names]
        left -= (left - 100) // 60 * 60
    return [*names, "last" + "x" * (left - len("last"))]


async def test_a_group_owns_a_storage_in_memory_also_for_a_second_user(machine: Guest) -> None:
    """Set-group-ID and all rights of the group; a second user, or the same request again,
    takes back no mode that was changed meanwhile (case 54)."""
    mount = containers.StorageMount(storage_id="t", destination="/t")
    user = {"user": {"uid": 1001, "gid": 1001, "additionalGids": [123]}}
    storage = storages.Storage(
        id="t",
        tmpfs=storages.TmpfsSource(size=4 * MIB, mode=0o755),
        fs_group=123,
        fs_group_policy=storages.FS_GROUP_POLICY_ALWAYS,
    )
    async with attached(machine, storage):
        script = "umask 022; : > /t/new; stat -c '%g %a' /t /t/new"
        finished = await machine.run(script, storages=(mount,), process=user)
        assert finished.text.splitlines() == ["123 2775", "123 644"], finished
        await said(machine, "chmod 2771 /t")
        await machine.storages.Attach(storages.AttachStorageRequest(storage=storage))
        finished = await machine.run("stat -c '%g %a' /t", storages=(mount,), process=user)
        assert finished.text == "123 2771\n", finished
