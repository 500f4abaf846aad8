"""A newer QEMU, and the hardware that it alone has: Intel's igb, whose virtual functions
the guest makes itself.

The host's own QEMU may be too old for it, so that the VM gets one of Debian 13.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from innkeeper.image.model import ImageError
from innkeeper.shim import commands
from innkeeper.shim.client import VmSpec
from innkeeper.shim.images import images_dir
from innkeeper.shim.machine import QEMU_VARIABLE
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import sandbox_pb2 as sandbox
from tests.fakes.plugs import plug
from tests.vm.guest import Guest, booted, refused
from tests.vm.netguest import NetGuest, at_path
from tests.vm.qemu13 import qemu_of_debian_13
from tests.vm.test_vfio import ask, in_user_space

pytestmark = [pytest.mark.vm, pytest.mark.devices, pytest.mark.timeout(900)]

MIB = 1 << 20
PATIENCE = 60
"""Seconds; under emulation on a busy machine a driver may take some of them."""

PORT = "port0"
PHYSICAL = "igb"
MAC = "52:54:00:00:00:01"
VIRTUAL = ("vf0", "vf1")


@pytest.fixture(scope="module")
def qemu(root: Path) -> Path:
    try:
        return qemu_of_debian_13(root)
    except (ImageError, commands.CommandError) as error:
        pytest.skip(f"no QEMU of Debian 13 can be had here: {error}")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(qemu: Path, root: Path) -> AsyncIterator[Guest]:
    """The flavour with drivers of igb, with an IOMMU for VFIO."""
    words = ["image", "build", "--flavour", "generic", "--out", str(images_dir())]
    commands.run([str(root / "build/venv/bin/innkeeper"), *words], deadline=1500)
    spec = VmSpec(name="igb", image="generic", transport="serial", ports=8, iommu=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(QEMU_VARIABLE, str(qemu))
        async with booted(spec) as running:
            yield running


async def plugged(guest: Guest, name: str, port: str, **kind: Any) -> devices.AttachedDevice:
    answer = await guest.host.Plug(plug(name, port=port, timeout_seconds=PATIENCE, **kind))
    assert len(answer.attached) == 1
    return answer.attached[0]


async def unplug(guest: Guest, name: str) -> None:
    await guest.host.Unplug(host.UnplugRequest(id=name, timeout_seconds=PATIENCE))


async def plugged_igb(guest: Guest, mac: str = MAC) -> devices.AttachedDevice:
    return await plugged(guest, PHYSICAL, PORT, nic=host.Nic(model=host.NIC_MODEL_IGB, mac=mac))


async def attach(guest: Guest, name: str, kind: dict[str, Any], **at: Any) -> Any:
    wanted = devices.Device(
        id=name, address=devices.DeviceAddress(**at), timeout_seconds=PATIENCE, **kind
    )
    answer = await guest.devices.Attach(devices.AttachDevicesRequest(devices=[wanted]))
    return answer.attached[0]


async def detach(guest: Guest, name: str, phase: devices.DetachPhase.ValueType) -> None:
    request = devices.DetachDeviceRequest(id=name, phase=phase, timeout_seconds=PATIENCE)
    await guest.devices.Detach(request)


async def state(guest: Guest, name: str) -> devices.DeviceState.ValueType:
    return (await guest.devices.Get(devices.GetDeviceRequest(id=name))).state


async def until_vanished(guest: Guest, *names: str) -> None:
    """Each event is a reason to look again."""
    gone = devices.DEVICE_STATE_VANISHED
    async with asyncio.timeout(PATIENCE):
        async for _ in guest.sandbox.Watch(sandbox.WatchRequest()):
            if {await state(guest, name) for name in names} == {gone}:
                return


async def link(guest: Guest, nic: devices.NicInfo) -> list[str]:
    """What the kernel says of an interface that is up: address, index, and whether it has a
    link, which takes it seconds to find."""
    text = await guest.probe(
        f"cd /sys/class/net/{nic.name}; ip link set {nic.name} up; cat address ifindex;"
        " tries=0; until [ $(cat carrier) = 1 ]; do"
        "  tries=$((tries + 1)); [ $tries -lt 200 ] || break; sleep 0.1;"
        " done; cat carrier"
    )
    return text.split()


async def make_functions(guest: Guest, physical: devices.AttachedDevice, count: int) -> None:
    await guest.probe(f"echo {count} >{physical.sysfs_path}/sriov_numvfs")


async def functions(guest: Guest, physical: devices.AttachedDevice) -> list[str]:
    """Where PCI puts its first two virtual functions: the physical one's number, the offset of
    the first and the stride to the next (PCI Express, SR-IOV capability)."""
    text = await guest.probe(f"cd {physical.sysfs_path}; cat sriov_offset sriov_stride")
    offset, stride = map(int, text.split())
    bus = physical.pci_bdf.removesuffix("00.0")
    numbers = (offset, offset + stride)
    return [f"{bus}{number >> 3:02x}.{number & 7}" for number in numbers]


async def names_by_path(guest: Guest, found: list[devices.AttachedDevice]) -> list[str]:
    """Those that the kernel has once they are asked for without a name."""
    wishes = [at_path(each.pci_path, timeout_seconds=PATIENCE) for each in found]
    await NetGuest(guest=guest).apply(*wishes)
    script = "; ".join(f"ls {each.sysfs_path}/net" for each in found)
    return (await guest.probe(script)).split()


async def test_the_vm_has_the_qemu_that_was_named(machine: Guest, qemu: Path) -> None:
    """Not the one on PATH: its program is in the root of that QEMU."""
    vm = await machine.vm.describe()
    program = Path(os.readlink(f"/proc/{vm.qemu_pid}/exe"))
    assert program.is_relative_to(qemu.parent.resolve())


async def test_an_interface_comes_goes_and_comes_again(machine: Guest) -> None:
    """The second has the slot of the first, and another index: no old answer is given."""
    seen = []
    for mac in (MAC, "52:54:00:00:00:02"):
        attached = await plugged_igb(machine, mac)
        assert (attached.driver, attached.pci_id) == ("igb", "8086:10c9")
        assert (attached.pci_class, list(attached.nodes)) == ("020000", [])
        told = attached.nic
        assert (told.mac, told.mtu) == (mac, 1500)
        assert await link(machine, told) == [mac, str(told.ifindex), "1"]
        seen.append((attached.pci_path, told.ifindex))
        await unplug(machine, PHYSICAL)
        assert told.name not in (await machine.probe("ls /sys/class/net")).split()
    (path, index), (again, newer) = seen
    assert path == again == "10/00"
    assert index < newer


async def test_virtual_functions_come_go_and_come_again(machine: Guest) -> None:
    """They are asked for before they are there, one by its path and one by its BDF; what
    makes and removes them is a file of the guest's."""
    physical = await plugged_igb(machine)
    await link(machine, physical.nic)
    for _ in range(2):
        bdfs = await functions(machine, physical)
        path = f"10/{bdfs[0].rpartition(':')[2].removesuffix('.0')}"
        nic = {"nic": devices.NicDevice()}
        async with asyncio.TaskGroup() as group:
            first = group.create_task(attach(machine, "vf0", nic, pci_path=path))
            second = group.create_task(attach(machine, "vf1", nic, pci_bdf=bdfs[1]))
            await make_functions(machine, physical, 2)
        found = [first.result(), second.result()]
        assert [each.pci_bdf for each in found] == bdfs
        for each in found:
            assert (each.driver, each.pci_id) == ("igbvf", "8086:10ca")
            assert await link(machine, each.nic) == [each.nic.mac, str(each.nic.ifindex), "1"]
        names = {each.nic.name for each in (physical, *found)}
        assert len(names) == 3
        assert await names_by_path(machine, found) == ["n10s10", "n10s10f2"]
        await make_functions(machine, physical, 0)
        await until_vanished(machine, *VIRTUAL)
        for name in VIRTUAL:
            await detach(machine, name, devices.DETACH_PHASE_COMPLETE)
        assert await state(machine, PHYSICAL) == devices.DEVICE_STATE_ATTACHED
        assert await link(machine, physical.nic) == [MAC, str(physical.nic.ifindex), "1"]
    await unplug(machine, PHYSICAL)


