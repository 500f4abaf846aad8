"""VFIO in a guest with an IOMMU: bound, opened and asked by ioctl, given back, and back again."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from innkeeper.shim.client import VmSpec
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from tests.vm.guest import PROBE, Guest, booted, refused

pytestmark = [pytest.mark.vm, pytest.mark.devices]

MIB = 1 << 20
VIRTIO_NET = host.Hardware(nic=host.Nic(model=host.NIC_MODEL_VIRTIO))

# What a user space driver does first (include/uapi/linux/vfio.h): the group's status, the
# container's IOMMU, the device, its regions, and a read of its configuration space.
_OPEN = """
import fcntl, json, os, struct, sys
node, bdf = sys.argv[1:]
container = os.open("/dev/vfio/vfio", os.O_RDWR)
group = os.open(node, os.O_RDWR)
status = bytearray(struct.pack("II", 8, 0))
fcntl.ioctl(group, 0x3B67, status)
fcntl.ioctl(group, 0x3B68, struct.pack("i", container))
fcntl.ioctl(container, 0x3B66, 1)
device = fcntl.ioctl(group, 0x3B6A, bytearray(bdf.encode() + b"\\0"))
"""
_ASK = """
region = bytearray(struct.pack("IIIIQQ", 32, 0, 7, 0, 0, 0))
fcntl.ioctl(device, 0x3B6C, region)
size, offset = struct.unpack("IIIIQQ", region)[4:]
print(json.dumps({
    "viable": struct.unpack("II", status)[1] & 1,
    "api": fcntl.ioctl(container, 0x3B64),
    "configuration space": size,
    "vendor": os.pread(device, 2, offset)[::-1].hex(),
}))
"""

_HOLD = """
import signal
print("open", flush=True)
signal.pause()
"""


def in_user_space(vendor: str) -> dict[str, object]:
    """What a function of a PCI Express device answers; VFIO's API is version 0 since ever."""
    return {"viable": 1, "api": 0, "configuration space": 4096, "vendor": vendor}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path) -> AsyncIterator[Guest]:
    spec = VmSpec(name="vfio", image=f"{image}/", transport="serial", iommu=True, ports=3)
    async with booted(spec) as running:
        yield running


@asynccontextmanager
async def plugged(
    guest: Guest, *functions: host.PlugFunction
) -> AsyncIterator[list[devices.AttachedDevice]]:
    """Functions of one card, attached as they ask; unplugged at the end."""
    answer = await guest.host.Plug(host.PlugRequest(functions=functions))
    try:
        yield list(answer.attached)
    finally:
        await guest.host.Unplug(host.UnplugRequest(id=functions[0].id))


def function(name: str, hardware: host.Hardware, **kind: object) -> host.PlugFunction:
    guest = devices.Device(timeout_seconds=20, **kind)  # type: ignore[arg-type]
    return host.PlugFunction(id=name, hardware=hardware, guest=guest)


async def attach(guest: Guest, *wanted: devices.Device) -> list[devices.AttachedDevice]:
    answer = await guest.devices.Attach(devices.AttachDevicesRequest(devices=wanted))
    return list(answer.attached)


def device(name: str, at: devices.AttachedDevice, **kind: object) -> devices.Device:
    address = devices.DeviceAddress(pci_path=at.pci_path)
    return devices.Device(id=name, address=address, timeout_seconds=20, **kind)  # type: ignore[arg-type]


async def release(guest: Guest, *names: str) -> None:
    for name in names:
        request = devices.DetachDeviceRequest(id=name, phase=devices.DETACH_PHASE_RELEASE)
        await guest.devices.Detach(request)


async def ask(guest: Guest, at: devices.AttachedDevice) -> dict[str, object]:
    """The function's answers to a driver in user space."""
    answer: dict[str, object] = json.loads(await guest.probe(_python(_OPEN + _ASK, at)))
    return answer


def _python(script: str, at: devices.AttachedDevice) -> str:
    words = ("chroot", "/guest", "python3", "-c", script, at.nodes[0].path, at.pci_bdf)
    return shlex.join(words)


