"""How a VM ends: asked to, by a signal, by force. What is left then: nothing.

Two VMs run in each test; while the first goes, the second must not notice.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc import aio

from innkeeper.shim import commands
from innkeeper.shim.client import StateDir, list_vms
from innkeeper.shim.guest_disk import make_disk
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import sandbox_pb2 as sandbox
from innkeeper.v1 import storages_pb2 as storages
from innkeeper.v1 import types_pb2 as types
from tests.fakes.plugs import disk_plug
from tests.vm.attachment import Attachment
from tests.vm.disks import on_disk
from tests.vm.ending import LIMIT, Ending, ending, processes_of
from tests.vm.guest import PROBE, Guest, reason

pytestmark = [pytest.mark.vm, pytest.mark.operations]

DEAF = "trap '' TERM INT HUP; exec 3>/data/open; echo x >&3; echo ready; while :; do sleep 1; done"
VHOST_USER = "vhost-device-vsock"


async def _start_deaf(guest: Guest, file: Path) -> None:
    """A container that ignores SIGTERM and keeps a file of a plugged disk open for writing."""
    await guest.host.Plug(disk_plug("data", file))
    storage = on_disk("data", "data")
    await guest.storages.Attach(storages.AttachStorageRequest(storage=storage))
    mount = containers.StorageMount(storage_id="data", destination="/data")
    name = await guest.start(DEAF, storages=(mount,))
    ref = types.ProcessRef(container_id=name)
    attachment = await Attachment(guest.processes, process=ref).open()
    await attachment.until_text(b"ready")
    attachment.cancel()


def _file_system(file: Path) -> str:
    shown = commands.run(["/usr/sbin/dumpe2fs", "-h", str(file)], deadline=LIMIT)
    return shown.text


@asynccontextmanager
async def _undisturbed(other: Ending) -> AsyncIterator[None]:
    """The other VM goes on through the block: its guest, its agent and a container."""
    guest = other.guest
    name = await guest.start("read line; exit 9")
    before = await guest.describe()
    yield
    after = await guest.describe()
    assert after.boot_id == before.boot_id
    assert (after.agent_pid, after.agent_restarts) == (before.agent_pid, before.agent_restarts)
    ref = types.ProcessRef(container_id=name)
    attachment = await Attachment(guest.processes, process=ref).open()
    await attachment.send(b"line\n")
    assert (await attachment.to_the_end()).code == 9


async def _ask(guest: Guest, action: sandbox.ShutdownAction.ValueType) -> None:
    """The answer comes before anything stops, so it is there."""
    await guest.sandbox.Shutdown(sandbox.ShutdownRequest(action=action), timeout=LIMIT)


async def test_power_off_and_reboot_when_asked(image: Path, tmp_path: Path) -> None:
    """Neither a mounted disk nor a container that ignores SIGTERM is in the way."""
    (tmp_path / "tree").mkdir()
    disk = make_disk(tmp_path / "tree", tmp_path / "disk.img", size=16 << 20)
    async with ending(image, "off", "reboot") as (off, reboot):
        async with _undisturbed(reboot):
            await _start_deaf(off.guest, disk.file)
            assert "needs_recovery" in _file_system(disk.file), "it is mounted"
            await _ask(off.guest, sandbox.SHUTDOWN_ACTION_POWER_OFF)
            await off.gone()
        off.went_down_in_order("off", "reboot: Power down")
        assert not off.guest.vm.directory.exists()
        shown = _file_system(disk.file)
        assert "needs_recovery" not in shown, "it was not unmounted"
        assert "Filesystem state:         clean" in shown
        await _ask(reboot.guest, sandbox.SHUTDOWN_ACTION_REBOOT)
        await reboot.gone()
        reboot.went_down_in_order("reboot", "reboot: Restarting system")
    assert {vm.name for vm in list_vms()}.isdisjoint({"off", "reboot"})


async def test_signals_to_process_1(image: Path) -> None:
    """SIGTERM, and SIGINT, which is what the kernel makes of ctrl-alt-del.

    The machine has no keyboard to press it on. 0 in /proc/sys/kernel/ctrl-alt-del
    says that process 1 is told (the kernel's sysctl documentation).
    """
    async with ending(image, "term", "int") as (term, ctrl_alt_del):
        async with _undisturbed(ctrl_alt_del):
            await term.guest.start("kill -TERM 1", **PROBE)
            await term.gone()
        assert "SIGTERM from pid" in term.went_down_in_order("off", "reboot: Power down")
        guest = ctrl_alt_del.guest
        assert (await guest.probe("cat /proc/sys/kernel/ctrl-alt-del")).strip() == "0"
        await guest.start("kill -INT 1", **PROBE)
        await ctrl_alt_del.gone()
        assert "SIGINT from pid" in ctrl_alt_del.went_down_in_order("off", "reboot: Power down")
    assert {vm.name for vm in list_vms()}.isdisjoint({"term", "int"})


async def test_a_killed_daemon_and_a_killed_qemu(image: Path) -> None:
    """The daemon takes QEMU and the transport's helper with it; without QEMU the daemon goes."""
    transport = "vhost-user-vsock" if shutil.which(VHOST_USER) else "auto"
    async with ending(image, "orphan", "victim", transport=transport) as (orphan, victim):
        async with _undisturbed(orphan):
            waiting = await _waiting(victim.guest)
            os.kill((await victim.guest.vm.describe()).qemu_pid, signal.SIGKILL)
            error = await _failure(waiting)
            await victim.gone()
        assert (error.code(), reason(error)) == (grpc.StatusCode.ABORTED, "QEMU_GONE")
        assert "killed by SIGKILL" in (error.details() or "")
        assert not victim.guest.vm.directory.exists()
        kept = StateDir.default().failed("victim")
        assert {file.name for file in kept.iterdir()} >= {"console.log", "daemon.log"}

        assert (VHOST_USER in orphan.programs) == (transport != "auto")
        waiting = await _waiting(orphan.guest)
        os.kill(orphan.guest.vm.daemon_pid, signal.SIGKILL)
        error = await _failure(waiting)
        await orphan.gone()
        assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert {vm.name for vm in list_vms()}.isdisjoint({"orphan", "victim"})
    assert not orphan.guest.vm.directory.exists(), "the next look removes what a killed one left"
    assert processes_of(orphan.guest.vm.directory) == {}


async def _waiting(guest: Guest) -> asyncio.Task[processes.WaitResponse]:
    """A call that the VM's end finds in progress."""
    name = await guest.start("echo ready; sleep 1000")
    ref = types.ProcessRef(container_id=name)
    attachment = await Attachment(guest.processes, process=ref).open()
    await attachment.until_text(b"ready")
    attachment.cancel()

    async def call() -> processes.WaitResponse:
        return await guest.processes.Wait(processes.WaitRequest(process=ref), timeout=LIMIT)

    return asyncio.create_task(call())


async def _failure(call: Awaitable[object]) -> aio.AioRpcError:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value
