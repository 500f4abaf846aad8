"""Copies into and out of a real guest: storages, containers, full disks, killed agents."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from innkeeper.shim.client import VmSpec
from innkeeper.shim.files import fetch, send
from innkeeper.shim.landing import Place
from innkeeper.shim.localtree import Sending
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import files_pb2 as pb
from innkeeper.v1 import files_pb2_grpc
from innkeeper.v1 import storages_pb2 as storages
from tests.command_line import Innkeeper
from tests.fakes.copying import file_part, folder_part, frames, header, mode_of, tree
from tests.vm.disks import mounted, on_disk
from tests.vm.guest import PROBE, Guest, booted
from tests.vm.refusals import refusal

pytestmark = [pytest.mark.vm, pytest.mark.storage]


@asynccontextmanager
async def disk(guest: Guest, folder: Path, name: str) -> AsyncIterator[pb.FileRoot]:
    """An empty ext4 disk of 16 MiB as a storage of that name."""
    content = folder / "content"
    content.mkdir()
    async with mounted(guest, name, content):
        yield pb.FileRoot(storage_id=name)


def stub(guest: Guest) -> files_pb2_grpc.FilesAsyncStub:
    return files_pb2_grpc.FilesStub(guest.channel)


async def out(guest: Guest, root: pb.FileRoot, path: str = "") -> tuple[dict[str, bytes], set[str]]:
    """Contents by path, and what was left out."""
    found: dict[str, bytes] = {}
    left_out: set[str] = set()
    name = ""
    request = pb.CopyOutRequest(root=root, path=path, recursive=True)
    async for answer in stub(guest).CopyOut(request):
        left_out |= set(answer.left_out)
        for part in answer.parts:
            if part.HasField("header"):
                name = part.header.path
                found[name] = part.header.link_target.encode()
            found[name] += bytes(part.hole) + part.data
    return found, left_out


def owned(part: pb.FilePart) -> pb.FilePart:
    """Somebody's in the guest; the host's test may be another's."""
    part.header.uid, part.header.gid = 1000, 1001
    return part


async def begin(guest: Guest, call: Any, root: pb.FileRoot) -> None:
    """A copy of two files, of which one is there and the other is not whole."""
    half = pb.FilePart(header=header("half", size=100), data=b"half")
    first = file_part("first", b"1")
    request = pb.CopyInRequest(start=pb.CopyStart(root=root), parts=[first, half])
    await call.write(request)
    async with asyncio.timeout(60):
        while "first" not in (await out(guest, root))[0]:
            pass


async def test_a_tree_goes_into_a_storage_and_back(guest: Guest, tmp_path: Path) -> None:
    """Modes, times, links, holes and bytes, through the real transport and file system."""
    top = tmp_path / "top"
    (top / "d/e").mkdir(parents=True)
    (top / "d/e").chmod(0o710)
    (top / "d/big").write_bytes(os.urandom(3 << 20))
    (top / "d/script").write_bytes(b"#!/bin/sh\n")
    (top / "d/script").chmod(0o755)
    (top / "l").symlink_to("/etc")
    with (top / "sparse").open("wb") as file:
        os.pwrite(file.fileno(), b"x", 1 << 30)
    os.utime(top / "d", ns=(1, 10**18 + 123_456_789))
    async with disk(guest, tmp_path, "tree") as root:
        start = pb.CopyStart(root=root, path="new/place")
        answer = await send(guest.channel, start, Sending(source=top))
        assert (answer.files, answer.directories, answer.links) == (3, 3, 1)
        request = pb.CopyOutRequest(root=root, path="new/place", recursive=True)
        left_out = await fetch(guest.channel, request, Place(folder=tmp_path, name="back"))
    assert left_out == ()
    back = tmp_path / "back"
    assert (back / "sparse").stat().st_blocks * 512 < 1 << 20
    assert (back / "sparse").stat().st_size == (1 << 30) + 1
    for sparse in (back / "sparse", top / "sparse"):
        sparse.unlink()
    assert tree(back) == tree(top)
    assert (back / "d").stat().st_mtime_ns == 10**18 + 123_456_789
    assert mode_of(back / "d/script") == 0o755


