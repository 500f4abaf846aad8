"""Each class of hardware that QEMU can be: plugged, used, unplugged, and in the same slot again."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from innkeeper.shim import commands
from innkeeper.shim.client import ColdDevice, VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from tests.fakes.plugs import plug
from tests.vm.guest import PROBE, Guest, booted, reason, refused

pytestmark = [pytest.mark.vm, pytest.mark.devices, pytest.mark.timeout(900)]

MIB = 1 << 20
GIB = 1 << 30
PATIENCE = 60
"""Seconds; under emulation on a busy machine a driver may take some of them."""

SRIOV = "functions"

# QEMU's nvme.rst: the flexible queues and interrupts are taken from the physical function,
# given to a virtual one, and that is put online (NVM Express, Virtualization Management,
# opcode 1Ch). struct nvme_passthru_cmd and its ioctls: include/uapi/linux/nvme_ioctl.h.
BRING_VIRTUAL_FUNCTION_ONLINE = """
import fcntl, os, struct, sys
device, function = sys.argv[1:]
node = os.open(device, os.O_RDWR)
def manage(controller, resource, action, number):
    word = controller << 16 | resource << 8 | action
    command = struct.pack("<BBHIIIQQIIIIIIIIII", 0x1C, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                          word, number, 0, 0, 0, 0, 0, 0)
    fcntl.ioctl(node, 0xC0484E41, bytearray(command))
for resource in (1, 0):
    manage(0, resource, 1, 0)
fcntl.ioctl(node, 0x4E44)
for name, text in (("drivers_autoprobe", "0"), ("numvfs", "2"), ("drivers_autoprobe", "1")):
    with open(f"{function}/sriov_{name}", "w") as file:
        file.write(text)
