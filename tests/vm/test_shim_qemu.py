"""The shim against a real QEMU whose CPU never starts (`-S`): no guest, no image."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from innkeeper.shim import commands, topology
from innkeeper.shim.disks import DiskFile
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware.disk import VirtioDisk
from innkeeper.shim.helpers import Helpers
from innkeeper.shim.machine import PROGRAM
from innkeeper.shim.plug import Plugger
from innkeeper.shim.plugged import Wanted
from innkeeper.shim.qmp import Monitor, QemuRefusedError
from innkeeper.shim.table import Table
from innkeeper.shim.topology import Layout, Port, PortPool
from tests.fakes import qmp as fake
from tests.fakes.guest_devices import FakeGuestDevices

pytestmark = [
    pytest.mark.vm,
    pytest.mark.devices,
    pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"needs {PROGRAM}"),
]

LIMIT = 20.0
STOPPED = (PROGRAM, "-S", "-M", "q35", "-accel", "tcg", "-nodefaults", "-display", "none")


@contextlib.asynccontextmanager
async def stopped_qemu(log: Path, *arguments: str) -> AsyncIterator[Monitor]:
    ours, theirs = socket.socketpair()
    with theirs, log.open("wb") as output:
        chardev = f"socket,id=monitor,fd={theirs.fileno()}"
        process = await commands.spawn_tied(
            (*STOPPED, *arguments, "-chardev", chardev, "-mon", "chardev=monitor,mode=control"),
            output=output.fileno(),
            pass_fds=(theirs.fileno(),),
        )
    monitor = Monitor("stopped")
    try:
        await monitor.connect(ours)
        yield monitor
    finally:
        await monitor.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def device_words(built: topology.Topology) -> tuple[str, ...]:
    return tuple(word for device in built.devices for word in ("-device", device))


def table_of(ports: tuple[Port, ...]) -> Table:
    return Table(PortPool(ports=ports))


def wanted(device_id: str, file: DiskFile) -> tuple[Wanted, ...]:
    return (Wanted(id=device_id, hardware=VirtioDisk(file=file, serial=device_id)),)


@pytest.fixture
def disk(tmp_path: Path) -> DiskFile:
    (tmp_path / "disk.img").write_bytes(bytes(1 << 20))
    return DiskFile.check(str(tmp_path / "disk.img"), "raw", read_only=False)


async def questions(monitor: Monitor, file: DiskFile) -> list[str]:
    """What a client can get wrong, and QEMU's class and words for it."""
    answers = []
    frontend = {"driver": "virtio-blk-pci", "id": "dev-a", "drive": "n", "bus": "port0"}
    for command, arguments in (
        ("device_del", {"id": "dev-none"}),
        ("blockdev-del", {"node-name": "none"}),
        ("device_add", frontend),
        ("blockdev-add", file.blockdev("n")),
        ("device_add", frontend),
        ("device_add", frontend),
        ("blockdev-del", {"node-name": "n"}),
        ("no-such-command", {}),
    ):
        try:
            answers.append(str(await monitor.execute(command, arguments)))
        except QemuRefusedError as error:
            answers.append(f"{error.error_class}: {error.text}")
    return answers


async def test_the_fake_answers_as_a_real_one_does(tmp_path: Path, disk: DiskFile) -> None:
    ports = topology.build(Layout(ports=1))
    async with stopped_qemu(tmp_path / "log", *device_words(ports)) as monitor:
        real = await questions(monitor, disk)
    async with fake.connected(fake.FakeQmp()) as monitor:
        faked = await questions(monitor, disk)
    assert faked == real


async def test_every_port_of_the_pool_takes_a_disk(tmp_path: Path, disk: DiskFile) -> None:
    """A stopped machine takes hot-plug, so QEMU itself checks buses, slots and chassis."""
    built = topology.build(Layout(ports=16, bridge=True))
    async with stopped_qemu(tmp_path / "log", *device_words(built)) as monitor:
        for port in built.ports:
            await monitor.execute(
                "blockdev-add",
                {"driver": "null-co", "node-name": f"n-{port.name}", "size": 1 << 20},
            )
            frontend = {"driver": "virtio-blk-pci", "drive": f"n-{port.name}"}
            place = {"bus": port.bus, "addr": f"{port.slot:02x}", "id": f"d-{port.name}"}
            await monitor.execute("device_add", frontend | place)


@pytest.mark.parametrize(
    ("bus", "text"),
    [
        ("pcie.0", "Bus 'pcie.0' does not support hotplugging"),
        ("dull", "Bus 'dull' does not support hotplugging"),
    ],
)
async def test_a_bus_without_hot_plug_is_named_and_the_file_closed_again(
    tmp_path: Path, disk: DiskFile, bus: str, text: str
) -> None:
    """The root bus, and a root port that was made without hot-plug."""
    port = Port(name="bad", bus=bus, slot=0 if bus == "dull" else 9, pci_path="09")
    dull = "pcie-root-port,id=dull,hotplug=off,chassis=1"
    async with stopped_qemu(tmp_path / "log", "-device", dull) as monitor:
        plugger = Plugger(
            monitor,
            FakeGuestDevices(fake.FakeQmp()),
            table_of((port,)),
            Helpers(tmp_path / "helpers.log"),
        )
        with pytest.raises(ShimError, match=text) as caught:
            await plugger.plug(wanted("data", disk), LIMIT)
        assert caught.value.reason is Reason.QEMU_REFUSED
        nodes = await monitor.execute("query-named-block-nodes")
        await plugger.close()
    assert nodes == []
    assert plugger.list() == ()


