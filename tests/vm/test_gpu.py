"""GPUs that QEMU can be: a display that comes and goes, and one with a render node.

Each is used as a program would: its node is opened and asked for its driver.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from innkeeper.shim import commands
from innkeeper.shim.client import ColdDevice, VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from tests.fakes.plugs import plug
from tests.vm.guest import Guest, booted, refused

pytestmark = [pytest.mark.vm, pytest.mark.devices]

# struct drm_version and its ioctl of include/uapi/drm/drm.h, 64 bits.
VERSION = """
import ctypes, fcntl, struct, sys
name = ctypes.create_string_buffer(64)
ask = bytearray(struct.pack("iiixxxxQQQQQQ", 0, 0, 0, 63, ctypes.addressof(name), 0, 0, 0, 0))
with open(sys.argv[1], "rb+", buffering=0) as node:
    fcntl.ioctl(node, 0xC0406400, ask)
print(name.value.decode())
"""
COLD = "gpu"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(root: Path) -> AsyncIterator[Guest]:
    """The flavour that has drivers of displays, with a cold virtio-gpu."""
    program = str(root / "build/venv/bin/innkeeper")
    commands.run([program, "image", "build", "--flavour", "generic"], deadline=1500)
    cold = ColdDevice(id=COLD, hardware='{"gpu": {"model": "GPU_MODEL_VIRTIO"}}')
    image = f"{root / 'build/images/generic'}/"
    spec = VmSpec(name="gpus", image=image, transport="serial", ports=4, cold=(cold,))
    async with booted(spec) as running:
        yield running


async def driver_of(guest: Guest, node: str) -> str:
    """What the driver behind a DRM node calls itself."""
    return (await guest.probe(f"chroot /guest python3 -IS -c '{VERSION}' {node}")).strip()


async def dri(guest: Guest) -> set[str]:
    """All nodes and links below /dev/dri, and where links lead."""
    text = await guest.probe(
        "cd /dev/dri && find . -type c; find . -type l | while read -r link; do"
        ' echo "$link>$(readlink "$link")"; done'
    )
    return {line.removeprefix("./") for line in text.split()}


async def attach(guest: Guest, path: str, **gpu: object) -> devices.AttachedDevice:
    wanted = devices.Device(
        id=COLD,
        address=devices.DeviceAddress(pci_path=path),
        timeout_seconds=60,
        gpu=devices.GpuDevice(**gpu),  # type: ignore[arg-type]
    )
    answer = await guest.devices.Attach(devices.AttachDevicesRequest(devices=[wanted]))
    return answer.attached[0]


async def detach(guest: Guest, phase: devices.DetachPhase.ValueType) -> None:
    await guest.devices.Detach(devices.DetachDeviceRequest(id=COLD, phase=phase))


async def cold_path(guest: Guest) -> str:
    listed = await guest.host.ListPlugged(host.ListPluggedRequest())
    return next(each.pci_path for each in listed.devices if each.id == COLD)


async def free_ports(guest: Guest) -> list[str]:
    listed = await guest.host.ListPorts(host.ListPortsRequest())
    return [port.name for port in listed.ports if not port.devices]


@pytest.mark.timeout(1800)
async def test_a_display_comes_goes_and_comes_again(machine: Guest) -> None:
    """In another port: QEMU 7.2 keeps an unplugged display's memory under the port's name."""
    before = await dri(machine)
    for port in (await free_ports(machine))[:2]:
        request = plug("display", port=port, gpu=host.Gpu(model=host.GPU_MODEL_BOCHS))
        (attached,) = (await machine.host.Plug(request)).attached
        gpu = attached.gpu
        assert (gpu.vendor, gpu.minor, gpu.render_node) == ("1234:1111", -1, "")
        assert [node.path for node in attached.nodes] == [gpu.card_node]
        assert attached.nodes[0].major == 226
        assert await driver_of(machine, gpu.card_node) == "bochs-drm"
        link = f"pci-{attached.pci_bdf}-card"
        assert list(gpu.links) == [f"/dev/dri/by-path/{link}"]
        assert await driver_of(machine, gpu.links[0]) == "bochs-drm"
        await machine.host.Unplug(host.UnplugRequest(id="display"))
        assert await dri(machine) == before


async def test_a_display_has_no_render_node(machine: Guest) -> None:
    before = await dri(machine)
    guest = devices.Device(gpu=devices.GpuDevice(expect_render_node=True), timeout_seconds=3)
    port = (await free_ports(machine))[-1]
    request = plug("display", guest, port, gpu=host.Gpu(model=host.GPU_MODEL_BOCHS))
    assert await refused(machine.host.Plug(request)) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "DEVICE_NOT_READY",
    )
    assert await dri(machine) == before


async def test_a_render_node_is_used_given_up_and_used_again(machine: Guest) -> None:
    """QEMU can't unplug it: the guest lets go of it, and takes it again after a rescan."""
    path = await cold_path(machine)
    for _ in range(2):
        attached = await attach(
            machine,
            path,
            expect_pci_id="1af4:1050",
            expect_driver="virtio_gpu",
            expect_render_node=True,
        )
        gpu = attached.gpu
        assert {node.path for node in attached.nodes} == {gpu.card_node, gpu.render_node}
        assert await driver_of(machine, gpu.render_node) == "virtio_gpu"
        assert await dri(machine) == {
            *(node.removeprefix("/dev/dri/") for node in (gpu.card_node, gpu.render_node)),
            f"by-path/pci-{attached.pci_bdf}-card>../{Path(gpu.card_node).name}",
            f"by-path/pci-{attached.pci_bdf}-render>../{Path(gpu.render_node).name}",
        }
        await detach(machine, devices.DETACH_PHASE_PREPARE)
        assert await dri_is_empty(machine)
        await detach(machine, devices.DETACH_PHASE_COMPLETE)
        await machine.probe("echo 1 > /sys/bus/pci/rescan")


async def dri_is_empty(guest: Guest) -> bool:
    return not (await guest.probe("ls /dev/dri 2>/dev/null || true")).strip()


async def test_a_cancelled_detach_and_a_release(machine: Guest) -> None:
    path = await cold_path(machine)
    attached = await attach(machine, path)
    await detach(machine, devices.DETACH_PHASE_PREPARE)
    await detach(machine, devices.DETACH_PHASE_CANCEL)
    again = await machine.devices.Get(devices.GetDeviceRequest(id=COLD))
    assert again.state == devices.DEVICE_STATE_ATTACHED
    assert await driver_of(machine, again.gpu.render_node) == "virtio_gpu"
    assert list(again.gpu.links) == list(attached.gpu.links)
    await detach(machine, devices.DETACH_PHASE_RELEASE)
    assert await driver_of(machine, again.gpu.render_node) == "virtio_gpu"
    left = {name for name in await dri(machine) if name.startswith("by-path")}
    assert left == set()


async def test_who_has_it_open_is_told(machine: Guest) -> None:
    """And nothing has changed: it goes on working."""
    attached = await attach(machine, await cold_path(machine))
    node = attached.gpu.render_node
    grant = containers.DeviceGrant(device_id=COLD)
    name = await machine.start(f"exec sleep 1000 < {node}", devices=(grant,))
    prepare = devices.DetachDeviceRequest(id=COLD, phase=devices.DETACH_PHASE_PREPARE)
    assert await refused(machine.devices.Detach(prepare)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "STILL_IN_USE",
    )
    assert await driver_of(machine, node) == "virtio_gpu"
    await machine.remove(name)
    await detach(machine, devices.DETACH_PHASE_RELEASE)