async def binding(guest: Guest, *bdfs: str) -> list[tuple[str, str]]:
    """Driver and override of functions, as sysfs has them."""
    script = "".join(
        f"cd /sys/bus/pci/devices/{bdf}; basename $(readlink driver); cat driver_override;"
        for bdf in bdfs
    )
    lines = (await guest.probe(script)).split()
    return list(zip(lines[::2], lines[1::2], strict=True))


async def test_a_disk_for_user_space_and_back(machine: Guest, tmp_path: Path) -> None:
    """After VFIO the guest's own driver reads the disk again, and after that VFIO has it again."""
    path = tmp_path / "disk.img"
    path.write_bytes(b"read by nvme".ljust(512, b"\0"))
    os.truncate(path, MIB)
    content = host.DiskFile(file=str(path))
    nvme = host.Hardware(disk=host.Disk(content=content, model=host.DISK_MODEL_NVME))
    async with plugged(machine, function("d", nvme, vfio=devices.VfioDevice())) as (found,):
        for _ in range(2):
            assert (found.driver, found.vfio.former_driver) == ("vfio-pci", "nvme")
            assert found.vfio.group == found.iommu_group
            assert [node.path for node in found.nodes] == [
                f"/dev/vfio/{found.vfio.group}",
                "/dev/vfio/vfio",
            ]
            assert await ask(machine, found) == in_user_space("1b36")
            await release(machine, "d")
            assert await binding(machine, found.pci_bdf) == [("nvme", "(null)")]
            disk = device("d", found, block=devices.BlockDevice(expect_size=MIB))
            (block,) = await attach(machine, disk)
            assert await machine.probe(f"head -c 12 {block.nodes[0].path}") == "read by nvme"
            await release(machine, "d")
            (found,) = await attach(machine, device("d", found, vfio=devices.VfioDevice()))


async def test_a_network_interface_comes_back(machine: Guest) -> None:
    async with plugged(machine, function("n", VIRTIO_NET, vfio=devices.VfioDevice())) as (found,):
        assert await ask(machine, found) == in_user_space("1af4")
        await release(machine, "n")
        (nic,) = await attach(machine, device("n", found, nic=devices.NicDevice()))
        link = f"/sys/class/net/{nic.nic.name}"
        assert (await machine.probe(f"cat {link}/address; ip link set {nic.nic.name} up")).split()
        assert nic.driver == "virtio-pci"


async def test_the_guests_own_driver(machine: Guest) -> None:
    mode = devices.VfioDevice(mode=devices.VFIO_MODE_GUEST_KERNEL)
    async with plugged(machine, function("g", VIRTIO_NET, vfio=mode)) as (found,):
        assert (found.driver, found.vfio.mode) == ("virtio-pci", devices.VFIO_MODE_GUEST_KERNEL)
        assert await binding(machine, found.pci_bdf) == [("virtio-pci", "(null)")]


async def test_switched_while_it_is_attached(machine: Guest) -> None:
    """The guest's driver, VFIO, and the guest's driver: one device all the time."""
    async with plugged(machine, function("s", VIRTIO_NET)) as (found,):
        name = found.nic.name
        for _ in range(2):
            request = devices.ReconfigureDeviceRequest(id="s", vfio=devices.VFIO_MODE_VFIO)
            switched = await machine.devices.Reconfigure(request)
            assert switched.driver == "vfio-pci"
            assert await ask(machine, switched) == in_user_space("1af4")
            request = devices.ReconfigureDeviceRequest(id="s", vfio=devices.VFIO_MODE_GUEST_KERNEL)
            back = await machine.devices.Reconfigure(request)
            assert (back.driver, back.nic.mac) == ("virtio-pci", found.nic.mac)
            assert name in await machine.probe("ls /sys/class/net")


async def test_a_driver_that_does_not_take_it(machine: Guest) -> None:
    """MODE_REFUSED, and the former one has it as before."""
    async with plugged(machine, function("m", VIRTIO_NET)) as (found,):
        request = devices.ReconfigureDeviceRequest(id="m", driver="nvme")
        code, why = await refused(machine.devices.Reconfigure(request))
        assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "MODE_REFUSED")
        assert await binding(machine, found.pci_bdf) == [("virtio-pci", "(null)")]


