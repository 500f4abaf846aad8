"""Every kind of hardware that the host plugs, seen from the guest's own sysfs.

What the agent makes of it is the other tests' subject; here the kernel is asked
whether QEMU was told right: places, sizes, serials, addresses, and that all of it
is gone again.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from innkeeper.shim import commands
from innkeeper.shim.client import ColdDevice, VmSpec
from innkeeper.v1 import host_pb2 as host
from tests.fakes.plugs import plug
from tests.vm.guest import Guest, booted, refused

pytestmark = [pytest.mark.vm, pytest.mark.devices]

MIB = 1 << 20
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(root: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guest]:
    """One with every kind of port, room to grow, and hardware from the start."""
    program = str(root / "build/venv/bin/innkeeper")
    commands.run([program, "image", "build", "--flavour", "generic"], deadline=1500)
    disk = file(tmp_path_factory.mktemp("cold"), "cold.img", 4 * MIB)
    nvme = f'"model": "DISK_MODEL_NVME", "virtual_functions": 2, "content": {{"file": "{disk}"}}'
    cold = (
        ColdDevice(id="gpu", hardware='{"gpu": {"model": "GPU_MODEL_VIRTIO"}}'),
        ColdDevice(id="vfs", hardware=f'{{"disk": {{{nvme}}}}}'),
        ColdDevice(id="nic", hardware='{"nic": {"model": "NIC_MODEL_E1000E"}}', port="far0"),
    )
    spec = VmSpec(
        name="kinds",
        image=f"{root / 'build/images/generic'}/",
        transport="serial",
        memory=768 * MIB,
        ports=8,
        bridge=True,
        switch=True,
        second_root=True,
        max_memory=4096 * MIB,
        nvdimm=True,
        cold=cold,
    )
    async with booted(spec) as running:
        yield running


def file(directory: Path, name: str, size: int) -> Path:
    path = directory / name
    path.touch()
    os.truncate(path, size)
    return path


def content(directory: Path, name: str, size: int = MIB) -> host.DiskFile:
    return host.DiskFile(file=str(file(directory, name, size)))


async def sysfs(guest: Guest, script: str) -> str:
    return (await guest.probe(script)).strip()


async def come(guest: Guest, device_id: str, port: str = "", **kind: Any) -> str:
    """Plugs one in; its PCI path as the host says it, which must be the guest's too."""
    answer = await guest.host.Plug(plug(device_id, port=port, **kind))
    (attached,) = answer.attached
    listed = await guest.host.ListPlugged(host.ListPluggedRequest())
    (record,) = [each for each in listed.devices if each.id == device_id]
    assert attached.pci_path == record.pci_path
    return attached.pci_bdf


async def go(guest: Guest, device_id: str) -> None:
    await guest.host.Unplug(host.UnplugRequest(id=device_id))


async def of_function(guest: Guest, bdf: str) -> str:
    """Vendor and device, as the PCI function says them."""
    words = f"cd /sys/bus/pci/devices/{bdf} && cat vendor device"
    return " ".join((await sysfs(guest, words)).split())


@pytest.mark.parametrize(
    ("port", "levels"),
    [("port2", 1), ("bridge.1", 2), ("switch0", 3), ("switch3", 3), ("far1", 1)],
)
async def test_a_device_is_as_deep_as_its_port(
    machine: Guest, tmp_path: Path, port: str, levels: int
) -> None:
    """The number of bridges above it, counted in the guest's own device tree."""
    disk = {"disk": host.Disk(content=content(tmp_path, "disk.img"))}
    bdf = await come(machine, "deep", port=port, **disk)
    ports = await machine.host.ListPorts(host.ListPortsRequest())
    (taken,) = [each for each in ports.ports if each.name == port]
    assert list(taken.devices) == ["deep"]
    path = await sysfs(machine, f"readlink -f /sys/bus/pci/devices/{bdf}")
    domain, *functions = path.removeprefix("/sys/devices/").split("/")
    assert len(functions) == levels + 1
    steps = [name.split(":")[-1].removesuffix(".0") for name in functions]
    shown = taken.pci_path.split("/")
    assert steps == [step for step in shown if ":" not in step]
    assert domain == ("pci0000:80" if port.startswith("far") else "pci0000:00")
    await go(machine, "deep")
    assert bdf not in await sysfs(machine, "ls /sys/bus/pci/devices")