async def test_a_device_that_does_not_let_go_stays_leaving(tmp_path: Path, disk: DiskFile) -> None:
    """A guest whose CPU stands still never answers: QEMU takes device_del, and waits."""
    qmp = fake.FakeQmp()
    guest = FakeGuestDevices(qmp)
    built = topology.build(Layout(ports=1))
    async with stopped_qemu(tmp_path / "log", *device_words(built)) as monitor:
        plugger = Plugger(monitor, guest, table_of(built.ports), Helpers(tmp_path / "helpers.log"))
        qmp.devices["dev-data"] = {"serial": "data"}
        await plugger.plug(wanted("data", disk), LIMIT)
        with pytest.raises(ShimError) as caught:
            await plugger.unplug("data", 0.5)
        assert caught.value.reason is Reason.OPERATION_TIMED_OUT
        with pytest.raises(ShimError) as caught:
            await plugger.unplug("data", 0.5)
        assert caught.value.reason is Reason.REMOVAL_PENDING
        nodes = await monitor.execute("query-named-block-nodes")
        await plugger.close()
    assert len(nodes) == 2


async def test_a_file_has_one_writer(tmp_path: Path, disk: DiskFile) -> None:
    built = topology.build(Layout(ports=2))
    async with (
        stopped_qemu(tmp_path / "one", *device_words(built)) as first,
        stopped_qemu(tmp_path / "two", *device_words(built)) as second,
    ):
        await first.execute("blockdev-add", disk.blockdev("n"))
        await first.execute(
            "device_add", {"driver": "virtio-blk-pci", "drive": "n", "bus": "port0"}
        )
        plugger = Plugger(
            second,
            FakeGuestDevices(fake.FakeQmp()),
            table_of(built.ports),
            Helpers(tmp_path / "helpers.log"),
        )
        with pytest.raises(ShimError, match="in use by somebody else") as caught:
            await plugger.plug(wanted("data", disk), LIMIT)
        assert caught.value.reason is Reason.FILE_IN_USE
        await plugger.close()


async def test_a_qcow2_image_that_is_none_is_qemus_to_refuse(tmp_path: Path) -> None:
    """Its header begins right, and then is nonsense."""
    path = tmp_path / "disk.qcow2"
    path.write_bytes(b"QFI\xfb" + bytes(508))
    disk = DiskFile.check(str(path), "qcow2", read_only=False)
    async with stopped_qemu(tmp_path / "log") as monitor:
        table = table_of(topology.build(Layout(ports=1)).ports)
        plugger = Plugger(
            monitor, FakeGuestDevices(fake.FakeQmp()), table, Helpers(tmp_path / "helpers.log")
        )
        with pytest.raises(ShimError) as caught:
            await plugger.plug(wanted("data", disk), LIMIT)
        assert caught.value.reason is Reason.QEMU_REFUSED
        await plugger.close()


# A process that spawns QEMU as the daemon does, says its pid, and waits.
STARTER = """
import asyncio, sys
from innkeeper.shim import commands

async def main():
    process = await commands.spawn_tied(sys.argv[1:], output=2)
    print(process.pid, flush=True)
    await process.wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def starter(log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process, and a descriptor of the QEMU that it started."""
    argv = (sys.executable, "-c", STARTER, *STOPPED)
    with (
        log.open("wb") as errors,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        qemu = os.pidfd_open(int(process.stdout.readline()))
        try:
            yield process, qemu
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(qemu, signal.SIGKILL)
            os.close(qemu)
            process.kill()


async def ended(pidfd: int) -> None:
    """Returns when the process has; its descriptor becomes readable then."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, event.set)
    try:
        async with asyncio.timeout(LIMIT):
            await event.wait()
    finally:
        loop.remove_reader(pidfd)


async def test_a_killed_daemon_leaves_no_qemu(tmp_path: Path) -> None:
    with starter(tmp_path / "log") as (process, qemu):
        signal.pidfd_send_signal(qemu, 0)
        process.kill()
        await ended(qemu)


async def test_a_parent_that_died_before_the_tie_was_made_is_noticed(tmp_path: Path) -> None:
    """The parent death signal is set after the fork, and never comes for a parent
    that is gone by then."""
    touch = ("touch", str(tmp_path / "touched"))
    done = await asyncio.create_subprocess_exec(
        "sh", "-c", commands.IF_PARENT_LIVES, "sh", "1", *touch
    )
    assert await done.wait() == 1
    assert not (tmp_path / "touched").exists()


async def test_a_tied_program_is_refused_off_the_main_thread() -> None:
    """The signal would fire when that thread ends."""

    def spawn() -> None:
        asyncio.run(_spawn_true())

    with pytest.raises(RuntimeError, match="main thread"):
        await asyncio.to_thread(spawn)


async def _spawn_true() -> None:
    await commands.spawn_tied(("true",), output=2)