async def test_a_virtual_function_for_user_space_and_back(machine: Guest) -> None:
    """In a group of its own: the other one stays an interface all the time, and is found by
    its address."""
    physical = await plugged_igb(machine)
    await make_functions(machine, physical, 2)
    bdf, other = await functions(machine, physical)
    nic = {"nic": devices.NicDevice()}
    beside = await attach(machine, "vf1", nic, pci_bdf=other)
    await detach(machine, "vf1", devices.DETACH_PHASE_RELEASE)
    for _ in range(2):
        given = await attach(machine, "vf0", {"vfio": devices.VfioDevice()}, pci_bdf=bdf)
        assert (given.driver, given.vfio.former_driver) == ("vfio-pci", "igbvf")
        assert list(given.vfio.group_members) == [bdf]
        assert await ask(machine, given) == in_user_space("8086")
        found = await attach(machine, "vf1", nic, mac=beside.nic.mac)
        assert (found.nic, found.pci_bdf) == (beside.nic, other)
        for name in VIRTUAL:
            await detach(machine, name, devices.DETACH_PHASE_RELEASE)
        back = await attach(machine, "vf0", nic, pci_bdf=bdf)
        assert back.driver == "igbvf"
        await detach(machine, "vf0", devices.DETACH_PHASE_RELEASE)
    await unplug(machine, PHYSICAL)


