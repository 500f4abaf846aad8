"""Unplugging as a conversation: who holds a device is told, and who is gone is noticed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from innkeeper.shim.client import VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import sandbox_pb2 as sandbox
from tests.command_line import Innkeeper
from tests.fakes.plugs import disk_plug, plug
from tests.vm.behind import taken_away
from tests.vm.disks import mounted
from tests.vm.guest import Guest, booted
from tests.vm.inline import python
from tests.vm.observer import Observer, observing
from tests.vm.refusals import Refusal, refusal
from tests.vm.rescans import Rescans, watching_rescans

pytestmark = [pytest.mark.vm, pytest.mark.devices]

MIB = 1 << 20
LIMIT = 60.0
MAC = "52:54:00:00:be:ef"

# DM_DEV_CREATE, DM_TABLE_LOAD, DM_DEV_SUSPEND (which resumes) and DM_DEV_REMOVE of
# include/uapi/linux/dm-ioctl.h: a linear target of the disk's first 2048 sectors.
MAPPER = """
import fcntl, struct, sys
def ask(command, target=b"", count=0):
    size = 312 + len(target)
    head = struct.pack("=10IQ128s129s7x", 4, 0, 0, size, 312, count, 0, 0, 0, 0, 0, b"top", b"")
    with open("/dev/mapper/control", "rb+", buffering=0) as control:
        fcntl.ioctl(control, 0xC138FD00 | command, bytearray(head + target))
if sys.argv[1] == "remove":
    ask(4)
