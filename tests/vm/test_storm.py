"""A storm: eight devices of mixed class at once, in many orders, with events lost on the way.

Each attach must get its own device, whatever came first and whatever was not told.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import pytest_asyncio

from innkeeper.shim.client import VmSpec
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from tests.vm.guest import Guest, booted
from tests.vm.inline import python
from tests.vm.observer import Observer, observing
from tests.vm.refusals import refusal

pytestmark = [pytest.mark.vm, pytest.mark.devices]

MIB = 1 << 20
ROUNDS = 20 if os.environ.get("INNKEEPER_SOAK") else 2
PORTS = 9
LIMIT = 90.0
PATIENCE = 60
"""Seconds of one attach; only one that fails takes them."""

# The agent is stopped, and the kernel is made to tell more than the agent's socket holds
# (netlink(7); /proc/net/netlink: protocol, drops, inode). Then the host is told, through the
# console, and the agent goes on once that many functions more are there.
FLOOD = """
import os, signal, sys, time
agent, more, word = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
FUNCTIONS, END = "/sys/bus/pci/devices", time.monotonic() + 60
FILES = f"/proc/{agent}/fd"
own = {os.readlink(f"{FILES}/{name}") for name in os.listdir(FILES)}
def drops():
    with open("/proc/net/netlink") as table:
        rows = [line.split() for line in table][1:]
    return sum(int(row[8]) for row in rows if row[1] == "15" and f"socket:[{row[9]}]" in own)
def until(true):
    while not true() and time.monotonic() < END:
        time.sleep(0.02)
before, functions = drops(), len(os.listdir(FUNCTIONS))
event = os.open("/sys/devices/virtual/mem/null/uevent", os.O_WRONLY)
os.kill(agent, signal.SIGSTOP)
try:
    while drops() == before and time.monotonic() < END:
        for _ in range(200):
            os.pwrite(event, b"change", 0)
    with open("/dev/console", "w") as console:
        print(word, file=console)
    until(lambda: len(os.listdir(FUNCTIONS)) >= functions + more)
finally:
    os.kill(agent, signal.SIGCONT)
