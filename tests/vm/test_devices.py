"""Disks by PCI path and BDF: cold, hot-plugged, at two and three levels, and back again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from innkeeper.shim.client import ColdDisk, VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from tests.fakes.plugs import disk_plug
from tests.vm.guest import Guest, booted, reason, refused
from tests.vm.observer import Observer, observing

pytestmark = [pytest.mark.vm, pytest.mark.devices]

MIB = 1 << 20
ROUNDS = 100


def disk(directory: Path, name: str, size: int = MIB) -> Path:
    """A raw image whose first sector holds its name."""
    path = directory / f"{name}.img"
    path.write_bytes(name.encode().ljust(512, b"\0"))
    os.truncate(path, size)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guest]:
    """A VM with two cold disks on the root bus, two ports, and a bridge behind a third."""
    place = tmp_path_factory.mktemp("cold")
    cold = ColdDisk(file=disk(place, "cold"), serial="cold-serial")
    other = ColdDisk(file=disk(place, "other", 2 * MIB), serial="other-serial")
    spec = VmSpec(
        name="devices",
        image=f"{image}/",
        transport="serial",
        ports=2,
        bridge=True,
        cold_disks=(cold, other),
    )
    async with booted(spec) as running:
        yield running


async def _attach(
    guest: Guest, name: str, address: devices.DeviceAddress
) -> devices.AttachedDevice:
    wanted = devices.Device(
        id=name,
        address=address,
        timeout_seconds=5,
        block=devices.BlockDevice(),
    )
    answer = await guest.devices.Attach(devices.AttachDevicesRequest(devices=[wanted]))
    return answer.attached[0]


async def _forget(guest: Guest, name: str) -> None:
    """A cold disk stays; CANCEL after PREPARE leaves it attached, so only tables change."""
    request = devices.DetachDeviceRequest(id=name, phase=devices.DETACH_PHASE_PREPARE)
    await guest.devices.Detach(request)
    request.phase = devices.DETACH_PHASE_CANCEL
    await guest.devices.Detach(request)


async def test_a_cold_disk_by_path_and_by_bdf(machine: Guest) -> None:
    """One level: the slot on the root bus is the whole path."""
    attached = await _attach(machine, "cold", devices.DeviceAddress(pci_path="05"))
    assert (attached.pci_path, attached.pci_bdf) == ("05", "0000:00:05.0")
    assert attached.sysfs_path.endswith("/devices/pci0000:00/0000:00:05.0")
    assert attached.driver == "virtio-pci"
    assert attached.block.size == MIB
    assert attached.block.logical_block_size == 512
    assert attached.block.serial == "cold-serial"
    assert [node.type for node in attached.nodes] == ["b"]
    again = await _attach(machine, "cold", devices.DeviceAddress(pci_path="05"))
    assert again == attached
    assert await refused(
        _attach(machine, "other", devices.DeviceAddress(pci_bdf="0000:00:05.0"))
    ) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "ADDRESS_IN_USE",
    )
    await _forget(machine, "cold")


async def test_a_disk_by_its_bdf_alone(machine: Guest) -> None:
    """The answer carries both forms of the address, and it is the disk at that one."""
    address = devices.DeviceAddress(pci_bdf="0000:00:06.0")
    attached = await _attach(machine, "by-bdf", address)
    assert (attached.pci_path, attached.pci_bdf) == ("06", "0000:00:06.0")
    assert (attached.block.serial, attached.block.size) == ("other-serial", 2 * MIB)
    assert await _attach(machine, "by-bdf", address) == attached


async def test_two_and_three_levels(machine: Guest, tmp_path: Path) -> None:
    """Two root ports give two levels; the third disk goes behind the bridge: three."""
    plugged = {}
    for name in ("one", "two", "three"):
        answer = await machine.host.Plug(disk_plug(name, disk(tmp_path, name, 2 * MIB)))
        (plugged[name],) = answer.attached
        assert plugged[name].block.serial == name
        assert plugged[name].block.size == 2 * MIB
    levels = {name: each.pci_path.count("/") + 1 for name, each in plugged.items()}
    assert levels == {"one": 2, "two": 2, "three": 3}
    for name, each in plugged.items():
        node = each.nodes[0]
        text = await machine.probe(
            f"stat -c '%t %T' {node.path}; head -c {len(name)} {node.path};"
            f" echo; cat /sys/bus/pci/devices/{each.pci_bdf}/vendor"
        )
        numbers, content, vendor = text.split("\n")[:3]
        assert [int(part, 16) for part in numbers.split()] == [node.major, node.minor]
        assert (content, vendor) == (name, "0x1af4"), "virtio's PCI vendor"
    for name in plugged:
        await machine.host.Unplug(host.UnplugRequest(id=name))
    listed = await machine.devices.List(devices.ListDevicesRequest())
    assert {each.device.id for each in listed.devices} <= {"cold", "by-bdf"}


async def test_a_slot_used_again_gives_the_new_device(machine: Guest, tmp_path: Path) -> None:
    """Never the old name or size (case 10)."""
    first = await machine.host.Plug(disk_plug("old", disk(tmp_path, "old", MIB)))
    await machine.host.Unplug(host.UnplugRequest(id="old"))
    second = await machine.host.Plug(disk_plug("new", disk(tmp_path, "new", 3 * MIB)))
    assert second.attached[0].pci_path == first.attached[0].pci_path
    assert second.attached[0].block.serial == "new"
    assert second.attached[0].block.size == 3 * MIB
    await machine.host.Unplug(host.UnplugRequest(id="new"))


async def test_an_empty_slot_times_out_and_says_how_far_it_came(machine: Guest) -> None:
    wanted = devices.Device(
        id="nothing",
        address=devices.DeviceAddress(pci_path="10/00"),
        timeout_seconds=0.5,
        block=devices.BlockDevice(),
    )
    with pytest.raises(aio.AioRpcError) as caught:
        await machine.devices.Attach(devices.AttachDevicesRequest(devices=[wanted]))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert reason(caught.value) == "DEVICE_NOT_READY"
    assert "10/00" in (caught.value.details() or "")


async def test_read_only_is_told_and_true(machine: Guest, tmp_path: Path) -> None:
    answer = await machine.host.Plug(disk_plug("ro", disk(tmp_path, "ro"), read_only=True))
    assert answer.attached[0].block.read_only
    node = answer.attached[0].nodes[0].path
    text = await machine.probe(f"echo x 2>&1 >{node} || true")
    assert "not permitted" in text or "Read-only" in text
    await machine.host.Unplug(host.UnplugRequest(id="ro"))


async def test_a_device_in_use_is_not_unplugged(machine: Guest, tmp_path: Path) -> None:
    """A container holds it: STILL_IN_USE, and both sides are as before."""
    path = disk(tmp_path, "held")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    await machine.host.Plug(disk_plug("held", path))
    name = await machine.start(
        "sha256sum /dev/data; sleep 300",
        devices=(containers.DeviceGrant(device_id="held", container_path="/dev/data"),),
    )
    code, why = await refused(machine.host.Unplug(host.UnplugRequest(id="held")))
    assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
    listed = await machine.host.ListPlugged(host.ListPluggedRequest())
    assert [(each.id, each.state) for each in listed.devices] == [("held", "plugged")]
    await machine.remove(name)
    finished = await machine.run(
        "sha256sum /dev/data",
        devices=(containers.DeviceGrant(device_id="held", container_path="/dev/data"),),
    )
    assert finished.text.split()[0] == digest
    await machine.host.Unplug(host.UnplugRequest(id="held"))


@pytest.mark.timeout(900)
async def test_a_hundred_rounds_leave_nothing(machine: Guest, tmp_path: Path) -> None:
    """Every fifth round fails half-way: the guest refuses an id that it has already."""
    await _attach(machine, "cold", devices.DeviceAddress(pci_path="05"))
    path = disk(tmp_path, "round")
    await _round(machine, path, 1)
    async with observing(machine) as observer:
        before, census = await _everything(machine, observer), await observer.census()
        for number in range(ROUNDS):
            await _round(machine, path, number)
        await observer.returns_to(census)
        assert await _everything(machine, observer) == before


async def _round(guest: Guest, path: Path, number: int) -> None:
    if number % 5 == 0:
        code, why = await refused(guest.host.Plug(disk_plug("cold", path)))
        assert (code, why) == (grpc.StatusCode.ALREADY_EXISTS, "ID_IN_USE")
        return
    answer = await guest.host.Plug(disk_plug("round", path))
    assert answer.attached[0].block.serial == "round"
    await guest.host.Unplug(host.UnplugRequest(id="round"))


async def _everything(guest: Guest, observer: Observer) -> dict[str, object]:
    """What could be left of a disk, on both sides."""
    vm = await guest.vm.describe()
    seen = await observer.ask("ls /sys/bus/pci/devices /sys/block")
    buses = await guest.host.Query(host.QueryQemuRequest(command="query-pci"))
    listed = await guest.devices.List(devices.ListDevicesRequest())
    plugged = await guest.host.ListPlugged(host.ListPluggedRequest())
    return {
        "guest": seen,
        "QEMU's query-pci": buses.answer,
        "devices": sorted(each.device.id for each in listed.devices),
        "plugged": [each.id for each in plugged.devices],
        "free ports": vm.free_ports,
        "daemon's descriptors": len(os.listdir(f"/proc/{vm.daemon_pid}/fd")),
        "QEMU's descriptors": len(os.listdir(f"/proc/{vm.qemu_pid}/fd")),
    }


async def test_malformed_addresses_are_refused_before_any_wait(machine: Guest) -> None:
    bad = ("", "/", "2/", "20", "02/", "02.8", "g0", "02//00", "0000:00", "02/03.1/", " 02")
    for text in bad:
        code, why = await refused(_attach(machine, "bad", devices.DeviceAddress(pci_path=text)))
        assert (code, why) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_ADDRESS"), text