else:
    line = f"{sys.argv[1]} 0".encode().ljust(24, b"\\0")
    ask(3)
    ask(9, struct.pack("=QQiI16s", 0, 2048, 0, 64, b"linear") + line, 1)
    ask(6)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How somebody uses the disk `$node`, and how it ends; who is told then."""

    begin: str
    end: str
    kinds: frozenset[str]


MOUNTED = Use(
    begin="mke2fs $node >/dev/null && mkdir -p /mnt/x && mount -t ext4 $node /mnt/x",
    end="umount /mnt/x",
    kinds=frozenset({"mount"}),
)
USES = {
    "mounted by hand": MOUNTED,
    "open": Use(begin="exec 3<$node", end="exec 3<&-", kinds=frozenset({"descriptor"})),
    "swap": Use(
        begin="mkswap $node >/dev/null && swapon $node",
        end="swapoff $node",
        kinds=frozenset({"swap"}),
    ),
    "device-mapper": Use(
        begin=f"chroot /guest modprobe dm_mod && {python(MAPPER, '$node')}",
        end=python(MAPPER, "remove"),
        kinds=frozenset({"stacked"}),
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path) -> AsyncIterator[Guest]:
    spec = VmSpec(name="unplug", image=f"{image}/", transport="serial", ports=2)
    async with booted(spec) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rescans(machine: Guest) -> AsyncIterator[Rescans]:
    async with watching_rescans(machine) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def observer(machine: Guest, rescans: Rescans) -> AsyncIterator[Observer]:
    """A container that sees all of the guest, in a mount namespace of its own."""
    await rescans.until(0)
    async with observing(machine) as found:
        yield found


@pytest.fixture
def content(tmp_path: Path) -> Path:
    """A raw image whose first bytes are known."""
    path = tmp_path / "data.img"
    path.write_bytes(b"known content\n")
    os.truncate(path, 2 * MIB)
    return path


async def plugged_disk(guest: Guest, name: str, file: Path) -> devices.AttachedDevice:
    return (await guest.host.Plug(disk_plug(name, file))).attached[0]


async def unplug(guest: Guest, name: str) -> None:
    await guest.host.Unplug(host.UnplugRequest(id=name))


async def detach(guest: Guest, name: str, phase: devices.DetachPhase.ValueType) -> None:
    await guest.devices.Detach(devices.DetachDeviceRequest(id=name, phase=phase))


async def state(guest: Guest, name: str) -> devices.DeviceState.ValueType:
    return (await guest.devices.Get(devices.GetDeviceRequest(id=name))).state


async def is_there(observer: Observer, bdf: str) -> bool:
    return (await observer.ask(f"ls -d /sys/bus/pci/devices/{bdf} 2>&1")).startswith("/sys")


async def refused(guest: Guest, name: str) -> Refusal:
    """The same refusal from the agent and from the host; nothing has changed by either."""
    prepare = devices.DetachDeviceRequest(id=name, phase=devices.DETACH_PHASE_PREPARE)
    told = await refusal(guest.devices.Detach(prepare))
    assert (told.code, told.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
    by_host = await refusal(guest.host.Unplug(host.UnplugRequest(id=name)))
    assert (by_host.code, by_host.reason) == (told.code, told.reason)
    assert by_host.holders == told.holders
    answer = await guest.devices.Holders(devices.DeviceHoldersRequest(id=name))
    assert {kind_of(each) for each in answer.holders} == told.kinds
    assert await state(guest, name) == devices.DEVICE_STATE_ATTACHED
    listed = await guest.host.ListPlugged(host.ListPluggedRequest())
    assert [(each.id, each.state) for each in listed.devices] == [(name, "plugged")]
    return told


def kind_of(holder: devices.DeviceHolder) -> str:
    name = devices.HolderKind.Name(holder.kind)
    return name.removeprefix("HOLDER_KIND_").lower().replace("_", "-")


async def gone_events(guest: Guest, name: str, count: int = 1) -> list[sandbox.Event]:
    """The first events that tell that the device is gone."""
    found = []
    async with asyncio.timeout(LIMIT):
        async for event in guest.sandbox.Watch(sandbox.WatchRequest()):
            if (event.kind, event.subject) == (sandbox.EVENT_KIND_DEVICE_GONE, name):
                found.append(event)
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_who_uses_a_disk_is_told_and_keeps_it(
    machine: Guest, observer: Observer, content: Path, use: Use
) -> None:
    """What the kernel shows counts, not only what the agent gave away."""
    disk = await plugged_disk(machine, "data", content)
    node = disk.nodes[0].path
    said = await observer.ask(f"node={node}; {use.begin}; echo $? $$")
    code, shell = map(int, said.split()[-2:])
    assert code == 0, said
    told = await refused(machine, "data")
    assert told.kinds == use.kinds, told
    if use.kinds & {"mount", "descriptor"}:
        assert [holder["pid"] for holder in told.holders] == [shell]
    assert await observer.ask(f"head -c 1 {node} | wc -c") == "1\n"
    assert (await observer.ask(f"{use.end}; echo $?")).splitlines()[-1] == "0"
    await unplug(machine, "data")
    assert not await is_there(observer, disk.pci_bdf)


async def test_the_command_line_says_who_uses_it(
    machine: Guest, observer: Observer, content: Path
) -> None:
    disk = await plugged_disk(machine, "data", content)
    await observer.ask(f"node={disk.nodes[0].path}; {MOUNTED.begin}")
    innkeeper = Innkeeper(environment=os.environ)
    done = await innkeeper("device", "detach", "unplug", "data")
    assert done.code == 125
    message, *facts = done.err.splitlines()
    assert f"still used: mount {disk.nodes[0].path} /mnt/x process" in message
    assert any("STILL_IN_USE" in fact for fact in facts)
    assert any(fact.startswith("  hint: end what uses it first") for fact in facts)
    await observer.ask(MOUNTED.end)
    done = await innkeeper("device", "detach", "unplug", "data")
    assert (done.code, done.out) == (0, b"data: detached\n")


async def test_a_mounted_storage_and_a_granted_container_are_named(
    machine: Guest, observer: Observer, tmp_path: Path
) -> None:
    """Those that the agent itself gave it to, and what the kernel shows of them."""
    (tmp_path / "tree").mkdir()
    async with mounted(machine, "data", tmp_path / "tree"):
        grant = containers.DeviceGrant(device_id="data", container_path="/dev/data")
        name = await machine.start("exec sleep 300 < /dev/data", devices=(grant,))
        told = await refused(machine, "data")
        assert told.kinds == {"storage", "container", "mount", "descriptor"}
        names = {holder["kind"]: holder.get("name") for holder in told.holders}
        assert (names["storage"], names["container"]) == ("data", name)
        await machine.remove(name)
        assert (await refused(machine, "data")).kinds == {"storage", "mount"}
    assert "data" not in await observer.ask("cat /proc/1/mountinfo | grep ' ext4 ' | grep -v vda")


async def test_an_interface_in_another_network_namespace_is_in_use(
    machine: Guest, observer: Observer
) -> None:
    await machine.host.Plug(plug("nic", nic=host.Nic(mac=MAC)))
    away = (await observer.ask("unshare -n sleep 300 >/dev/null & echo $!")).strip()
    name = (await machine.devices.Get(devices.GetDeviceRequest(id="nic"))).nic.name
    # Its namespace is there a moment after the process is.
    same = f'[ "$(readlink /proc/{away}/ns/net)" = "$(readlink /proc/self/ns/net)" ]'
    said = await observer.ask(
        f"while {same}; do usleep 50000; done; ip link set {name} netns {away}; echo $?"
    )
    assert said.split()[-1] == "0", said
    told = await refused(machine, "nic")
    assert told.kinds == {"network-namespace"}
    (holder,) = told.holders
    assert (holder["pid"], holder["command"]) == (int(away), "sleep")
    await observer.ask(f"kill {away}; wait {away}")
    await until_free(machine, "nic")
    await unplug(machine, "nic")


async def until_free(guest: Guest, name: str) -> None:
    """The kernel brings an interface home some time after its namespace has ended."""

    async def is_free() -> bool:
        request = devices.DeviceHoldersRequest(id=name)
        return not (await guest.devices.Holders(request)).holders

    await until(is_free)


async def test_prepare_takes_it_out_and_cancel_brings_it_back(
    machine: Guest, observer: Observer, content: Path
) -> None:
    """The guest lets go before QEMU is asked; a host that changes its mind finds all intact."""
    disk = await plugged_disk(machine, "data", content)
    await observer.ask(f"echo -n written > {disk.nodes[0].path}; sync")
    await detach(machine, "data", devices.DETACH_PHASE_PREPARE)
    assert not await is_there(observer, disk.pci_bdf)
    assert await state(machine, "data") == devices.DEVICE_STATE_LEAVING
    buses = await machine.host.Query(host.QueryQemuRequest(command="query-pci"))
    assert '"qdev_id": "dev-data"' in buses.answer
    grant = containers.DeviceGrant(device_id="data", container_path="/dev/data")
    told = await refusal(machine.start("true", id="late", devices=(grant,)))
    assert told.code == grpc.StatusCode.FAILED_PRECONDITION
    await detach(machine, "data", devices.DETACH_PHASE_CANCEL)
    again = await machine.devices.Get(devices.GetDeviceRequest(id="data"))
    assert again.state == devices.DEVICE_STATE_ATTACHED
    assert (again.pci_path, again.block) == (disk.pci_path, disk.block)
    assert await observer.ask(f"head -c 14 {again.nodes[0].path}") == "writtenontent\n"
    await unplug(machine, "data")


async def test_release_leaves_it_where_it_is(
    machine: Guest, observer: Observer, content: Path
) -> None:
    disk = await plugged_disk(machine, "data", content)
    await detach(machine, "data", devices.DETACH_PHASE_RELEASE)
    assert await is_there(observer, disk.pci_bdf)
    told = await refusal(machine.devices.Get(devices.GetDeviceRequest(id="data")))
    assert told.reason == "UNKNOWN_DEVICE"
    answer = await machine.devices.Attach(devices.AttachDevicesRequest(devices=[disk.device]))
    assert answer.attached[0] == disk
    await unplug(machine, "data")


async def test_a_disk_that_the_host_just_takes_is_noticed(
    machine: Guest, observer: Observer, content: Path
) -> None:
    """device_del without a word to the agent: an event, and the place can be used again."""
    disk = await plugged_disk(machine, "taken", content)
    await taken_away(machine, "taken")
    (event,) = await gone_events(machine, "taken")
    assert event.details["asked"] == "no"
    await until_unknown(machine, "taken")
    assert not await is_there(observer, disk.pci_bdf)
    again = await plugged_disk(machine, "taken", content)
    assert again.pci_path == disk.pci_path
    assert await observer.ask(f"head -c 14 {again.nodes[0].path}") == "known content\n"
    await unplug(machine, "taken")
    told = await gone_events(machine, "taken", 3)
    assert [each.details["asked"] for each in told] == ["no", "yes", "yes"]


async def until_unknown(guest: Guest, name: str) -> None:
    """The daemon hears of the removal itself, and has the agent forget it."""

    async def is_unknown() -> bool:
        known = (await guest.devices.List(devices.ListDevicesRequest())).devices
        plugged = (await guest.host.ListPlugged(host.ListPluggedRequest())).devices
        return not plugged and name not in {each.device.id for each in known}

    await until(is_unknown)


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """Looks again for a while: neither side tells of it."""
    async with asyncio.timeout(LIMIT):
        while True:
            if await look():
                return
            await asyncio.sleep(0.1)


async def test_a_taken_disk_that_is_used_stays_in_the_table(machine: Guest, content: Path) -> None:
    """VANISHED, with who had it, until they are gone and it is detached."""
    await plugged_disk(machine, "used", content)
    grant = containers.DeviceGrant(device_id="used", container_path="/dev/data")
    name = await machine.start("exec sleep 300 < /dev/data", devices=(grant,))
    await taken_away(machine, "used")
    (event,) = await gone_events(machine, "used")
    assert event.details["users"] == f"container {name}"
    left = await machine.devices.Get(devices.GetDeviceRequest(id="used"))
    assert left.state == devices.DEVICE_STATE_VANISHED
    assert list(left.users) == [f"container {name}"]
    told = await refusal(machine.start("true", id="later", devices=(grant,)))
    assert told.code == grpc.StatusCode.FAILED_PRECONDITION
    await machine.remove(name)
    await detach(machine, "used", devices.DETACH_PHASE_COMPLETE)
    await until_unknown(machine, "used")
    again = await plugged_disk(machine, "used", content)
    assert again.pci_path == left.pci_path
    await unplug(machine, "used")


async def test_only_one_bus_is_looked_at(
    machine: Guest, observer: Observer, rescans: Rescans, content: Path
) -> None:
    """A look at all buses races with hot-plug: an ordinary guest's agent never asks for one.

    In all of this module; to show that it would have been seen, the test asks for one.
    """
    await plugged_disk(machine, "data", content)
    await detach(machine, "data", devices.DETACH_PHASE_PREPARE)
    await detach(machine, "data", devices.DETACH_PHASE_CANCEL)
    await unplug(machine, "data")
    # Not by `>`, whose truncation may be told as a modification of its own.
    await observer.ask("echo 1 >>/sys/bus/pci/rescan")
    await rescans.until(1)