async def test_the_card_goes_and_its_virtual_functions_with_it(machine: Guest) -> None:
    physical = await plugged_igb(machine)
    await make_functions(machine, physical, 1)
    bdf, _ = await functions(machine, physical)
    await attach(machine, "vf0", {"nic": devices.NicDevice()}, pci_bdf=bdf)
    await unplug(machine, PHYSICAL)
    await until_vanished(machine, "vf0")
    await detach(machine, "vf0", devices.DETACH_PHASE_COMPLETE)
    assert bdf not in await machine.probe("ls /sys/bus/pci/devices")


async def test_a_virtual_function_is_detached(machine: Guest) -> None:
    """The kernel has no file to take it out by: it goes when its physical function says so."""
    physical = await plugged_igb(machine)
    await make_functions(machine, physical, 1)
    bdf, _ = await functions(machine, physical)
    attached = await attach(machine, "vf0", {"nic": devices.NicDevice()}, pci_bdf=bdf)
    await detach(machine, "vf0", devices.DETACH_PHASE_PREPARE)
    assert await state(machine, "vf0") == devices.DEVICE_STATE_LEAVING
    await detach(machine, "vf0", devices.DETACH_PHASE_CANCEL)
    again = await machine.devices.Get(devices.GetDeviceRequest(id="vf0"))
    assert (again.state, again.nic) == (devices.DEVICE_STATE_ATTACHED, attached.nic)
    await detach(machine, "vf0", devices.DETACH_PHASE_PREPARE)
    await make_functions(machine, physical, 0)
    await detach(machine, "vf0", devices.DETACH_PHASE_COMPLETE)
    gone = machine.devices.Get(devices.GetDeviceRequest(id="vf0"))
    assert (await refused(gone))[0] == grpc.StatusCode.NOT_FOUND
    await unplug(machine, PHYSICAL)


async def test_a_card_stays_while_a_virtual_function_is_used(machine: Guest) -> None:
    """Its user is named. The kernel would wait for that one to end, and let nothing else on
    PCI come or go meanwhile."""
    physical = await plugged_igb(machine)
    await make_functions(machine, physical, 1)
    bdf, _ = await functions(machine, physical)
    given = await attach(machine, "vf0", {"vfio": devices.VfioDevice()}, pci_bdf=bdf)
    grant = containers.DeviceGrant(device_id="vf0")
    name = await machine.start(f"exec sleep 600 <>{given.nodes[0].path}", devices=(grant,))
    answer = await machine.devices.Holders(devices.DeviceHoldersRequest(id=PHYSICAL))
    assert name in {each.name for each in answer.holders}
    kept = machine.host.Unplug(host.UnplugRequest(id=PHYSICAL))
    assert await refused(kept) == (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
    assert await state(machine, PHYSICAL) == devices.DEVICE_STATE_ATTACHED
    await machine.remove(name)
    assert await ask(machine, given) == in_user_space("8086")
    await unplug(machine, PHYSICAL)
    await detach(machine, "vf0", devices.DETACH_PHASE_COMPLETE)


async def test_a_disk_comes_goes_and_comes_again(machine: Guest, tmp_path: Path) -> None:
    for name in ("one", "two"):
        file = tmp_path / name
        file.write_bytes(name.encode().ljust(MIB, b"\0"))
        disk = host.Disk(content=host.DiskFile(file=str(file)))
        attached = await plugged(machine, name, PORT, disk=disk)
        assert (attached.pci_path, attached.block.size) == ("10/00", MIB)
        assert attached.block.serial == name
        assert await machine.probe(f"head -c 3 {attached.nodes[0].path}") == name
        await unplug(machine, name)


async def test_a_displays_port_is_spent(machine: Guest) -> None:
    """This QEMU, too, would end itself with another display in the same port."""
    display: dict[str, Any] = {"gpu": host.Gpu(model=host.GPU_MODEL_BOCHS)}
    for port in ("port6", "port7"):
        attached = await plugged(machine, "display", port, **display)
        assert attached.gpu.vendor == "1234:1111"
        await unplug(machine, "display")
        again = machine.host.Plug(plug("display", port=port, **display))
        assert await refused(again) == (grpc.StatusCode.ALREADY_EXISTS, "PORT_IN_USE")
    nic = await plugged(machine, "nic", "port6", nic=host.Nic())
    assert nic.driver == "virtio-pci"
    await unplug(machine, "nic")
