"""Interfaces by the daemon as a process of its own, over a stand-in for QEMU."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from innkeeper.shim.client import ColdDevice
from innkeeper.shim.errors import Reason
from innkeeper.v1 import host_pb2
from tests.contract.test_shim_daemon import Host, host, raises, running
from tests.contract.test_shim_shares import servers
from tests.fakes.passt import fake_passt
from tests.fakes.plugs import plug
from tests.fakes.waiting import until

__all__ = ["host"]  # a fixture

pytestmark = [pytest.mark.contract, pytest.mark.network]

WIRE = host_pb2.Nic(backend=host_pb2.NIC_BACKEND_WIRE, wire="lab")
COLD_WIRE = '{"nic": {"backend": "NIC_BACKEND_WIRE", "wire": "lab"}}'
COLD_PASST = '{"nic": {"backend": "NIC_BACKEND_PASST"}}'


@pytest.fixture
def passt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program; the daemon finds it on its starter's PATH."""
    directory = fake_passt(tmp_path / "passt-bin")
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return directory / "passt"


def locks(host: Host) -> list[str]:
    return sorted(path.name for path in host.state.root.rglob(".wires/lab/*.lock"))


async def test_two_vms_are_on_a_wire_and_a_third_is_told_who(host: Host) -> None:
    async with running(host, "a") as a, running(host, "b") as b, running(host, "c") as c:
        await a.plug(plug("x", nic=WIRE))
        await b.plug(plug("y", nic=WIRE))
        assert [each.source for each in await b.plugged()] == ["wire lab"]
        with raises(Reason.ADDRESS_IN_USE) as caught:
            await c.plug(plug("z", nic=WIRE))
        assert "VM a (device x) and VM b (device y)" in caught[0].message
        await a.unplug("x")
        await c.plug(plug("z", nic=WIRE))
    assert locks(host) == []


async def test_an_end_from_the_start_goes_with_the_vm(host: Host) -> None:
    async with running(host, "a", cold=(ColdDevice(id="x", hardware=COLD_WIRE),)):
        assert locks(host) == ["0.lock"]
    assert locks(host) == []


async def test_a_killed_daemon_leaves_its_end_to_others(host: Host) -> None:
    async with running(host, "a", cold=(ColdDevice(id="x", hardware=COLD_WIRE),)) as a:
        os.kill(a.daemon_pid, signal.SIGKILL)
    async with running(host, "b") as b, running(host, "c") as c:
        await b.plug(plug("x", nic=WIRE))
        await c.plug(plug("x", nic=WIRE))


async def test_a_vm_that_can_not_have_all_of_its_devices_takes_none(host: Host) -> None:
    devices = (
        ColdDevice(id="x", hardware=COLD_WIRE),
        ColdDevice(id="y", hardware='{"nic": {"backend": "NIC_BACKEND_TAP", "tap": "nosuchtap"}}'),
    )
    with raises(Reason.HOST_LACKS) as caught:
        await host.start("a", cold=devices)
    assert "ip tuntap add nosuchtap" in caught[0].hint
    assert locks(host) == []


async def test_passt_comes_and_goes_hot_and_cold(host: Host, passt: Path) -> None:
    async with running(host, "a", cold=(ColdDevice(id="x", hardware=COLD_PASST),)) as vm:
        assert len(waiting(host)) == 1
        await vm.plug(plug("y", nic=host_pb2.Nic(backend=host_pb2.NIC_BACKEND_PASST)))
        assert {each.source for each in await vm.plugged()} == {"passt"}
        await vm.unplug("x")
        await vm.unplug("y")
        assert waiting(host) == []
    await until(lambda: not servers(passt))


def waiting(host: Host) -> list[str]:
    """Sockets that a passt listens on."""
    return [path.name for path in host.state.root.rglob("net*.sock")]


async def test_without_passt_the_refusal_says_what_to_install(
    host: Host,
) -> None:
    if shutil.which("passt"):
        pytest.skip("this host has passt")
    async with running(host) as vm:
        with raises(Reason.NOT_INSTALLED) as caught:
            await vm.plug(plug("x", nic=host_pb2.Nic(backend=host_pb2.NIC_BACKEND_PASST)))
    assert caught[0].code.name == "FAILED_PRECONDITION"