async def test_a_full_disk_leaves_the_old_file_and_says_which(guest: Guest, tmp_path: Path) -> None:
    async with disk(guest, tmp_path, "full") as root:
        start = pb.CopyStart(root=root)
        await stub(guest).CopyIn(frames(start, [file_part("keep", b"old")]))

        (tmp_path / "big").write_bytes(os.urandom(64 << 20))
        keep = pb.CopyStart(root=root, path="keep")
        refused = await refusal(send(guest.channel, keep, Sending(source=tmp_path / "big")))
        assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (refused.reason, refused.fields["path"]) == ("NO_SPACE", "keep")
        found, left_out = await out(guest, root)
        assert (found, left_out) == ({"": b"", "keep": b"old", "lost+found": b""}, set())
        # What did not become whole takes no room either.
        await stub(guest).CopyIn(frames(start, [file_part("more", bytes(1 << 20))]))


async def test_a_storage_stays_while_somebody_copies(guest: Guest, tmp_path: Path) -> None:
    async with disk(guest, tmp_path, "busy") as root:
        call = stub(guest).CopyIn()
        await begin(guest, call, root)
        refused = await refusal(guest.storages.Detach(storages.DetachStorageRequest(id="busy")))
        assert (refused.reason, "Files.CopyIn" in refused.text) == ("STILL_IN_USE", True)
        call.cancel()
        async with asyncio.timeout(60):
            while not await is_free(guest, "busy"):
                pass


async def is_free(guest: Guest, storage: str) -> bool:
    """Whether it can be detached; it is attached again then."""
    try:
        await guest.storages.Detach(storages.DetachStorageRequest(id=storage))
    except grpc.aio.AioRpcError:
        return False
    again = storages.AttachStorageRequest(storage=on_disk(storage, storage))
    await guest.storages.Attach(again)
    return True


async def test_a_container_is_copied_to_as_it_sees_itself(guest: Guest, tmp_path: Path) -> None:
    """Its mounts with it, its links inside it; what the guest has outside stays alone."""
    name = await guest.start(
        "ln -s /etc/evil /planted; ln -s ../../../../../../run /up; mkdir -p /real;"
        " ln -s /real /to-real; touch /ready; sleep 1000",
        mounts=[{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}],
    )
    root = pb.FileRoot(container_id=name)
    try:
        while "ready" not in (await out(guest, root))[0]:
            pass
        start = pb.CopyStart(root=root, path="tmp")
        await stub(guest).CopyIn(frames(start, [owned(file_part("f", b"seen"))]))
        for path in ("planted/f", "up/evil"):
            whole = frames(pb.CopyStart(root=root), [file_part(path, b"evil")])
            assert (await refusal(stub(guest).CopyIn(whole))).reason == "LEADS_OUTSIDE"
        await stub(guest).CopyIn(
            frames(pb.CopyStart(root=root, path="to-real"), [file_part("f", b"1")])
        )
        found, left_out = await out(guest, root)
        assert {"tmp: a mount", "dev/null: a character device"} <= left_out
        assert found["real/f"] == b"1"
        assert "tmp/f" not in found
        assert (await out(guest, root, "tmp"))[0] == {"": b"", "f": b"seen"}
        assert await guest.probe("ls -d /guest/etc/evil /guest/run/evil 2>/dev/null; true") == ""
        assert (
            await guest.probe(f"stat -c %u:%g /proc/{await pid_of(guest, name)}/root/tmp/f")
        ).strip() == "1000:1001"
    finally:
        await guest.remove(name)