async def test_functions_of_one_group(machine: Guest) -> None:
    """A card whose functions can reach each other: one alone is refused by the other's name,
    both together and the whole group are given, and all goes back."""
    one, two = (function(name, VIRTIO_NET) for name in ("one", "two"))
    async with plugged(machine, one, two) as (first, second):
        bdfs = (first.pci_bdf, second.pci_bdf)
        assert first.iommu_group == second.iommu_group
        await release(machine, "one", "two")
        alone = device("one", first, vfio=devices.VfioDevice())
        code, why = await refused(attach(machine, alone))
        assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "GROUP_NOT_VIABLE")
        assert await binding(machine, *bdfs) == [("virtio-pci", "(null)")] * 2

        both = [
            device(name, at, vfio=devices.VfioDevice(same_group_as=[other]))
            for name, at, other in (("one", first, "two"), ("two", second, "one"))
        ]
        for found in await attach(machine, *both):
            assert list(found.vfio.group_members) == list(bdfs)
            assert await ask(machine, found) == in_user_space("1af4")
        await release(machine, "one", "two")
        assert await binding(machine, *bdfs) == [("virtio-pci", "(null)")] * 2

        whole = device("one", first, vfio=devices.VfioDevice(take_group=True))
        (found,) = await attach(machine, whole)
        assert await ask(machine, found) == in_user_space("1af4")
        assert await binding(machine, *bdfs) == [("vfio-pci", "vfio-pci")] * 2
        await release(machine, "one")
        assert await binding(machine, *bdfs) == [("virtio-pci", "(null)")] * 2


async def test_groups_that_differ(machine: Guest) -> None:
    """Cards in two ports are two groups: said so, with nothing changed."""
    one, two = (function(name, VIRTIO_NET) for name in ("p", "q"))
    async with plugged(machine, one) as (first,), plugged(machine, two) as (second,):
        await release(machine, "p", "q")
        wanted = device("p", first, vfio=devices.VfioDevice(same_group_as=["q"]))
        other = device("q", second, vfio=devices.VfioDevice())
        code, why = await refused(attach(machine, wanted, other))
        assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "GROUP_MISMATCH")
        bound = await binding(machine, first.pci_bdf, second.pci_bdf)
        assert bound == [("virtio-pci", "(null)")] * 2


async def test_a_group_that_is_open_is_not_taken_away(machine: Guest) -> None:
    """The kernel would wait for it to be closed; the holder is named instead."""
    async with plugged(machine, function("h", VIRTIO_NET, vfio=devices.VfioDevice())) as (found,):
        name = await machine.start(_python(_OPEN + _HOLD, found), **PROBE)
        holder = f"until ls -l /proc/*/fd 2>/dev/null | grep -q {found.nodes[0].path}$; do :; done"
        await machine.probe(f"timeout 20 sh -c {shlex.quote(holder)}")
        request = devices.DetachDeviceRequest(id="h", phase=devices.DETACH_PHASE_RELEASE)
        code, why = await refused(machine.devices.Detach(request))
        assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
        assert await binding(machine, found.pci_bdf) == [("vfio-pci", "vfio-pci")]
        await machine.remove(name)
        assert await ask(machine, found) == in_user_space("1af4")


async def test_what_the_kernel_does_while_a_group_is_open(machine: Guest) -> None:
    """Unbinding waits, with the driver's link gone already; writing an unknown word to
    power/control waits for it, and is refused. All of this the agent relies on."""
    async with plugged(machine, function("k", VIRTIO_NET, vfio=devices.VfioDevice())) as (found,):
        path = f"/sys/bus/pci/devices/{found.pci_bdf}"
        script = f"""
            {_python(_OPEN + _HOLD, found)} >/said & holder=$!
            until grep -q open /said; do sleep 0.1; done
            echo {found.pci_bdf} >/sys/bus/pci/drivers/vfio-pci/unbind &
            until [ ! -e {path}/driver ]; do sleep 0.1; done
            (echo wait >{path}/power/control || echo refused) 2>/dev/null & asking=$!
            until grep -q ') D ' /proc/$asking/stat; do sleep 0.1; done
            echo waiting
            kill $holder; wait
            cat {path}/power/control
        """
        assert (await machine.probe(f"timeout 60 sh -c {shlex.quote(script)}")).split() == [
            *("waiting", "refused", "on"),
        ]
        await release(machine, "k")
        assert await binding(machine, found.pci_bdf) == [("virtio-pci", "(null)")]
