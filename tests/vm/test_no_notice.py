"""A guest that nobody tells of hot-plug: no ACPI, and no driver of PCI Express ports."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from innkeeper.shim import commands
from innkeeper.shim.client import VmSpec, start_vm
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from tests.fakes.plugs import disk_plug
from tests.vm.behind import tell
from tests.vm.guest import Guest
from tests.vm.inline import python
from tests.vm.observer import Observer, observing
from tests.vm.refusals import refusal
from tests.vm.rescans import watching_rescans

pytestmark = [pytest.mark.vm, pytest.mark.devices]

MIB = 1 << 20
PORTS = 2

# The firmware's part of an ejection, which a kernel without ACPI can't have done for it:
# QEMU's docs/specs/acpi_pci_hotplug.txt (q35: registers from 0xcc0; +16 chooses the bus,
# +4 has the slots that are to go, +8 ejects them). Ports of 32 bits, which /dev/port is
# not made for, so `out` and `in` are called as they are.
FIRMWARE = """
import ctypes, mmap, os, sys, time
BASE, BUSES = 0xCC0, 8
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("89fa89f0efc3" "89faedc3"))
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
write = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32)(at)
read = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32)(at + 6)
assert ctypes.CDLL(None).ioperm(BASE, 24, 1) == 0
end = time.monotonic() + 30
while time.monotonic() < end:
    for bus in range(BUSES):
        write(BASE + 16, bus)
        slots = read(BASE + 4)
        if slots:
            print("still there" if os.path.exists(sys.argv[1]) else "removed before")
            write(BASE + 8, slots)
            sys.exit()
    time.sleep(0.02)
print("nothing is to go")
"""


@pytest.fixture(scope="module")
def generic_image(root: Path) -> Path:
    """The flavour whose kernel finds its interrupts without ACPI (CONFIG_X86_MPPARSE)."""
    program = str(root / "build/venv/bin/innkeeper")
    commands.run([program, "image", "build", "--flavour", "generic"], deadline=1500)
    return root / "build/images/generic"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(generic_image: Path) -> AsyncIterator[Guest]:
    silent = ("acpi=off", "pcie_ports=compat")
    spec = VmSpec(name="no-notice", image=f"{generic_image}/", transport="serial", ports=PORTS)
    vm = await start_vm(replace(spec, cmdline=silent))
    try:
        async with vm.channel() as channel:
            yield Guest(vm, channel)
    finally:
        # It can't switch the machine off without ACPI, so there is nothing to wait for.
        await vm.stop(grace=0.1)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def observer(machine: Guest) -> AsyncIterator[Observer]:
    async with observing(machine) as found:
        yield found


@pytest.fixture
def content(tmp_path: Path) -> Path:
    path = tmp_path / "data.img"
    path.write_bytes(b"known content\n")
    os.truncate(path, 2 * MIB)
    return path


async def functions(observer: Observer) -> set[str]:
    return set((await observer.ask("ls /sys/bus/pci/devices")).split())


async def ejecting(observer: Observer, bdf: str) -> str:
    """What the firmware sees of a function when QEMU asks for its slot."""
    said = await observer.ask(python(FIRMWARE, f"/sys/bus/pci/devices/{bdf}"))
    return said.strip()


async def test_nobody_tells_it_of_hot_plug(machine: Guest, observer: Observer) -> None:
    """A function that is plugged behind everybody's back shows with the next look alone."""
    assert not (await observer.ask("ls -d /sys/firmware/acpi 2>/dev/null")).strip()
    assert not (await observer.ask("ls /sys/bus/pci_express/drivers/pciehp 2>/dev/null")).strip()
    before = await functions(observer)
    last = f"port{PORTS - 1}"
    await tell(machine, "device_add", driver="virtio-rng-pci", bus=last, id="untold")
    buses = await machine.host.Query(host.QueryQemuRequest(command="query-pci"))
    assert '"qdev_id": "untold"' in buses.answer
    assert await functions(observer) == before
    await observer.ask("echo 1 > /sys/bus/pci/rescan")
    (bdf,) = await functions(observer) - before
    await observer.ask(f"echo 1 > /sys/bus/pci/devices/{bdf}/remove")
    await tell(machine, "device_del", id="untold")
    assert await ejecting(observer, bdf) == "removed before"


async def test_a_disk_comes_with_one_look_and_is_let_go_before_it_is_taken(
    machine: Guest, observer: Observer, content: Path
) -> None:
    """Twice in the same slot: the second is the new one, not what is left of the first."""
    paths = set()
    async with watching_rescans(machine) as rescans:
        for attach in (1, 2):
            os.truncate(content, attach * MIB)
            (disk,) = (await machine.host.Plug(disk_plug("data", content))).attached
            await rescans.until(attach)
            assert disk.block.size == attach * MIB
            said = await observer.ask(f"head -c 14 {disk.nodes[0].path}")
            assert said == "known content\n"
            paths.add(disk.pci_path)
            async with asyncio.TaskGroup() as group:
                firmware = group.create_task(ejecting(observer, disk.pci_bdf))
                group.create_task(unplugged(machine, "data"))
            assert firmware.result() == "removed before"
        await rescans.until(2)
    assert len(paths) == 1


async def unplugged(guest: Guest, name: str) -> None:
    await guest.host.Unplug(host.UnplugRequest(id=name))


async def test_an_empty_slot_is_looked_at_once(machine: Guest) -> None:
    wanted = devices.Device(
        id="nothing",
        address=devices.DeviceAddress(pci_path="10/00"),
        timeout_seconds=1,
        block=devices.BlockDevice(),
    )
    async with watching_rescans(machine) as rescans:
        attach = devices.AttachDevicesRequest(devices=[wanted])
        told = await refusal(machine.devices.Attach(attach))
        assert (told.code, told.reason) == (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "DEVICE_NOT_READY",
        )
        assert "the bus was rescanned once" in told.text
        await rescans.until(1)
