"""The daemon as a process of its own, started and stopped as users do, over a stand-in for QEMU."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc import aio

from innkeeper.shim.client import (
    Phase,
    Progress,
    ShimError,
    StateDir,
    Vm,
    VmSpec,
    find_vm,
    list_vms,
    start_vm,
)
from innkeeper.shim.errors import Reason
from innkeeper.shim.machine import PROGRAM
from innkeeper.shim.statedir import is_locked
from innkeeper.v1 import host_pb2, host_pb2_grpc
from tests.conftest import ROOT
from tests.fakes.plugs import disk_plug
from tests.fakes.qemu_program import CONSOLE

pytestmark = [pytest.mark.contract, pytest.mark.operations]

PATIENCE = 30
IMPORT_ROOTS = (ROOT / "protocol", ROOT / "tools")


@dataclass(slots=True)
class Host:
    """Where VMs go, and the image that they boot."""

    state: StateDir
    image: str

    async def start(self, name: str = "web", **parts: object) -> Vm:
        spec = VmSpec(name=name, image=self.image, transport="serial", accel="tcg", **parts)  # type: ignore[arg-type]
        return await start_vm(spec, state=self.state)

    def everything(self) -> list[str]:
        return sorted(path.name for path in self.state.root.iterdir())


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="ik-") as folder:
        root = Path(folder)
        program = root / "bin" / PROGRAM
        program.parent.mkdir()
        start = f"exec '{sys.executable}' -m tests.fakes.qemu_program"
        program.write_text(f'#!/bin/sh\n{start} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, *IMPORT_ROOTS))))
        yield Host(StateDir(root=root / "vms"), make_image(root / "image"))


def make_image(directory: Path) -> str:
    directory.mkdir()
    record = {
        "format": 1,
        "flavour": "cloud",
        "kernel": "vmlinuz",
        "initrd": "initrd.img",
        "root": "root.ext4",
        "cmdline": "",
        "inputs_hash": "",
        "kernel_version": "6.12.0",
        "size": 0,
    }
    (directory / "image.json").write_text(json.dumps(record))
    for name in ("vmlinuz", "initrd.img", "root.ext4"):
        (directory / name).touch()
    return f"{directory}/"


def method(channel: grpc.aio.Channel, path: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(path)


@contextlib.asynccontextmanager
async def running(host: Host, name: str = "web", **parts: object) -> AsyncIterator[Vm]:
    vm = await host.start(name, **parts)
    try:
        yield vm
    finally:
        await vm.stop()


@contextlib.contextmanager
def raises(reason: Reason) -> Iterator[list[ShimError]]:
    found: list[ShimError] = []
    with pytest.raises(ShimError) as caught:
        yield found
    assert caught.value.reason is reason
    found.append(caught.value)


class Watched:
    """A process by a descriptor of its own, so that its end can be waited for."""

    def __init__(self, pid: int) -> None:
        self.fd = os.pidfd_open(pid)

    async def ended(self) -> None:
        event = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self.fd, event.set)
        try:
            async with asyncio.timeout(PATIENCE):
                await event.wait()
        finally:
            loop.remove_reader(self.fd)
            os.close(self.fd)


async def test_a_vm_starts_step_by_step_is_found_and_stops_cleanly(host: Host) -> None:
    steps: list[Progress] = []
    spec = VmSpec(name="web", image=host.image, transport="serial", accel="tcg")
    vm = await start_vm(spec, state=host.state, on_progress=steps.append)
    assert [step.phase for step in steps] == list(Phase)
    assert [found.name for found in list_vms(host.state)] == ["web"]
    told = await find_vm("web", host.state).describe()
    assert (told.name, told.state, told.accelerator, told.transport) == (
        *("web", "running", "tcg"),
        "serial",
    )
    assert (told.daemon_pid, told.free_ports, told.cpus) == (vm.daemon_pid, 16, 1)
    assert told.first_answer_micros > 0
    qemu = Watched(told.qemu_pid)
    assert await vm.stop() is True
    await qemu.ended()
    assert list_vms(host.state) == ()
    assert host.everything() == []


async def test_a_guest_that_does_not_power_off_is_ended(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_QEMU", "ignores-shutdown")
    vm = await host.start()
    qemu = Watched((await vm.describe()).qemu_pid)
    ending = await vm.end(grace=0.2)
    assert (ending.clean, ending.why) == (False, "it did not power off within 0.2 s")
    await qemu.ended()


async def test_an_agent_that_was_away_is_asked_again_when_it_is_back(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It restarts within seconds, and without it nothing writes out the guest's disks."""
    monkeypatch.setenv("FAKE_QEMU", "agent-away-first")
    vm = await host.start()
    assert (await vm.end()).clean


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("agent-away", "its agent was away for the 0.3 s of grace"),
        ("refuses-shutdown", "its agent refused to power it off"),
    ],
)
async def test_a_vm_that_was_ended_is_told_with_the_reason(
    host: Host, monkeypatch: pytest.MonkeyPatch, mode: str, why: str
) -> None:
    monkeypatch.setenv("FAKE_QEMU", mode)
    vm = await host.start()
    ending = await vm.end(grace=0.3)
    assert not ending.clean
    assert ending.why.startswith(why)