manage(1, 1, 8, 1)
manage(1, 0, 8, 2)
manage(1, 0, 9, 0)
"""


def image_file(directory: Path, name: str, size: int = MIB) -> str:
    """A raw image whose first bytes are its name."""
    path = directory / f"{name}.img"
    path.write_bytes(name.encode().ljust(512, b"\0"))
    os.truncate(path, size)
    return str(path)


def disk(directory: Path, name: str, **more: Any) -> host.Disk:
    content = host.DiskFile(file=image_file(directory, name))
    return host.Disk(content=content, **more)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(root: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guest]:
    """All kinds of ports, room for memory, and an NVMe disk with virtual functions."""
    program = str(root / "build/venv/bin/innkeeper")
    commands.run([program, "image", "build", "--flavour", "generic"], deadline=1500)
    file = image_file(tmp_path_factory.mktemp("cold"), "sriov", 4 * MIB)
    functions = {
        "content": {"file": file},
        "model": "DISK_MODEL_NVME",
        "virtualFunctions": 2,
    }
    spec = VmSpec(
        name="classes",
        image=f"{root / 'build/images/generic'}/",
        transport="serial",
        ports=8,
        switch=True,
        second_root=True,
        max_memory=2 * GIB,
        nvdimm=True,
        cold=(ColdDevice(id=SRIOV, hardware=json.dumps({"disk": functions}), port="port7"),),
    )
    async with booted(spec) as running:
        yield running


async def plugged(
    guest: Guest,
    name: str,
    wanted: devices.Device | None = None,
    port: str = "",
    **kind: Any,
) -> devices.AttachedDevice:
    request = plug(name, wanted, port, timeout_seconds=PATIENCE, **kind)
    answer = await guest.host.Plug(request)
    assert len(answer.attached) == 1
    return answer.attached[0]


async def unplug(guest: Guest, name: str) -> None:
    await guest.host.Unplug(host.UnplugRequest(id=name, timeout_seconds=PATIENCE))


async def attach(
    guest: Guest, name: str, path: str, *, within: float = PATIENCE, **kind: Any
) -> devices.AttachedDevice:
    wanted = devices.Device(
        id=name,
        address=devices.DeviceAddress(pci_path=path),
        timeout_seconds=within,
        **kind,
    )
    answer = await guest.devices.Attach(devices.AttachDevicesRequest(devices=[wanted]))
    return answer.attached[0]


async def detach(guest: Guest, name: str, phase: devices.DetachPhase.ValueType) -> None:
    await guest.devices.Detach(devices.DetachDeviceRequest(id=name, phase=phase))


async def first_bytes(guest: Guest, node: str, count: int) -> str:
    return await guest.probe(f"head -c {count} {node}")


# Network interfaces.


@pytest.mark.parametrize(
    ("model", "driver", "pci_id"),
    [
        (host.NIC_MODEL_VIRTIO, "virtio-pci", "1af4:1041"),
        (host.NIC_MODEL_E1000E, "e1000e", "8086:10d3"),
    ],
)
async def test_an_interface_comes_goes_and_comes_again(
    machine: Guest, model: host.NicModel.ValueType, driver: str, pci_id: str
) -> None:
    """The second has the slot of the first, and another index: no old answer is given."""
    seen = []
    for mac in ("52:54:00:00:00:01", "52:54:00:00:00:02"):
        nic = host.Nic(model=model, mac=mac)
        attached = await plugged(machine, "nic", port="port0", nic=nic)
        assert (attached.driver, attached.pci_id) == (driver, pci_id)
        assert (attached.pci_class, list(attached.nodes)) == ("020000", [])
        told = attached.nic
        assert (told.mac, told.mtu) == (mac, 1500)
        text = await machine.probe(
            f"cd /sys/class/net/{told.name}; ip link set {told.name} up; cat address ifindex;"
            " tries=0; until [ $(cat carrier) = 1 ]; do"
            "  tries=$((tries + 1)); [ $tries -lt 200 ] || break; sleep 0.1;"
            " done; cat carrier"
        )
        assert text.split() == [mac, str(told.ifindex), "1"]
        seen.append((attached.pci_path, told.ifindex))
        await unplug(machine, "nic")
        assert told.name not in (await machine.probe("ls /sys/class/net")).split()
    (path, index), (again, newer) = seen
    assert path == again
    assert index < newer


async def test_an_interface_by_its_address(machine: Guest) -> None:
    """Case and place of the letters do not matter (case 69)."""
    mac = "52:54:00:00:0a:0b"
    attached = await plugged(machine, "nic", nic=host.Nic(mac=mac))
    await detach(machine, "nic", devices.DETACH_PHASE_RELEASE)
    wanted = devices.Device(
        id="nic",
        address=devices.DeviceAddress(mac=mac.upper()),
        timeout_seconds=PATIENCE,
        nic=devices.NicDevice(),
    )
    answer = await machine.devices.Attach(devices.AttachDevicesRequest(devices=[wanted]))
    found = answer.attached[0]
    assert found.nic == attached.nic
    assert found.pci_path == attached.pci_path
    await detach(machine, "nic", devices.DETACH_PHASE_RELEASE)
    await attach(machine, "nic", attached.pci_path, nic=devices.NicDevice())
    await unplug(machine, "nic")


async def test_an_interface_in_another_network_namespace(machine: Guest) -> None:
    """Out of the agent's sight, and the error says where it may be; back, it is found."""
    attached = await plugged(machine, "nic", nic=host.Nic())
    await detach(machine, "nic", devices.DETACH_PHASE_RELEASE)
    name = attached.nic.name
    script = (
        "unshare -n sleep 600 & there=$!; own=$(readlink /proc/$$/ns/net);"
        " until [ $(readlink /proc/$there/ns/net) != $own ]; do sleep 0.1; done;"
        f" ip link set {name} netns $there; wait"
    )
    holder = await machine.start(script, **PROBE)
    await machine.probe(f"while [ -e /sys/class/net/{name} ]; do sleep 0.1; done")
    with pytest.raises(aio.AioRpcError) as caught:
        await attach(machine, "nic", attached.pci_path, within=2, nic=devices.NicDevice())
    assert reason(caught.value) == "DEVICE_NOT_READY"
    assert "may be in another network namespace" in (caught.value.details() or "")
    await machine.remove(holder)
    again = await attach(machine, "nic", attached.pci_path, nic=devices.NicDevice())
    assert again.nic.mac == attached.nic.mac
    await unplug(machine, "nic")


# Random number generators.

CORE = "/sys/class/misc/hw_random"


async def source(guest: Guest) -> str:
    return (await guest.probe(f"cat {CORE}/rng_current")).strip()