print(drops() - before, len(os.listdir(FUNCTIONS)) - functions)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One device of the storm: what is plugged, what is asked for, and how it is known."""

    id: str
    hardware: host.Hardware
    wanted: devices.Device
    is_own: Callable[[devices.AttachedDevice], bool]
    port: host.Port = field(default_factory=host.Port)

    @property
    def asked(self) -> devices.Device:
        """As the daemon asks for it too: the same request twice is one."""
        asked = devices.Device(id=self.id, timeout_seconds=PATIENCE)
        asked.MergeFrom(self.wanted)
        asked.address.pci_path = self.port.pci_path
        return asked

    @property
    def plug(self) -> host.PlugRequest:
        function = host.PlugFunction(id=self.id, hardware=self.hardware, guest=self.wanted)
        function.guest.timeout_seconds = PATIENCE
        return host.PlugRequest(
            functions=[function], port=self.port.name, timeout_seconds=2 * PATIENCE
        )


def disk(folder: Path, name: str, size: int, model: host.DiskModel.ValueType) -> Member:
    path = folder / f"{name}.img"
    path.touch()
    os.truncate(path, size)
    content = host.DiskFile(file=str(path))

    def is_own(attached: devices.AttachedDevice) -> bool:
        return (attached.block.serial, attached.block.size) == (name, size)

    return Member(
        id=name,
        hardware=host.Hardware(disk=host.Disk(content=content, model=model)),
        # Nothing is expected: a wrong disk would be taken, and seen.
        wanted=devices.Device(
            block=devices.BlockDevice(), host=[devices.HostTuple(type="path", id=str(path))]
        ),
        is_own=is_own,
    )


def nic(name: str, mac: str) -> Member:
    return Member(
        id=name,
        hardware=host.Hardware(nic=host.Nic(mac=mac)),
        wanted=devices.Device(nic=devices.NicDevice()),
        is_own=lambda attached: attached.nic.mac == mac,
    )


def members(folder: Path) -> list[Member]:
    """None of a class could be told from another of it by anything but what it is."""
    return [
        disk(folder, "virtio-1", 1 * MIB, host.DISK_MODEL_VIRTIO),
        disk(folder, "virtio-2", 2 * MIB, host.DISK_MODEL_VIRTIO),
        disk(folder, "nvme-3", 3 * MIB, host.DISK_MODEL_NVME),
        disk(folder, "nvme-4", 4 * MIB, host.DISK_MODEL_NVME),
        nic("nic-5", "52:54:00:00:00:05"),
        nic("nic-6", "52:54:00:00:00:06"),
        Member(
            id="rng-7",
            hardware=host.Hardware(rng=host.Rng()),
            wanted=devices.Device(rng=devices.RngDevice()),
            # virtio 1.2, 4.1.2: 0x1040 and the device type, 4 for entropy.
            is_own=lambda attached: attached.pci_id == "1af4:1044",
        ),
        Member(
            id="scsi-8",
            hardware=host.Hardware(scsi_controller=host.ScsiController()),
            wanted=devices.Device(common=devices.CommonDevice()),
            # Type 8: SCSI host.
            is_own=lambda attached: attached.pci_id == "1af4:1048",
        ),
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path) -> AsyncIterator[Guest]:
    spec = VmSpec(name="storm", image=f"{image}/", transport="serial", ports=PORTS)
    async with booted(spec) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def observer(machine: Guest) -> AsyncIterator[Observer]:
    async with observing(machine) as found:
        yield found


async def shuffled(guest: Guest, folder: Path, seed: int) -> list[Member]:
    """In an order, and in ports, that the seed decides."""
    chance = random.Random(seed)
    ports = list((await guest.host.ListPorts(host.ListPortsRequest())).ports)[: PORTS - 1]
    chance.shuffle(ports)
    found = [replace(each, port=port) for each, port in zip(members(folder), ports, strict=True)]
    chance.shuffle(found)
    return found


async def plugged(guest: Guest, storm: list[Member]) -> None:
    async with asyncio.TaskGroup() as group:
        for member in storm:
            group.create_task(plugged_one(guest, member))


async def plugged_one(guest: Guest, member: Member) -> None:
    (attached,) = (await guest.host.Plug(member.plug)).attached
    assert attached.pci_path == member.port.pci_path
    assert member.is_own(attached), attached


async def attached_as_one(guest: Guest, storm: list[Member]) -> None:
    """One batch, which waits before anything is plugged in."""
    request = devices.AttachDevicesRequest(devices=[member.asked for member in storm])
    answer = await guest.devices.Attach(request)
    for member, attached in zip(storm, answer.attached, strict=True):
        assert attached.device == member.asked
        assert member.is_own(attached), attached


async def unplugged(guest: Guest, storm: list[Member]) -> None:
    async def one(member: Member) -> None:
        await guest.host.Unplug(host.UnplugRequest(id=member.id))

    async with asyncio.TaskGroup() as group:
        for member in storm:
            group.create_task(one(member))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_each_attach_gets_its_own(machine: Guest, tmp_path: Path, seed: int) -> None:
    """The batch waits for all of them, the plugs for one each, and both get the same."""
    storm = await shuffled(machine, tmp_path, seed)
    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
        group.create_task(attached_as_one(machine, storm))
        group.create_task(plugged(machine, random.Random(-seed).sample(storm, len(storm))))
    await unplugged(machine, storm)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 100 + ROUNDS))
async def test_no_attach_needs_the_events(
    machine: Guest, observer: Observer, tmp_path: Path, seed: int
) -> None:
    """All that the kernel tells of the eight is lost: the agent looks, and finds each."""
    storm = await shuffled(machine, tmp_path, seed)
    agent = (await machine.describe()).agent_pid
    word = f"events are lost from now on, {seed}"
    before = await lost(machine)
    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
        group.create_task(attached_as_one(machine, storm))
        flood = python(FLOOD, str(agent), str(len(storm)), f"'{word}'")
        said = group.create_task(observer.ask(flood))
        await console_says(machine, word)
        group.create_task(plugged(machine, storm))
    drops, functions = map(int, said.result().split())
    assert drops >= len(storm)
    assert functions == len(storm)
    assert await lost(machine) > before
    await unplugged(machine, storm)


async def console_says(guest: Guest, word: str) -> None:
    """Nobody tells the host but the console: its log is looked at for a while."""
    log = guest.vm.directory / "console.log"
    async with asyncio.timeout(PATIENCE):
        while True:
            if word in log.read_text(errors="replace"):
                return
            await asyncio.sleep(0.05)


async def lost(guest: Guest) -> int:
    """How often the agent knows that it has missed events; errors tell."""
    nothing = devices.Device(
        id="nothing",
        address=devices.DeviceAddress(pci_path="0f/00"),
        timeout_seconds=0.1,
        block=devices.BlockDevice(),
    )
    request = devices.AttachDevicesRequest(devices=[nothing])
    told = await refusal(guest.devices.Attach(request))
    return int(told.fields["events_lost"])