async def test_a_name_has_one_vm(host: Host) -> None:
    async with running(host):
        with raises(Reason.NAME_IN_USE):
            await host.start()


async def test_two_starts_of_a_name_at_once_give_one_vm(host: Host) -> None:
    results = await asyncio.gather(host.start(), host.start(), return_exceptions=True)
    (vm,) = [result for result in results if isinstance(result, Vm)]
    (error,) = [result for result in results if isinstance(result, ShimError)]
    assert error.reason is Reason.NAME_IN_USE
    await vm.stop()


async def test_unknown_vms_are_told_with_those_that_run(host: Host) -> None:
    async with running(host):
        with raises(Reason.UNKNOWN_VM) as errors:
            find_vm("db", host.state)
    assert "these run: web" in str(errors[0])


async def test_a_qemu_that_refuses_its_command_line_is_quoted(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_QEMU", "refuses")
    with raises(Reason.QEMU_GONE) as errors:
        await host.start()
    assert "'nonsense' is not a valid device" in str(errors[0])
    assert host.everything() == [".failed"]


async def test_a_start_with_kvm_that_fails_points_at_tcg(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_QEMU", "refuses")
    spec = VmSpec(name="web", image=host.image, transport="serial", accel="kvm")
    with pytest.raises(ShimError) as caught:
        await start_vm(spec, state=host.state)
    assert "take --accel tcg" in caught.value.hint


async def test_a_boot_that_panics_shows_the_consoles_end_and_keeps_the_logs(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_QEMU", "panics")
    with raises(Reason.BOOT_FAILED) as errors:
        await host.start()
    assert "Kernel panic - not syncing" in str(errors[0])
    logs = host.state.failed("web")
    assert str(logs) in str(errors[0])
    assert b"Kernel panic" in (logs / "console.log").read_bytes()
    assert (logs / "daemon.log").read_text()
    assert list_vms(host.state) == ()


async def test_a_boot_without_an_answer_ends_at_its_limit(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_QEMU", "never-answers")
    with raises(Reason.BOOT_FAILED) as errors:
        await host.start(boot_timeout=1.0)
    assert "did not answer within 1 s" in str(errors[0])
    assert "innkeeper: booted" in str(errors[0])


async def test_a_start_that_is_cancelled_leaves_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_QEMU", "never-answers")
    booting = asyncio.Event()
    spec = VmSpec(name="web", image=host.image, transport="serial", accel="tcg")
    start = asyncio.create_task(
        start_vm(spec, state=host.state, on_progress=lambda step: booting.set())
    )
    async with asyncio.timeout(PATIENCE):
        await booting.wait()
    daemon = Watched(json.loads(host.state.paths("web").record.read_text())["daemon_pid"])
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    await daemon.ended()
    assert not is_locked(host.state.paths("web"))


async def test_a_missing_image_is_said_before_anything_starts(host: Host) -> None:
    with raises(Reason.IMAGE_NOT_FOUND):
        await start_vm(VmSpec(name="web", image="/none/"), state=host.state)
    assert not host.state.root.exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": 1},
        {"cpus": 0},
        {"ports": 65},
        {"boot_timeout": float("nan")},
        {"cmdline": ("a\nb",)},
    ],
)
async def test_a_spec_that_can_not_be_is_a_bad_field(host: Host, wrong: dict[str, object]) -> None:
    with raises(Reason.BAD_FIELD):
        await host.start(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"transport": "pigeon"}, {"accel": "xen"}])