async def interrupts(guest: Guest, attached: devices.AttachedDevice) -> int:
    """Of the queue of a virtio-rng: the kernel names it after the virtio device."""
    text = await guest.probe(
        f"virtio=$(basename {attached.sysfs_path}/virtio*); grep $virtio-input /proc/interrupts"
    )
    return sum(int(word) for word in re.findall(r"(?<=\s)\d+(?=\s)", text.partition(":")[2]))


async def test_a_generator_becomes_the_source_and_the_former_comes_back(machine: Guest) -> None:
    former = await source(machine)
    wanted = devices.Device(rng=devices.RngDevice(make_current=True))
    for _ in range(2):
        attached = await plugged(machine, "rng", wanted, "port0", rng=host.Rng())
        told = attached.rng
        assert (told.current, told.former) == (True, former)
        assert await source(machine) == told.name != former
        assert [(node.path, node.major, node.minor) for node in attached.nodes] == [
            ("/dev/hwrng", 10, 183)
        ]
        before = await interrupts(machine, attached)
        finished = await machine.run(
            "head -c 256 /dev/hwrng | wc -c",
            devices=(containers.DeviceGrant(device_id="rng", container_path="/dev/hwrng"),),
        )
        assert finished.text.split() == ["256"]
        assert await interrupts(machine, attached) > before, "it was asked for them itself"
        await unplug(machine, "rng")
        assert await source(machine) == former
        assert told.name not in await machine.probe(f"cat {CORE}/rng_available")


async def test_two_generators_at_once_are_told_apart(machine: Guest) -> None:
    """Each is made the source by its name, and then it is the one that is asked."""
    former = await source(machine)
    pair = await asyncio.gather(
        plugged(machine, "rng-a", rng=host.Rng()), plugged(machine, "rng-b", rng=host.Rng())
    )
    assert len({each.rng.name for each in pair} | {former}) == 3
    assert [list(each.nodes) for each in pair] == [[], []]
    for each, other in (pair, pair[::-1]):
        before = [await interrupts(machine, one) for one in (each, other)]
        await machine.probe(
            f"echo {each.rng.name} >{CORE}/rng_current; head -c 1024 /dev/hwrng >/dev/null"
        )
        grown = [
            await interrupts(machine, one) - old
            for one, old in zip((each, other), before, strict=True)
        ]
        # One request of the former source's may still have been on its way.
        assert grown[0] > 1 >= grown[1], (each.rng.name, grown)
    await machine.probe(f"echo {former} >{CORE}/rng_current")
    await asyncio.gather(unplug(machine, "rng-a"), unplug(machine, "rng-b"))


# Persistent memory.


async def test_virtio_pmem_can_be_read_and_not_unplugged(machine: Guest, tmp_path: Path) -> None:
    file = image_file(tmp_path, "virtio-pmem", 16 * MIB)
    attached = await plugged(machine, "pmem", port="port6", pmem=host.Pmem(file=file))
    told = attached.pmem
    assert (told.size, told.dax, told.removable) == (16 * MIB, True, True)
    (node,) = attached.nodes
    assert (node.type, await first_bytes(machine, node.path, 11)) == ("b", "virtio-pmem")
    assert await refused(unplug_call(machine, "pmem")) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "NOT_REMOVABLE",
    )
    assert await first_bytes(machine, node.path, 11) == "virtio-pmem"


async def test_memory_that_is_mapped_whole(machine: Guest, tmp_path: Path) -> None:
    """The same memory as a character device, as `ndctl create-namespace -m devdax` makes it."""
    file = image_file(tmp_path, "mapped", 64 * MIB)
    attached = await plugged(machine, "mapped", port="port5", pmem=host.Pmem(file=file))
    assert attached.pmem.size == 64 * MIB
    await detach(machine, "mapped", devices.DETACH_PHASE_RELEASE)
    await machine.probe(
        f"cd {attached.sysfs_path}/virtio*/ndbus*/region* && name=$(basename namespace*) &&"
        " seed=$(cat dax_seed) && echo $name >/sys/bus/nd/drivers/nd_pmem/unbind && cd $seed &&"
        " echo pmem >mode && echo 2097152 >align && cat /proc/sys/kernel/random/uuid >uuid &&"
        " echo $name >namespace && echo $seed >/sys/bus/nd/drivers/dax_pmem/bind"
    )
    again = await attach(machine, "mapped", attached.pci_path, pmem=devices.PmemDevice())
    (node,) = again.nodes
    assert (node.type, node.path.partition("dax")[0]) == ("c", "/dev/")
    assert again.pmem.dax
    # The kernel's own book-keeping takes the first 2 MiB.
    assert again.pmem.size == 62 * MIB


