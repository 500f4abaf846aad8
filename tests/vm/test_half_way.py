"""kill -9 of the agent in the middle of a change to a device: the next agent takes back what
was changed, and the host that asks again gets a true answer."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from innkeeper.shim.client import VmSpec
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from tests.fakes.plugs import disk_plug, plug
from tests.vm.guest import PROBE, Guest, booted, refused
from tests.vm.test_devices import disk

pytestmark = [pytest.mark.vm, pytest.mark.devices]

SAVED = "/guest/run/innkeeper/state/devices"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path) -> AsyncIterator[Guest]:
    spec = VmSpec(name="half-way", image=f"{image}/", transport="serial", iommu=True, ports=3)
    async with booted(spec) as running:
        yield running


@asynccontextmanager
async def agent_dies_once(guest: Guest, condition: str) -> AsyncIterator[None]:
    """Kills the agent as soon as the shell's condition holds, in the middle of the block's
    call; a new agent serves at the end."""
    before = await guest.describe()
    watch = f"until {condition}; do :; done; kill -9 {before.agent_pid}"
    killer = await guest.start(f"timeout 60 sh -c {shlex.quote(watch)}", **PROBE)
    try:
        yield
    finally:
        await guest.wait(killer)
        after = await guest.describe()
        await guest.remove(killer)
    assert after.agent_restarts == before.agent_restarts + 1


@pytest_asyncio.fixture(loop_scope="session")
async def nic(machine: Guest) -> AsyncIterator[devices.AttachedDevice]:
    answer = await machine.host.Plug(plug("n", nic=host.Nic()))
    yield answer.attached[0]
    await machine.host.Unplug(host.UnplugRequest(id="n"))


def bound_to_vfio(nic: devices.AttachedDevice) -> str:
    return f'[ "$(cat /sys/bus/pci/devices/{nic.pci_bdf}/driver_override)" = vfio-pci ]'


async def driver_and_override(guest: Guest, nic: devices.AttachedDevice) -> list[str]:
    function = f"/sys/bus/pci/devices/{nic.pci_bdf}"
    script = f"basename $(readlink {function}/driver); cat {function}/driver_override"
    return (await guest.probe(script)).split()


async def detach(guest: Guest, name: str, phase: devices.DetachPhase.ValueType) -> None:
    await guest.devices.Detach(devices.DetachDeviceRequest(id=name, phase=phase))


async def test_in_an_attach(machine: Guest, nic: devices.AttachedDevice) -> None:
    """The driver is the guest's again, and known as such to the attach that is repeated."""
    await detach(machine, "n", devices.DETACH_PHASE_RELEASE)
    wanted = devices.Device(
        id="n",
        address=devices.DeviceAddress(pci_path=nic.pci_path),
        timeout_seconds=20,
        vfio=devices.VfioDevice(),
    )
    request = devices.AttachDevicesRequest(devices=[wanted])
    async with agent_dies_once(machine, bound_to_vfio(nic)):
        with pytest.raises(aio.AioRpcError):
            await machine.devices.Attach(request)
    assert await driver_and_override(machine, nic) == ["virtio-pci", "(null)"]
    (found,) = (await machine.devices.Attach(request)).attached
    assert found.vfio.former_driver == "virtio-pci"
    await detach(machine, "n", devices.DETACH_PHASE_RELEASE)
    assert await driver_and_override(machine, nic) == ["virtio-pci", "(null)"]


async def test_in_a_switch(machine: Guest, nic: devices.AttachedDevice) -> None:
    request = devices.ReconfigureDeviceRequest(id="n", vfio=devices.VFIO_MODE_VFIO)
    async with agent_dies_once(machine, bound_to_vfio(nic)):
        with pytest.raises(aio.AioRpcError):
            await machine.devices.Reconfigure(request)
    found = await machine.devices.Get(devices.GetDeviceRequest(id="n"))
    assert (found.state, found.driver) == (devices.DEVICE_STATE_ATTACHED, "virtio-pci")
    assert await driver_and_override(machine, nic) == ["virtio-pci", "(null)"]
    assert (await machine.devices.Reconfigure(request)).driver == "vfio-pci"


async def test_in_the_search_for_users(machine: Guest, tmp_path: Path) -> None:
    """A prepare that was cut short is not taken for done: the disk is in use."""
    answer = await machine.host.Plug(disk_plug("d", disk(tmp_path, "d")))
    node = answer.attached[0].nodes[0].path
    holder = await machine.start(f"exec 5<{node}; while :; do sleep 1; done", **PROBE)
    async with agent_dies_once(machine, f"grep -q leaving {SAVED}/d.json"):
        with pytest.raises(aio.AioRpcError):
            await detach(machine, "d", devices.DETACH_PHASE_PREPARE)
    code, why = await refused(detach(machine, "d", devices.DETACH_PHASE_PREPARE))
    assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
    code, why = await refused(machine.host.Unplug(host.UnplugRequest(id="d")))
    assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
    await machine.remove(holder)
    await machine.host.Unplug(host.UnplugRequest(id="d"))