async def test_a_choice_that_is_none_is_a_bad_field(host: Host, wrong: dict[str, str]) -> None:
    parts = {"transport": "serial", "accel": "tcg", **wrong}
    with raises(Reason.BAD_FIELD):
        await start_vm(VmSpec(name="web", image=host.image, **parts), state=host.state)  # type: ignore[arg-type]


async def test_a_killed_daemon_takes_qemu_along_and_its_name_is_free(host: Host) -> None:
    vm = await host.start()
    qemu = Watched((await vm.describe()).qemu_pid)
    daemon = Watched(vm.daemon_pid)
    os.kill(vm.daemon_pid, signal.SIGKILL)
    await daemon.ended()
    await qemu.ended()
    assert list_vms(host.state) == ()
    assert host.everything() == []
    async with running(host):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_daemon_told_to_end_stops_the_vm_in_order(host: Host, number: int) -> None:
    vm = await host.start()
    qemu, daemon = Watched((await vm.describe()).qemu_pid), Watched(vm.daemon_pid)
    os.kill(vm.daemon_pid, number)
    await daemon.ended()
    await qemu.ended()
    assert host.everything() == []


async def test_a_qemu_that_dies_fails_calls_in_progress_with_its_end(host: Host) -> None:
    vm = await host.start()
    daemon = Watched(vm.daemon_pid)
    async with vm.channel() as channel:
        hang = asyncio.ensure_future(method(channel, "/test.Proxied/Hang")(b""))
        assert await method(channel, "/test.Proxied/Echo")(b"hi") == b"hi"
        os.kill((await vm.describe()).qemu_pid, signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await hang
    told = ShimError.from_call(caught.value)
    assert told is not None
    assert told.reason is Reason.QEMU_GONE
    assert "killed by SIGKILL" in told.message
    assert "innkeeper: booted" in told.message
    await daemon.ended()
    assert host.everything() == [".failed"]
    with raises(Reason.UNKNOWN_VM) as errors:
        find_vm("web", host.state)
    assert f"that failed: {host.state.failed('web')}; none runs" in errors[0].hint


async def test_a_guest_that_powers_itself_off_is_no_failure(host: Host) -> None:
    vm = await host.start()
    daemon = Watched(vm.daemon_pid)
    async with vm.channel() as channel:
        await method(channel, "/innkeeper.v1.Sandbox/Shutdown")(b"")
    await daemon.ended()
    assert host.everything() == []


async def test_a_tied_vm_ends_with_its_starter(host: Host) -> None:
    vm = await host.start(tied=True)
    assert vm.leash >= 0
    qemu, daemon = Watched((await vm.describe()).qemu_pid), Watched(vm.daemon_pid)
    os.close(vm.leash)
    await daemon.ended()
    await qemu.ended()


async def test_qemu_is_asked_questions_and_nothing_else(host: Host) -> None:
    async with running(host) as vm, vm.channel() as channel:
        stub = host_pb2_grpc.HostStub(channel)
        answer = await stub.Query(host_pb2.QueryQemuRequest(command="query-status"))
        assert json.loads(answer.answer)["status"] == "running"
        for command in ("quit", "device_del", "", "query-", "query-status\n", "QUERY-STATUS"):
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.Query(host_pb2.QueryQemuRequest(command=command))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, command
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Query(host_pb2.QueryQemuRequest(command="query-nothing"))
        assert "query-nothing" in (caught.value.details() or "")


async def test_a_disk_is_plugged_listed_and_unplugged(host: Host, tmp_path: Path) -> None:
    (tmp_path / "disk.img").write_bytes(bytes(4096))
    request = disk_plug("data", tmp_path / "disk.img")
    async with running(host) as vm:
        answer = await vm.plug(request)
        assert answer.attached[0].pci_path == "10/00"
        assert answer.usable_micros > 0
        assert answer.attached[0].device.block.expect_serial == "data"
        (plugged,) = await vm.plugged()
        assert (plugged.id, plugged.pci_path, plugged.state) == ("data", "10/00", "plugged")
        assert (plugged.model, plugged.port) == ("virtio-blk", "port0")
        assert [list(port.devices) for port in (await vm.ports())[:2]] == [["data"], []]
        assert (await vm.describe()).free_ports == 15
        with raises(Reason.ID_IN_USE):
            await vm.plug(request)
        await vm.unplug("data")
        assert await vm.plugged() == ()
        with raises(Reason.UNKNOWN_DEVICE):
            await vm.unplug("data")


@pytest.mark.parametrize(
    "wrong",
    [
        {"device_id": ""},
        {"device_id": "../x"},
        {"device_id": "a..b"},
        {"device_id": "-rf"},
        {"device_id": "x" * 65},
        {"file": "disk.img"},
        {"file": ""},
        {"format": "vmdk"},
        {"timeout_seconds": -1.0},
        {"timeout_seconds": float("nan")},
    ],
)
async def test_bad_input_is_refused_with_nothing_changed(
    host: Host, tmp_path: Path, wrong: dict[str, object]
) -> None:
    (tmp_path / "disk.img").touch()
    good = {"device_id": "data", "file": str(tmp_path / "disk.img")}
    async with running(host) as vm:
        with raises(Reason.BAD_FIELD):
            await vm.plug(disk_plug(**good | wrong))  # type: ignore[arg-type]
        assert (await vm.describe()).free_ports == 16


async def test_what_is_no_message_is_a_bad_field(host: Host) -> None:
    """gRPC itself would say UNKNOWN, without a reason, and leave the host to guess."""
    async with running(host) as vm, vm.channel() as channel:
        for name in ("Describe", "Plug", "Stop"):
            with pytest.raises(aio.AioRpcError) as caught:
                await method(channel, f"/innkeeper.v1.Host/{name}")(b"\xff\xff")
            told = ShimError.from_call(caught.value)
            assert told is not None
            assert told.reason is Reason.BAD_FIELD
        assert (await vm.describe()).state == "running"


async def test_a_vm_that_was_stopped_meanwhile_is_unknown(host: Host) -> None:
    vm = await host.start()
    await vm.stop()
    with raises(Reason.UNKNOWN_VM):
        await vm.describe()
    assert await vm.stop() is False


async def test_a_call_in_progress_is_told_that_the_vm_was_stopped(host: Host) -> None:
    """And not all that the console said: nothing went wrong."""
    vm = await host.start()
    async with vm.channel() as channel:
        hang = asyncio.ensure_future(method(channel, "/test.Proxied/Hang")(b""))
        assert await method(channel, "/test.Proxied/Echo")(b"hi") == b"hi"
        await vm.stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await hang
    told = ShimError.from_call(caught.value)
    assert told is not None
    assert (told.reason, told.message) == (Reason.STOPPING, "VM web: was stopped")


async def test_all_of_the_console_is_in_its_log_after_the_end(host: Host) -> None:
    vm = await host.start()
    log = vm.directory / "console.log"
    seen = log.open("rb")
    await vm.stop()
    with seen:
        assert seen.read() == b"".join(CONSOLE)


@pytest.mark.parametrize("grace", [float("nan"), float("inf"), -1.0, 1e9])
async def test_an_impossible_grace_ends_nothing(host: Host, grace: float) -> None:
    """gRPC takes such a deadline for one that has passed: the daemon was killed for silence."""
    async with running(host) as vm:
        with raises(Reason.BAD_FIELD):
            await vm.end(grace)
        assert (await vm.describe()).state == "running"