async def test_an_nvdimm_is_not_the_guests_to_let_go(machine: Guest, tmp_path: Path) -> None:
    """Nothing is tried, and the guest can still forget it (case 16)."""
    file = image_file(tmp_path, "nvdimm", 128 * MIB)
    nvdimm = host.Pmem(file=file, model=host.PMEM_MODEL_NVDIMM)
    attached = await plugged(machine, "nvdimm", pmem=nvdimm)
    told = attached.pmem
    assert (told.size, told.removable, attached.pci_path) == (128 * MIB, False, "")
    (node,) = attached.nodes
    assert attached.device.address.path == node.path
    assert await first_bytes(machine, node.path, 6) == "nvdimm"
    refusal = (grpc.StatusCode.FAILED_PRECONDITION, "NOT_REMOVABLE")
    prepare = detach(machine, "nvdimm", devices.DETACH_PHASE_PREPARE)
    assert await refused(prepare) == refusal
    assert await refused(unplug_call(machine, "nvdimm")) == refusal
    assert await first_bytes(machine, node.path, 6) == "nvdimm"
    await detach(machine, "nvdimm", devices.DETACH_PHASE_RELEASE)


def unplug_call(guest: Guest, name: str) -> Any:
    return guest.host.Unplug(host.UnplugRequest(id=name))


# Disks of other kinds than virtio-blk.


async def test_an_nvme_disk_comes_goes_and_comes_again(machine: Guest, tmp_path: Path) -> None:
    for name in ("nvme-one", "nvme-two"):
        kind = disk(tmp_path, name, model=host.DISK_MODEL_NVME)
        attached = await plugged(machine, name, port="port0", disk=kind)
        assert (attached.driver, attached.pci_class) == ("nvme", "010802")
        assert (attached.block.size, attached.block.serial) == (MIB, name)
        assert await first_bytes(machine, attached.nodes[0].path, 8) == name
        await unplug(machine, name)


async def test_logical_unit_1_is_not_10(machine: Guest, tmp_path: Path) -> None:
    """The longer number comes first, and leaves last (case 9)."""
    controller = await plugged(machine, "hba", scsi_controller=host.ScsiController())
    assert controller.pci_id == "1af4:1048"
    units = {}
    for lun in (10, 1):
        name = f"lun-{lun}"
        content = host.DiskFile(file=image_file(tmp_path, name))
        unit = host.ScsiDisk(content=content, controller="hba", lun=lun)
        units[lun] = await plugged(machine, name, scsi_disk=unit)
        assert units[lun].bus_address.endswith(f":0:0:{lun}")
        assert units[lun].block.serial == name
        assert units[lun].pci_path == controller.pci_path
    assert await refused(unplug_call(machine, "hba")) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "STILL_IN_USE",
    )
    await unplug(machine, "lun-1")
    assert await first_bytes(machine, units[10].nodes[0].path, 6) == "lun-10"
    await unplug(machine, "lun-10")
    await unplug(machine, "hba")


# Places.


async def test_several_functions_in_one_slot(machine: Guest, tmp_path: Path) -> None:
    """Function 0 brings the slot to life, and the whole device goes at once."""
    kinds: list[dict[str, Any]] = [
        {"disk": disk(tmp_path, "function-0")},
        {"nic": host.Nic()},
        {"rng": host.Rng()},
    ]
    functions = [
        host.PlugFunction(id=f"function-{number}", hardware=host.Hardware(**kind))
        for number, kind in enumerate(kinds)
    ]
    request = host.PlugRequest(functions=functions, port="port1", timeout_seconds=PATIENCE)
    attached = (await machine.host.Plug(request)).attached
    assert [each.pci_path for each in attached] == ["10.1/00", "10.1/00.1", "10.1/00.2"]
    assert [each.WhichOneof("info") for each in attached] == ["block", "nic", "rng"]
    assert await first_bytes(machine, attached[0].nodes[0].path, 10) == "function-0"
    await unplug(machine, "function-1")
    listed = await machine.devices.List(devices.ListDevicesRequest())
    assert not {each.device.id for each in listed.devices} & {each.id for each in functions}
    left = await machine.probe("ls /sys/bus/pci/devices")
    assert not {each.pci_bdf for each in attached} & set(left.split())


