"""Directories of the host in the guest, by a real virtiofsd; and disks that grow while plugged."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from innkeeper.image.model import ImageError
from innkeeper.shim import commands, virtiofsd
from innkeeper.shim.client import NinePShare, VmSpec, start_vm
from innkeeper.shim.errors import ShimError
from innkeeper.shim.guest_disk import make_disk
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import storages_pb2 as storages
from innkeeper.v1 import types_pb2 as types
from tests.command_line import Innkeeper
from tests.fakes.plugs import disk_plug, plug
from tests.fakes.waiting import until
from tests.vm.attachment import Attachment
from tests.vm.disks import on_disk
from tests.vm.guest import Guest, booted, refused
from tests.vm.virtiofsd13 import virtiofsd_of_debian_13

pytestmark = [pytest.mark.vm, pytest.mark.storage]

MIB = 1 << 20
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture(scope="module", autouse=True)
def _has_virtiofsd() -> None:
    try:
        virtiofsd.find()
    except ShimError as error:
        pytest.skip(str(error))


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["host's", "Debian 13's"])
async def served(
    request: pytest.FixtureRequest, guest: Guest, image: Path, root: Path
) -> AsyncIterator[Guest]:
    """VMs whose daemons take this host's virtiofsd, and the one in Rust."""
    if request.param == "host's":
        yield guest
        return
    try:
        program = virtiofsd_of_debian_13(root)
    except (ImageError, commands.CommandError) as error:
        pytest.skip(f"no virtiofsd of Debian 13: {error}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(virtiofsd.VARIABLE, str(program))
        async with booted(VmSpec(name="rust", image=f"{image}/", transport="serial")) as other:
            yield other


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """With a comma in its path, which QEMU's own virtiofsd splits options at."""
    made = tmp_path / "a,b"
    made.mkdir()
    (made / "hello").write_text("from the host\n")
    return made


@pytest_asyncio.fixture(loop_scope="session")
async def src(served: Guest, directory: Path) -> AsyncIterator[Path]:
    """A share of that tag and id, for a test that leaves it plugged in."""
    await served.host.Plug(plug("src", share=host.Share(directory=str(directory))))
    try:
        yield directory
    finally:
        await served.host.Unplug(host.UnplugRequest(id="src"))


async def attach(guest: Guest, storage_id: str = "code", tag: str = "src", **more: Any) -> None:
    source = storages.VirtiofsSource(tag=tag)
    storage = storages.Storage(id=storage_id, virtiofs=source, **more)
    await guest.storages.Attach(storages.AttachStorageRequest(storage=storage))


async def detach(guest: Guest, storage_id: str = "code") -> storages.DetachStorageResponse:
    return await guest.storages.Detach(storages.DetachStorageRequest(id=storage_id))


def at(destination: str, storage_id: str = "code") -> dict[str, Any]:
    mount = containers.StorageMount(storage_id=storage_id, destination=destination)
    return {"storages": (mount,)}


def servers_of(directory: Path) -> list[int]:
    """Processes whose command line says the directory, escaped or not. A process that
    has ended and was not reaped has no command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\\", b"").split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if any(b"=" + os.fsencode(directory) in word for word in words):
                found.append(int(entry.name))
    return sorted(found)


async def state(guest: Guest, device_id: str = "src") -> str:
    listed = await guest.host.ListPlugged(host.ListPluggedRequest())
    return next(each.state for each in listed.devices if each.id == device_id)


async def test_what_either_side_writes_the_other_reads(served: Guest, src: Path) -> None:
    await attach(served)
    try:
        script = "cat /src/hello; echo from the guest > /src/back; mkdir /src/d; ln -s back /src/l"
        done = await served.run(script, **at("/src"))
        assert done.text == "from the host\n"
        assert (src / "back").read_text() == "from the guest\n"
        assert (src / "l").readlink() == Path("back")
        (src / "back").write_text("again\n")
        assert (await served.run("cat /src/back", **at("/src"))).text == "again\n"
    finally:
        await detach(served)


async def test_a_mounted_share_is_not_unplugged_under_its_users(served: Guest, src: Path) -> None:
    await attach(served)
    try:
        answer = await refused(served.host.Unplug(host.UnplugRequest(id="src")))
        assert answer == (PRECONDITION, "STILL_IN_USE")
        assert (await served.run("cat /src/hello", **at("/src"))).text == "from the host\n"
    finally:
        await detach(served)
    assert servers_of(src) != []


async def test_unplugged_it_leaves_no_process(served: Guest, directory: Path) -> None:
    for _ in range(3):
        await served.host.Plug(plug("src", share=host.Share(directory=str(directory))))
        assert servers_of(directory) != []
        await served.host.Unplug(host.UnplugRequest(id="src"))
        assert servers_of(directory) == []


async def test_read_only_is_the_hosts_to_enforce(served: Guest, directory: Path) -> None:
    """Also where the guest mounts it for writing."""
    share = host.Share(directory=str(directory), tag="kept", read_only=True)
    await served.host.Plug(plug("kept", share=share))
    try:
        await attach(served, tag="kept")
        script = "echo x > /src/hello; echo $?; mkdir /src/d; echo $?; cat /src/hello"
        done = await served.run(script, **at("/src"))
        assert done.text == "1\n1\nfrom the host\n"
        assert b"Read-only file system" in done.stderr
        assert os.listdir(directory) == ["hello"]
    finally:
        await detach(served)
        await served.host.Unplug(host.UnplugRequest(id="kept"))


async def test_a_server_that_is_killed_takes_nothing_else_with_it(
    image: Path, directory: Path
) -> None:
    """The guest's kernel can't let go of what waits for an answer, and the host does not ask
    it to: it would take no other device any more."""
    spec = VmSpec(name="orphan", image=f"{image}/", transport="serial")
    async with booted(spec) as guest:
        share = host.Share(directory=str(directory))
        await guest.host.Plug(plug("src", share=share))
        await attach(guest)
        for pid in servers_of(directory):
            os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while not (await state(guest)).startswith("failed"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await detach(guest)
        answer = await refused(guest.host.Unplug(host.UnplugRequest(id="src")))
        assert answer == (PRECONDITION, "NOT_REMOVABLE")
        await guest.host.Plug(plug("again", share=share))
        await attach(guest, "other", tag="again")
        done = await guest.run("cat /src/hello", **at("/src", "other"))
        assert done.text == "from the host\n"
        await detach(guest, "other")
        await guest.host.Unplug(host.UnplugRequest(id="again"))


async def test_an_idle_share_goes_without_its_server(guest: Guest, directory: Path) -> None:
    await guest.host.Plug(plug("src", share=host.Share(directory=str(directory))))
    for pid in servers_of(directory):
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while True:
            listed = await guest.host.ListPlugged(host.ListPluggedRequest())
            (share,) = [each for each in listed.devices if each.id == "src"]
            if share.state.startswith("failed") and not share.not_removable:
                break
            await asyncio.sleep(0.05)
    await guest.host.Unplug(host.UnplugRequest(id="src"))


async def test_a_daemon_that_is_killed_leaves_no_server(image: Path, directory: Path) -> None:
    vm = await start_vm(VmSpec(name="killed", image=f"{image}/", transport="serial"))
    try:
        await vm.plug(plug("src", share=host.Share(directory=str(directory))))
        assert servers_of(directory) != []
        os.kill(vm.daemon_pid, signal.SIGKILL)
        await until(lambda: not servers_of(directory))
    finally:
        await vm.stop()


async def test_one_command_shares_and_mounts_and_one_takes_both_away(
    guest: Guest, directory: Path, tmp_path: Path
) -> None:
    innkeeper = Innkeeper(environment=os.environ, directory=directory)
    name = guest.vm.name
    done = await innkeeper("storage", "attach", name, "code", "--share", ".")
    assert done.code == 0, done.err
    words = ("--vm", name, "--storage", "code:/src:ro", "--", "cat", "/src/hello")
    assert (await innkeeper("run", *words)).out == b"from the host\n"
    assert "read-only" not in (await innkeeper("storage", "list", name)).out.decode()
    (row,) = [
        line for line in (await innkeeper("storage", "stats", name)).lines if line[:4] == "code"
    ]
    assert row.split()[-2:] == ["good", "-"]
    done = await innkeeper("storage", "detach", name, "code")
    assert (done.code, servers_of(directory)) == (0, []), done.err
    share = ("--share", f"{directory}:/src", "--", "sh", "-c", "echo made > /src/made")
    assert (await innkeeper("run", "--vm", name, *share)).code == 0
    assert (directory / "made").read_text() == "made\n"
    assert servers_of(directory) == []


async def size_of(guest: Guest, bdf: str) -> int:
    text = await guest.probe(f"cat /sys/bus/pci/devices/{bdf}/virtio*/block/vd*/size")
    return int(text) * 512


async def test_a_disk_grows_while_it_is_plugged_in(guest: Guest, tmp_path: Path) -> None:
    """By a size, and to what somebody has made its file; QEMU tells a guest of virtio-blk
    at once."""
    file = tmp_path / "disk.img"
    file.write_bytes(bytes(MIB))
    (attached,) = (await guest.host.Plug(disk_plug("grows", file))).attached
    try:
        answer = await guest.host.ResizeDisk(host.ResizeDiskRequest(id="grows", size=4 * MIB))
        assert (answer.size, file.stat().st_size) == (4 * MIB, 4 * MIB)
        assert await size_of(guest, attached.pci_bdf) == 4 * MIB
        os.truncate(file, 8 * MIB)
        answer = await guest.host.ResizeDisk(host.ResizeDiskRequest(id="grows"))
        assert answer.size == await size_of(guest, attached.pci_bdf) == 8 * MIB
        smaller = host.ResizeDiskRequest(id="grows", size=MIB)
        answer_ = await refused(guest.host.ResizeDisk(smaller))
        assert answer_ == (PRECONDITION, "RESIZE_REFUSED")
    finally:
        await guest.host.Unplug(host.UnplugRequest(id="grows"))
    assert file.stat().st_size == 8 * MIB


async def test_the_file_system_grows_with_its_disk(guest: Guest, tmp_path: Path) -> None:
    innkeeper = Innkeeper(environment=os.environ, directory=tmp_path)
    name = guest.vm.name
    (tmp_path / "d.img").touch()
    os.truncate(tmp_path / "d.img", 64 * MIB)
    words = ("--disk", "d.img", "--format")
    done = await innkeeper("storage", "attach", name, "grown", *words)
    assert done.code == 0, done.err
    try:
        done = await innkeeper("storage", "resize", name, "grown", "128M")
        assert done.code == 0, done.err
        stats = await guest.storages.Stats(storages.StorageStatsRequest(id="grown"))
        assert 100 * MIB < stats.size <= 128 * MIB
    finally:
        done = await innkeeper("storage", "detach", name, "grown")
    assert done.code == 0, done.err


@pytest.mark.parametrize("model", [host.DISK_MODEL_NVME])
async def test_a_disk_that_qemu_can_not_resize_says_so(
    guest: Guest, tmp_path: Path, model: host.DiskModel.ValueType
) -> None:
    """QEMU's NVMe keeps the permission to itself (hw/nvme/ns.c: not resizable)."""
    file = tmp_path / "disk.img"
    file.write_bytes(bytes(MIB))
    disk = host.Disk(content=host.DiskFile(file=str(file)), model=model)
    await guest.host.Plug(plug("stiff", disk=disk))
    try:
        request = host.ResizeDiskRequest(id="stiff", size=2 * MIB)
        assert await refused(guest.host.ResizeDisk(request)) == (PRECONDITION, "RESIZE_REFUSED")
    finally:
        await guest.host.Unplug(host.UnplugRequest(id="stiff"))


async def test_a_share_by_9p_is_there_from_the_start(root: Path, directory: Path) -> None:
    """QEMU serves it itself, and has no hot-plug for it; Debian's cloud kernel has no 9p."""
    program = str(root / "build/venv/bin/innkeeper")
    commands.run([program, "image", "build", "--flavour", "generic"], deadline=1500)
    spec = VmSpec(
        name="plan9",
        image=f"{root / 'build/images/generic'}/",
        transport="serial",
        shares_9p=(
            NinePShare(tag="src", directory=directory),
            NinePShare(tag="kept", directory=directory, read_only=True),
        ),
    )
    async with booted(spec) as guest:
        for tag in ("src", "kept"):
            storage = storages.Storage(id=tag, nine_p=storages.NinePSource(tag=tag))
            await guest.storages.Attach(storages.AttachStorageRequest(storage=storage))
        done = await guest.run("cat /x/hello; echo back > /x/back", **at("/x", "src"))
        assert (done.text, (directory / "back").read_text()) == ("from the host\n", "back\n")
        done = await guest.run("cat /x/back; echo no > /x/back; echo $?", **at("/x", "kept"))
        assert done.text == "back\n1\n"
        for tag in ("src", "kept"):
            await detach(guest, tag)
    assert (directory / "back").read_text() == "back\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_share_without_server_costs_no_disk_its_data(
    image: Path, directory: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """The guest powers off by itself; the disk needs no replay of its journal, and has the file.

    A container hangs in the share while it has the disk, and keeps both mounted.
    """
    (tmp_path / "tree").mkdir()
    disk = make_disk(tmp_path / "tree", tmp_path / "disk.img", size=16 << 20)
    async with booted(VmSpec(name="served", image=f"{image}/", transport="serial")) as guest:
        await guest.host.Plug(disk_plug("data", disk.file))
        storage = on_disk("data", "data")
        await guest.storages.Attach(storages.AttachStorageRequest(storage=storage))
        await guest.host.Plug(plug("src", share=host.Share(directory=str(directory))))
        await attach(guest)
        mounts = (*at("/src")["storages"], *at("/data", "data")["storages"])
        name = await guest.start("echo ready; read line; echo going; ls /src/x", storages=mounts)
        ref = types.ProcessRef(container_id=name)
        attachment = await Attachment(guest.processes, process=ref).open()
        await attachment.until_text(b"ready")
        for server in servers_of(directory):
            os.kill(server, number)
        await attachment.send(b"line\n")
        await attachment.until_text(b"going")
        attachment.cancel()
        await guest.run("echo kept > /data/kept", **at("/data", "data"))
        console = tmp_path / "console"
        os.link(guest.vm.directory / "console.log", console)
        ended = await guest.host.Stop(host.StopVmRequest())
    said = console.read_text(errors="replace")[-2000:]
    assert (ended.clean, ended.ended_because) == (True, ""), said
    shown = commands.run(["/usr/sbin/dumpe2fs", "-h", str(disk.file)], deadline=30).text
    assert "needs_recovery" not in shown
    kept = commands.run(["/usr/sbin/debugfs", "-R", "cat /kept", str(disk.file)], deadline=30)
    assert "kept\n" in kept.text