async def pid_of(guest: Guest, name: str) -> int:
    answer = await guest.containers.List(containers.ListContainersRequest())
    return next(each.pid for each in answer.containers if each.id == name)


async def test_a_container_that_has_ended_can_still_be_read(guest: Guest) -> None:
    name = await guest.start("echo result > /result")
    try:
        await guest.wait(name)
        root = pb.FileRoot(container_id=name)
        assert (await out(guest, root, "result"))[0] == {"": b"result\n"}
        await stub(guest).CopyIn(frames(pb.CopyStart(root=root), [file_part("more", b"x")]))
        assert (await out(guest, root, "more"))[0] == {"": b"x"}
    finally:
        await guest.remove(name)


async def test_a_container_that_is_removed_ends_its_copies(guest: Guest) -> None:
    name = await guest.start("sleep 1000")
    call = stub(guest).CopyIn()
    await begin(guest, call, pb.FileRoot(container_id=name))
    await guest.remove(name)
    refused = await refusal(call)
    assert (refused.reason, "removed" in refused.text) == ("WRONG_STATE", True)


async def test_ten_thousand_small_files_both_ways(guest: Guest, tmp_path: Path) -> None:
    content = {f"d{at % 100}/f{at}": b"%d" % at for at in range(10_000)}

    def batches() -> Iterator[list[pb.FilePart]]:
        yield [folder_part(f"d{at}") for at in range(100)]
        names = list(content)
        for at in range(0, len(names), 1000):
            yield [file_part(name, content[name]) for name in names[at : at + 1000]]

    request = storages.Storage(id="many", tmpfs=storages.TmpfsSource(size=100 << 20))
    await guest.storages.Attach(storages.AttachStorageRequest(storage=request))
    try:
        root = pb.FileRoot(storage_id="many")
        start = pb.CopyStart(root=root, path="tree")
        answer = await stub(guest).CopyIn(frames(start, *batches()))
        assert (answer.files, answer.directories) == (10_000, 100)
        found, left_out = await out(guest, root, "tree")
        assert left_out == set()
        assert {path: data for path, data in found.items() if data} == content
    finally:
        await guest.storages.Detach(storages.DetachStorageRequest(id="many"))


async def test_an_agent_that_is_killed_in_a_copy_leaves_no_half_of_it(
    image: Path, tmp_path: Path
) -> None:
    """The worker sees its agent go, and takes the entry in progress with it."""
    async with (
        booted(VmSpec(name="copies", image=f"{image}/", transport="serial")) as guest,
        disk(guest, tmp_path, "data") as root,
    ):
        call = stub(guest).CopyIn()
        await begin(guest, call, root)
        before = await guest.describe()
        await guest.start(f"kill -9 {before.agent_pid}", **PROBE)
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        after = await guest.describe()
        assert after.agent_pid != before.agent_pid
        found, _ = await guest.when_serving(lambda: out(guest, root))
        assert found == {"": b"", "first": b"1", "lost+found": b""}


async def test_the_command_copies_both_ways(guest: Guest, tmp_path: Path) -> None:
    innkeeper = Innkeeper(environment=os.environ)
    name = await guest.start("sleep 1000")
    try:
        there = f"{guest.vm.name}:container/{name}"
        (tmp_path / "conf/d").mkdir(parents=True)
        (tmp_path / "conf/a").write_bytes(b"a")
        (tmp_path / "conf/d/b").write_bytes(b"b")
        done = await innkeeper("cp", str(tmp_path / "conf"), f"{there}/etc")
        assert (done.code, done.out) == (0, b""), done
        done = await innkeeper("cp", f"{there}/etc/conf/.", str(tmp_path / "back"))
        assert done.code == 0, done
        assert tree(tmp_path / "back") == tree(tmp_path / "conf")
        done = await innkeeper("cp", f"{there}/nowhere", str(tmp_path))
        assert (done.code, "no such file" in done.err) == (125, True)
    finally:
        await guest.remove(name)