@pytest.mark.parametrize(
    ("port", "path"),
    [("switch2", "19/00/02/00"), ("far1", "0000:80/01/00")],
    ids=["four levels", "another root complex"],
)
async def test_far_places(machine: Guest, tmp_path: Path, port: str, path: str) -> None:
    for name in ("far-one", "far-two"):
        attached = await plugged(machine, name, port=port, disk=disk(tmp_path, name))
        assert attached.pci_path == path
        assert await first_bytes(machine, attached.nodes[0].path, 7) == name
        await unplug(machine, name)


# What is not what it was asked for as.


async def test_an_interface_is_no_disk(machine: Guest) -> None:
    """The error says what is there instead; nothing is left of the plug."""
    wanted = devices.Device(block=devices.BlockDevice(), timeout_seconds=4)
    with pytest.raises(aio.AioRpcError) as caught:
        await plugged(machine, "wrong", wanted, nic=host.Nic())
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert reason(caught.value) == "DEVICE_NOT_READY"
    text = caught.value.details() or ""
    assert "1af4:1041" in text
    assert "(virtio_net)" in text
    assert "no disk" in text
    for listed in (
        await machine.host.ListPlugged(host.ListPluggedRequest()),
        await machine.devices.List(devices.ListDevicesRequest()),
    ):
        assert "wrong" not in str(listed)


async def test_a_disk_is_no_interface(machine: Guest, tmp_path: Path) -> None:
    wanted = devices.Device(nic=devices.NicDevice(), timeout_seconds=4)
    with pytest.raises(aio.AioRpcError) as caught:
        await plugged(machine, "wrong", wanted, disk=disk(tmp_path, "wrong"))
    assert reason(caught.value) == "DEVICE_NOT_READY"
    assert "(virtio_blk)" in (caught.value.details() or "")
    assert "no network interface" in (caught.value.details() or "")


async def test_a_function_without_any_driver(machine: Guest) -> None:
    """The chip set's ISA bridge: no kernel of ours has a driver for it."""
    with pytest.raises(aio.AioRpcError) as caught:
        await attach(machine, "isa", "1f", within=3, common=devices.CommonDevice())
    assert reason(caught.value) == "DEVICE_NOT_READY"
    assert "no module matches its alias pci:v00008086d00002918" in (caught.value.details() or "")


async def test_virtual_functions_are_devices_of_their_own(machine: Guest) -> None:
    """Of an NVMe controller, made in the guest: function 1 has a driver, function 2 none."""
    listed = await machine.host.ListPlugged(host.ListPluggedRequest())
    path = next(each.pci_path for each in listed.devices if each.id == SRIOV)
    physical = await attach(machine, SRIOV, path, block=devices.BlockDevice())
    # The disk is a namespace in a subsystem, so that it is the head of its paths.
    assert physical.block.size == 4 * MIB
    assert await first_bytes(machine, physical.nodes[0].path, 5) == "sriov"
    virtual = physical.pci_bdf.removesuffix("0") + "1"
    where = physical.sysfs_path.removeprefix("/sys")
    await machine.probe(
        f"chroot /guest python3 -ISc '{BRING_VIRTUAL_FUNCTION_ONLINE}'"
        f" /dev/nvme0 /sys{where} && echo {virtual} >/sys/bus/pci/drivers/nvme/bind"
    )
    common = devices.CommonDevice(expect_driver="nvme", expect_nodes=1)
    found = await attach(machine, "virtual", f"{path}.1", common=common)
    assert found.pci_bdf == virtual
    assert ("c", "/dev/nvme1") in [(node.type, node.path) for node in found.nodes]
    with pytest.raises(aio.AioRpcError) as caught:
        await attach(machine, "other", f"{path}.2", within=2, common=devices.CommonDevice())
    assert "it has no driver" in (caught.value.details() or "")
    for name in ("virtual", SRIOV):
        await detach(machine, name, devices.DETACH_PHASE_RELEASE)