@pytest.mark.parametrize(
    ("kind", "pci_id"),
    [
        ({"nic": host.Nic()}, "0x1af4 0x1041"),
        ({"nic": host.Nic(model=host.NIC_MODEL_E1000E)}, "0x8086 0x10d3"),
        ({"rng": host.Rng()}, "0x1af4 0x1044"),
        ({"gpu": host.Gpu()}, "0x1234 0x1111"),
        ({"scsi_controller": host.ScsiController()}, "0x1af4 0x1048"),
    ],
)
async def test_a_function_is_what_was_asked_for(
    machine: Guest, kind: dict[str, Any], pci_id: str
) -> None:
    bdf = await come(machine, "it", **kind)
    assert await of_function(machine, bdf) == pci_id
    await go(machine, "it")
    assert bdf not in await sysfs(machine, "ls /sys/bus/pci/devices")


async def test_a_nic_has_the_mac_that_was_asked_for(machine: Guest) -> None:
    bdf = await come(machine, "nic1", nic=host.Nic(mac="52:54:00:12:34:56"))
    words = f"cat /sys/bus/pci/devices/{bdf}/virtio*/net/*/address"
    assert await sysfs(machine, words) == "52:54:00:12:34:56"
    await go(machine, "nic1")


async def test_an_nvme_disk_has_its_size_and_serial(machine: Guest, tmp_path: Path) -> None:
    model = host.DISK_MODEL_NVME
    disk = host.Disk(content=content(tmp_path, "disk.img", 3 * MIB), model=model)
    bdf = await come(machine, "fast", disk=disk)
    function = f"/sys/bus/pci/devices/{bdf}/nvme/nvme*"
    serial, size = (await sysfs(machine, f"cat {function}/serial {function}/nvme*n1/size")).split()
    assert (serial, int(size) * 512) == ("fast", 3 * MIB)
    await go(machine, "fast")


