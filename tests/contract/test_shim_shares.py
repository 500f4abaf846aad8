"""Shares and growing disks by the daemon as a process of its own, over a stand-in for QEMU."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import grpc
import pytest

from innkeeper.shim.client import ColdDevice
from innkeeper.shim.errors import Reason
from innkeeper.shim.virtiofsd import VARIABLE
from innkeeper.v1 import host_pb2
from tests.contract.test_shim_daemon import Host, host, raises, running
from tests.fakes.plugs import disk_plug, plug
from tests.fakes.virtiofsd import fake_virtiofsd
from tests.fakes.waiting import until

__all__ = ["host"]  # a fixture

pytestmark = [pytest.mark.contract, pytest.mark.storage]

MIB = 1 << 20


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> host_pb2.PlugRequest:
    monkeypatch.setenv(VARIABLE, str(fake_virtiofsd(tmp_path / "virtiofsd")))
    return plug("src", share=host_pb2.Share(directory=str(tmp_path)))


def servers(program: Path) -> list[int]:
    """Processes that run it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if os.fsencode(program) in words:
                found.append(int(entry.name))
    return found


async def test_a_share_comes_and_goes_with_its_server(
    host: Host, share: host_pb2.PlugRequest, tmp_path: Path
) -> None:
    async with running(host) as vm:
        answer = await vm.plug(share)
        assert [each.device.id for each in answer.attached] == ["src"]
        (plugged,) = await vm.plugged()
        assert (plugged.model, plugged.source, plugged.state) == (
            "virtiofs",
            str(tmp_path),
            "plugged",
        )
        assert len(servers(tmp_path / "virtiofsd")) == 1
        await vm.unplug("src")
        assert servers(tmp_path / "virtiofsd") == []
        await vm.plug(share)
    assert servers(tmp_path / "virtiofsd") == []


async def test_a_server_that_died_is_listed_as_failed(
    host: Host, share: host_pb2.PlugRequest, tmp_path: Path
) -> None:
    async with running(host) as vm:
        await vm.plug(share)
        (pid,) = servers(tmp_path / "virtiofsd")
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while True:
                (plugged,) = await vm.plugged()
                if plugged.state != "plugged":
                    break
                await asyncio.sleep(0.01)
        assert plugged.state == "failed: virtiofsd ended, killed by SIGKILL"
        assert (await vm.describe()).state == "running"


async def test_a_killed_daemon_takes_its_servers_along(
    host: Host, share: host_pb2.PlugRequest, tmp_path: Path
) -> None:
    async with running(host) as vm:
        await vm.plug(share)
        os.kill(vm.daemon_pid, signal.SIGKILL)
        await until(lambda: not servers(tmp_path / "virtiofsd"))


async def test_private_memory_is_not_shared(host: Host, share: host_pb2.PlugRequest) -> None:
    async with running(host, private_memory=True) as vm:
        with raises(Reason.NOT_PLUGGABLE) as caught:
            await vm.plug(share)
    assert "--private-memory" in caught[0].message


async def test_a_share_is_not_there_from_the_start(host: Host) -> None:
    device = ColdDevice(id="src", hardware='{"share": {"directory": "/"}}')
    with raises(Reason.BAD_FIELD):
        await host.start("cold", cold=(device,))


async def test_a_disk_is_resized_by_id(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "disk.img"
    file.write_bytes(bytes(1024))
    async with running(host) as vm:
        await vm.plug(disk_plug("data", file))
        assert await vm.resize_disk("data", MIB) == MIB
        with raises(Reason.RESIZE_REFUSED) as caught:
            await vm.resize_disk("data", 512)
        assert caught[0].code is grpc.StatusCode.FAILED_PRECONDITION
        with raises(Reason.UNKNOWN_DEVICE):
            await vm.resize_disk("other", MIB)
        with raises(Reason.BAD_FIELD):
            await vm.resize_disk("../x", MIB)