async def test_units_of_one_controller(machine: Guest, tmp_path: Path) -> None:
    """Unit 1 is not unit 10, and the controller goes last."""
    await come(machine, "hba", scsi_controller=host.ScsiController())
    for unit in (1, 10):
        disk = host.ScsiDisk(
            content=content(tmp_path, f"{unit}.img", unit * MIB), controller="hba", lun=unit
        )
        await machine.host.Plug(plug(f"lun{unit}", scsi_disk=disk))
    sizes = "for d in /sys/class/scsi_disk/*; do echo ${d##*:} $(cat $d/device/block/*/size); done"
    found = dict(line.split() for line in (await sysfs(machine, sizes)).splitlines())
    assert {unit: int(size) * 512 // MIB for unit, size in found.items()} == {"1": 1, "10": 10}
    assert await refused(machine.host.Unplug(host.UnplugRequest(id="hba"))) == (
        PRECONDITION,
        "STILL_IN_USE",
    )
    for device in ("lun1", "lun10", "hba"):
        await go(machine, device)
    assert await sysfs(machine, "ls /sys/class/scsi_disk") == ""


async def test_functions_of_one_slot(machine: Guest, tmp_path: Path) -> None:
    """All come at once, and with any of them all go."""
    request = plug("m0", disk=host.Disk(content=content(tmp_path, "m0.img")))
    request.functions.extend(plug("m1", rng=host.Rng()).functions)
    request.functions.extend(plug("m2", nic=host.Nic()).functions)
    for _ in range(2):
        answer = await machine.host.Plug(request)
        first, *others = [each.pci_bdf for each in answer.attached]
        assert others == [first.replace(".0", ".1"), first.replace(".0", ".2")]
        seen = (await sysfs(machine, "ls /sys/bus/pci/devices")).split()
        assert {first, *others} <= set(seen)
        await go(machine, "m1")
        seen = (await sysfs(machine, "ls /sys/bus/pci/devices")).split()
        assert not {first, *others} & set(seen)


async def test_persistent_memory_comes_and_stays(machine: Guest, tmp_path: Path) -> None:
    virtio = host.Pmem(file=str(file(tmp_path, "virtio", 128 * MIB)))
    dimm = host.Pmem(file=str(file(tmp_path, "dimm", 256 * MIB)), model=host.PMEM_MODEL_NVDIMM)
    for name, pmem in (("pm0", virtio), ("pm1", dimm)):
        await machine.host.Plug(plug(name, pmem=pmem))
        answer = await refused(machine.host.Unplug(host.UnplugRequest(id=name)))
        assert answer == (PRECONDITION, "NOT_REMOVABLE")
    sizes = await sysfs(machine, "cat /sys/block/pmem0/size /sys/block/pmem1/size")
    virtio_size, dimm_size = (int(size) * 512 for size in sizes.split())
    assert virtio_size == 128 * MIB
    # The end of an NVDIMM without labels may be the kernel's.
    assert 255 * MIB <= dimm_size <= 256 * MIB


async def total(guest: Guest) -> int:
    """Bytes of memory that the guest's kernel has."""
    words = await sysfs(guest, "grep MemTotal /proc/meminfo")
    return int(words.split()[1]) * 1024


async def test_a_dimm_comes_and_goes_and_virtio_mem_stays(machine: Guest) -> None:
    """The kernel keeps a 64th or so of new memory for its own tables."""
    before = await total(machine)
    answer = await machine.host.Plug(plug("dimm", memory=host.Memory(size=128 * MIB)))
    assert 120 * MIB <= await total(machine) - before <= 128 * MIB
    assert answer.online.memory_online >= 768 * MIB + 128 * MIB
    await go(machine, "dimm")
    assert await total(machine) <= before
    model = host.MEMORY_MODEL_VIRTIO
    await machine.host.Plug(plug("more", memory=host.Memory(size=128 * MIB, model=model)))
    assert 120 * MIB <= await total(machine) - before <= 128 * MIB
    stays = await refused(machine.host.Unplug(host.UnplugRequest(id="more")))
    assert stays == (PRECONDITION, "NOT_REMOVABLE")


async def test_what_is_there_from_the_start_is_in_its_port(machine: Guest) -> None:
    listed = await machine.host.ListPlugged(host.ListPluggedRequest())
    found = {each.id: each for each in listed.devices}
    paths = {name: found[name].pci_path for name in ("gpu", "vfs", "nic")}
    assert paths == {"gpu": "10/00", "vfs": "10.1/00", "nic": "0000:80/00/00"}
    assert await of_function(machine, "0000:01:00.0") == "0x1af4 0x1050"
    totals = "cat /sys/bus/pci/devices/0000:02:00.0/sriov_totalvfs"
    assert await sysfs(machine, totals) == "2"
    for name in ("gpu", "vfs"):
        answer = await refused(machine.host.Unplug(host.UnplugRequest(id=name)))
        assert answer == (PRECONDITION, "NOT_REMOVABLE")


async def test_a_port_that_is_taken_and_one_that_is_not_there(machine: Guest) -> None:
    for port, expected in (
        ("port0", (grpc.StatusCode.ALREADY_EXISTS, "PORT_IN_USE")),
        ("port99", (grpc.StatusCode.NOT_FOUND, "UNKNOWN_PORT")),
    ):
        assert await refused(machine.host.Plug(plug("x", port=port, rng=host.Rng()))) == expected
