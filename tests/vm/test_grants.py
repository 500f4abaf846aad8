"""Devices and CPUs that containers are given and that are taken away again, with real disks."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from innkeeper.shim.client import VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import sandbox_pb2 as sandbox
from tests.fakes.plugs import disk_plug, plug
from tests.vm.guest import PROBE, Guest, booted, create_request, reason, refused
from tests.vm.observer import Observer, observing
from tests.vm.test_containers import attached, done, kill_agent, ref, signal
from tests.vm.test_devices import disk

pytestmark = [pytest.mark.vm, pytest.mark.containers]

STILL_IN_USE = (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
WRONG_STATE = (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
SOAK = bool(os.environ.get("INNKEEPER_SOAK"))
IDLE = "while :; do sleep 1; done"
UPDATES = 100
"""More than the 64 programs that a cgroup may have (BPF_CGROUP_MAX_PROGS)."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guest]:
    """Two CPUs; two disks whose first words are their names, and a source of random bytes."""
    place = tmp_path_factory.mktemp("disks")
    spec = VmSpec(name="grants", image=f"{image}/", transport="serial", ports=6, cpus=2)
    async with booted(spec) as guest:
        for name in ("one", "two"):
            await guest.host.Plug(disk_plug(name, disk(place, name)))
        # /dev/hwrng is a generator's node while it is the source.
        source = devices.Device(rng=devices.RngDevice(make_current=True))
        await guest.host.Plug(plug("rng", source, rng=host.Rng()))
        yield guest


@pytest_asyncio.fixture(loop_scope="session")
async def box(machine: Guest) -> AsyncIterator[str]:
    """A container without devices."""
    name = await machine.start(IDLE)
    yield name
    await machine.remove(name)


def grant(device: str, path: str = "", permissions: str = "") -> containers.DeviceGrant:
    return containers.DeviceGrant(device_id=device, container_path=path, permissions=permissions)


async def update(
    guest: Guest, name: str, grants: Iterable[containers.DeviceGrant] | None = None, **more: Any
) -> containers.ContainerStatus:
    if grants is not None:
        more["devices"] = containers.DeviceGrants(grants=grants)
    request = containers.UpdateContainerRequest(id=name, **more)
    return await guest.when_serving(lambda: guest.containers.Update(request))


async def memory(guest: Guest, name: str, limit: int) -> None:
    await update(guest, name, resources=json.dumps({"memory": {"limit": limit}}).encode())


async def names(guest: Guest, box: str, *paths: str) -> list[str]:
    """What each path's first word is, or why it can't be read."""
    script = "; ".join(f"head -c 3 {path} 2>&1 | tr '\\0' ' '; echo" for path in paths)
    lines = (await done(guest, box, script)).text.splitlines()
    return [line.rpartition(": ")[2].strip() for line in lines if line]


async def node_of(guest: Guest, device: str) -> devices.DeviceNode:
    listed = await guest.devices.List(devices.ListDevicesRequest())
    return next(each.nodes[0] for each in listed.devices if each.device.id == device)


async def users(guest: Guest, device: str) -> list[str]:
    listed = await guest.devices.List(devices.ListDevicesRequest())
    return next(list(each.users) for each in listed.devices if each.device.id == device)


NOT_THERE, FORBIDDEN = "No such file or directory", "Operation not permitted"


async def test_devices_at_the_creation_and_later(machine: Guest) -> None:
    """Each one that came later took the earlier ones away once (case 27)."""
    name = await machine.start(IDLE, devices=(grant("rng", "/dev/random-source"), grant("one")))
    try:
        first = (await node_of(machine, "one")).path
        two = await node_of(machine, "two")
        both = [grant("rng", "/dev/random-source"), grant("one")]
        random = "head -c 8 /dev/random-source | wc -c"
        for _ in range(2):
            assert await names(machine, name, first, two.path) == ["one", NOT_THERE]
            await update(machine, name, [*both, grant("two")])
            assert await names(machine, name, first, two.path) == ["one", "two"]
            assert (await done(machine, name, random)).text == "8\n"
            status = await update(machine, name, both)
            assert [each.device_id for each in status.devices] == ["rng", "one"]
            # The node is gone, and one that the container makes itself is of no use.
            made = f"rm -f /x; mknod /x b {two.major} {two.minor}"
            assert (await done(machine, name, made)).code == 0
            assert await names(machine, name, two.path, "/x") == [NOT_THERE, FORBIDDEN]
            assert (await done(machine, name, random)).text == "8\n"
    finally:
        await machine.remove(name)


async def test_permissions_are_as_asked(machine: Guest, box: str) -> None:
    status = await update(machine, box, [grant("one", "/dev/data/one", "r")])
    assert [each.permissions for each in status.devices] == ["r"]
    assert await names(machine, box, "/dev/data/one") == ["one"]
    write = "printf one >/dev/data/one"
    finished = await done(machine, box, write)
    assert FORBIDDEN.encode() in finished.stderr
    await update(machine, box, [grant("one", "/dev/data/one", "rw")])
    assert (await done(machine, box, write)).code == 0
    # Made by the agent for the process's user, as the runtime would have.
    stat = await done(machine, box, "stat -c '%a %u %g' /dev/data/one")
    assert stat.text == "660 0 0\n"


async def test_a_node_belongs_to_the_containers_user(machine: Guest) -> None:
    process = {"user": {"uid": 1000, "gid": 50}}
    name = await machine.start(IDLE, process=process)
    await update(machine, name, [grant("one", "/dev/mine")])
    stat = await done(machine, name, "stat -c '%a %u %g' /dev/mine && head -c 3 /dev/mine")
    assert stat.text == "660 1000 50\none"
    await machine.remove(name)


async def test_paths_of_two_devices_are_swapped(machine: Guest) -> None:
    """At the creation against the numbers of the host, which are each other's here (case 21),
    and later."""
    one, two = await node_of(machine, "one"), await node_of(machine, "two")

    def entry(path: str, node: devices.DeviceNode) -> dict[str, Any]:
        return {"path": path, "type": "b", "major": node.major, "minor": node.minor}

    def rule(node: devices.DeviceNode, access: str) -> dict[str, Any]:
        numbers = {"type": "b", "major": node.major, "minor": node.minor}
        return {"allow": True, **numbers, "access": access}

    linux = {
        "devices": [entry("/dev/a", two), entry("/dev/b", one)],
        "resources": {"devices": [{"allow": False}, rule(two, "r"), rule(one, "rw")]},
    }
    a_b = (grant("one", "/dev/a"), grant("two", "/dev/b"))
    name = await machine.start(IDLE, linux=linux, devices=a_b)
    assert await names(machine, name, "/dev/a", "/dev/b") == ["one", "two"]
    finished = await done(machine, name, "printf one >/dev/a; printf two >/dev/b && echo b")
    assert (finished.text, finished.stderr.count(FORBIDDEN.encode())) == ("b\n", 1)
    await update(machine, name, [grant("two", "/dev/a"), grant("one", "/dev/b")])
    assert await names(machine, name, "/dev/a", "/dev/b") == ["two", "one"]
    await machine.remove(name)


async def test_grants_outlive_the_agent(machine: Guest, box: str) -> None:
    """They are there, they are kept by an update of something else, and can be revoked."""
    await update(machine, box, [grant("one", "/dev/a"), grant("two", "/dev/b", "r")])
    await kill_agent(machine)
    listed = await machine.containers.List(containers.ListContainersRequest())
    status = next(each for each in listed.containers if each.id == box)
    assert list(status.devices) == [grant("one", "/dev/a", "rwm"), grant("two", "/dev/b", "r")]
    assert await names(machine, box, "/dev/a", "/dev/b") == ["one", "two"]
    await memory(machine, box, 200 << 20)
    assert await names(machine, box, "/dev/a", "/dev/b") == ["one", "two"]
    limit = f"/guest/sys/fs/cgroup/pods/default/{box}/memory.max"
    assert (await machine.probe(f"cat {limit}")).strip() == str(200 << 20)
    assert await refused(machine.host.Unplug(host.UnplugRequest(id="two"))) == STILL_IN_USE
    await update(machine, box, [grant("one", "/dev/a")])
    assert await names(machine, box, "/dev/a", "/dev/b") == ["one", NOT_THERE]


async def test_an_agent_that_dies_in_the_middle(machine: Guest, box: str) -> None:
    """All of the update or nothing of it: what the next agent says is what holds."""
    old, new = [grant("one", "/dev/a")], [grant("one", "/dev/a"), grant("two", "/dev/b")]
    for _ in range(20 if SOAK else 2):
        await update(machine, box, old)
        before = await machine.describe()
        killer = await machine.start(f"echo up; read line; kill -9 {before.agent_pid}", **PROBE)
        attachment = await attached(machine, ref(killer))
        await attachment.until_text(b"up\n")
        request = containers.UpdateContainerRequest(
            id=box, devices=containers.DeviceGrants(grants=new)
        )
        call = asyncio.ensure_future(machine.containers.Update(request))
        await attachment.send(b"go\n")
        answered = not isinstance(
            (await asyncio.gather(call, return_exceptions=True))[0], Exception
        )
        await machine.wait(killer)
        await machine.remove(killer)
        status = await update(machine, box)
        has = [each.device_id for each in status.devices]
        assert has == ["one", "two"] or (has == ["one"] and not answered)
        there = ["one", "two" if "two" in has else NOT_THERE]
        assert await names(machine, box, "/dev/a", "/dev/b") == there
        assert (box in "".join(await users(machine, "two"))) is ("two" in has)
        await update(machine, box, new)
        assert await names(machine, box, "/dev/a", "/dev/b") == ["one", "two"]


PROGRAMS = """
import ctypes, os, struct, sys
group = os.open(sys.argv[1], os.O_RDONLY)
number = {"x86_64": 321}.get(os.uname().machine, 280)
attr = ctypes.create_string_buffer(struct.pack("=IIIIQI", group, 6, 0, 0, 0, 0), 64)
if ctypes.CDLL(None, use_errno=True).syscall(number, 16, attr, 64) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
print(struct.unpack_from("=I", attr, 24)[0])
"""
"""BPF_PROG_QUERY of the programs for devices (BPF_CGROUP_DEVICE): how many there are."""


async def programs(guest: Guest, name: str) -> int:
    group = f"/sys/fs/cgroup/pods/default/{name}"
    script = f"chroot /guest /usr/bin/python3 -IS -c '{PROGRAMS}' {group}"
    return int(await guest.probe(script))


@pytest.mark.timeout(600)
async def test_a_hundred_updates_under_use(machine: Guest) -> None:
    """Without one refusal meanwhile, and with one program in the end as in the beginning:
    they were stacked once, up to the 64 that the kernel takes (case 26)."""
    script = """
    n=0; bad=0; trap 'echo $n $bad; exit' USR1; echo up
    while :; do
      { : >/dev/null; } 2>/dev/null || bad=$((bad+1))
      head -c 1 /dev/a >/dev/null 2>&1 || bad=$((bad+1))
      n=$((n+1))
    done
    """
    name = await machine.start(script, devices=(grant("one", "/dev/a"),))
    attachment = await attached(machine, ref(name))
    await attachment.until_text(b"up\n")
    assert await programs(machine, name) == 1
    for number in range(UPDATES):
        await memory(machine, name, (200 + number) << 20)
    assert await programs(machine, name) == 1
    await signal(machine, ref(name), 10)
    rounds, bad = (await attachment.to_the_end()).text.split()[1:]
    assert int(rounds) > 10
    assert int(bad) == 0
    await machine.remove(name)


async def test_a_granted_device_is_not_unplugged(machine: Guest, box: str) -> None:
    prepare = devices.DetachDeviceRequest(id="two", phase=devices.DETACH_PHASE_PREPARE)
    await update(machine, box, [grant("two")])
    assert await users(machine, "two") == [f"container {box}"]
    assert await refused(machine.host.Unplug(host.UnplugRequest(id="two"))) == STILL_IN_USE
    assert await refused(machine.devices.Detach(prepare)) == STILL_IN_USE
    await update(machine, box, [])
    assert await users(machine, "two") == []
    await machine.devices.Detach(prepare)
    assert await refused(update(machine, box, [grant("one"), grant("two")])) == WRONG_STATE
    assert await users(machine, "one") == []
    prepare.phase = devices.DETACH_PHASE_CANCEL
    await machine.devices.Detach(prepare)


async def test_two_containers_share_a_device(machine: Guest, box: str) -> None:
    """Revoking it in one leaves it to the other, and it is held until both have let go."""
    other = await machine.start(IDLE, devices=(grant("one", "/dev/x"),))
    await update(machine, box, [grant("one", "/dev/x")])
    assert await users(machine, "one") == sorted(f"container {each}" for each in (box, other))
    await update(machine, box, [])
    assert await names(machine, box, "/dev/x") == [NOT_THERE]
    assert await names(machine, other, "/dev/x") == ["one"]
    await machine.remove(other)
    assert await users(machine, "one") == []


async def test_an_open_descriptor_outlives_the_grant(machine: Guest) -> None:
    script = "exec 3</dev/x; echo up; read line; head -c 3 <&3; head -c 3 /dev/x"
    name = await machine.start(script, devices=(grant("one", "/dev/x"),))
    attachment = await attached(machine, ref(name))
    await attachment.until_text(b"up\n")
    await update(machine, name, [])
    await attachment.send(b"go\n")
    finished = await attachment.to_the_end()
    assert finished.stdout == b"up\none"
    await machine.remove(name)


async def test_entries_without_a_counterpart_are_left_out(machine: Guest) -> None:
    """A VFIO group of the host, for a device that the guest's own driver has (case 32)."""
    numbers = {"type": "c", "major": 241, "minor": 0}
    linux = {
        "devices": [{"path": "/dev/vfio/45", **numbers}],
        "resources": {"devices": [{"allow": False}, {"allow": True, **numbers, "access": "rwm"}]},
    }
    finished = await machine.run(
        "ls /dev/vfio; mknod /x c 241 0; cat /x; echo fine >/dev/null && echo up", linux=linux
    )
    assert finished.text == "up\n"
    assert FORBIDDEN.encode() in finished.stderr


async def test_numbers_alone_do_not_make_an_entry_the_guests(machine: Guest) -> None:
    """The host's disk has the numbers of another one here, even its path; /dev/kmsg is
    the same everywhere (c 1:11, admin-guide/devices.txt), but not by another name."""
    one = await node_of(machine, "one")
    disk = {"type": "b", "major": one.major, "minor": one.minor}
    log = {"type": "c", "major": 1, "minor": 11}
    entries = [(one.path, disk), ("/dev/disk", disk), ("/dev/kmsg", log), ("/dev/other", log)]
    allowed = [{"allow": True, **numbers, "access": "rwm"} for numbers in (disk, log)]
    linux = {
        "devices": [{"path": path, **numbers} for path, numbers in entries],
        "resources": {"devices": [{"allow": False}, *allowed]},
    }
    paths = " ".join(path for path, _ in entries)
    script = f"ls {paths} 2>/dev/null; mknod /x b {one.major} {one.minor}; cat /x"
    finished = await machine.run(script, linux=linux)
    assert finished.text == "/dev/kmsg\n"
    assert FORBIDDEN.encode() in finished.stderr


# Devices that go by themselves.


async def revoked(guest: Guest, name: str) -> str:
    """What was taken from the container first without being asked to."""

    async def watch() -> str:
        async for event in guest.sandbox.Watch(sandbox.WatchRequest(after_sequence=0)):
            if event.subject == name and "revoked" in event.details:
                return event.details["revoked"]
        raise AssertionError("the stream of events ended")

    return await guest.when_serving(watch)


async def taken_away(guest: Guest, device: str, *, unseen: bool) -> None:
    """Its function leaves the guest without a word to the agent, which may be away."""
    listed = await guest.devices.List(devices.ListDevicesRequest())
    bdf = next(each.pci_bdf for each in listed.devices if each.device.id == device)
    remove = f"echo 1 >/sys/bus/pci/devices/{bdf}/remove"
    if unseen:
        agent = (await guest.describe()).agent_pid
        remove = f"kill -STOP {agent}; {remove}; kill -9 {agent}"
    name = await guest.start(remove, **PROBE)
    assert (await guest.wait(name)).code == 0
    await guest.remove(name)


@pytest.mark.parametrize("unseen", [False, True], ids=["at work", "away"])
async def test_a_disk_that_is_gone_leaves_no_right_to_the_next(
    machine: Guest, box: str, tmp_path: Path, unseen: bool
) -> None:
    """The kernel gives the next disk the same numbers, and it may be somebody else's."""
    await machine.host.Plug(disk_plug("mine", disk(tmp_path, "own")))
    mine = await node_of(machine, "mine")
    other = await machine.start(IDLE, devices=(grant("mine", "/dev/x"),))
    await update(machine, box, [grant("one", "/dev/a"), grant("mine", "/dev/x")])
    made = f"mknod /x b {mine.major} {mine.minor}"
    for name in (box, other):
        assert (await done(machine, name, made)).code == 0
        assert await names(machine, name, "/dev/x", "/x") == ["own", "own"]
    await taken_away(machine, "mine", unseen=unseen)
    for name in (box, other):
        assert await revoked(machine, name) == "mine"
    await machine.host.Plug(disk_plug("yours", disk(tmp_path, "new")))
    yours = await node_of(machine, "yours")
    assert (yours.path, yours.major, yours.minor) == (mine.path, mine.major, mine.minor)
    for name in (box, other):
        assert await names(machine, name, "/dev/x", "/x") == [NOT_THERE, FORBIDDEN]
    status = await update(machine, box)
    assert [each.device_id for each in status.devices] == ["one"]
    assert await names(machine, box, "/dev/a") == ["one"]
    # Nobody holds it any more.
    for device in ("yours", "mine"):
        await machine.host.Unplug(host.UnplugRequest(id=device))
    await machine.remove(other)


# What can't be done, and leaves everything as it was.


@pytest_asyncio.fixture(loop_scope="session")
async def observer(machine: Guest) -> AsyncIterator[Observer]:
    async with observing(machine) as running:
        yield running


async def test_a_path_that_is_taken_takes_all_back(
    machine: Guest, observer: Observer, box: str
) -> None:
    await update(machine, box, [grant("one", "/dev/a")])
    two = await node_of(machine, "two")
    made = f"mknod /x b {two.major} {two.minor}; echo mine >/dev/file"
    assert (await done(machine, box, made)).code == 0
    before = await observer.census()
    with pytest.raises(aio.AioRpcError) as caught:
        await update(machine, box, [grant("two", "/dev/file")], resources=b'{"pids":{"limit":9}}')
    assert reason(caught.value) == "KERNEL_REFUSED"
    assert "/dev/file" in (caught.value.details() or "")
    await observer.returns_to(before)
    assert await names(machine, box, "/dev/a", "/x", "/dev/file") == ["one", FORBIDDEN, "min"]
    assert await users(machine, "two") == []
    pids = await machine.probe(f"cat /guest/sys/fs/cgroup/pods/default/{box}/pids.max")
    assert pids.strip() == "max"


async def test_a_limit_that_is_refused_takes_all_back(machine: Guest, box: str) -> None:
    """The runtime has set the rules and the memory by the time that it is refused."""
    bad = json.dumps({"memory": {"limit": 99 << 20}, "unified": {"memory.high": "many"}})
    with pytest.raises(aio.AioRpcError) as caught:
        await update(machine, box, [grant("two", "/dev/b")], resources=bad.encode())
    assert reason(caught.value) == "RUNTIME_REFUSED"
    limit = await machine.probe(f"cat /guest/sys/fs/cgroup/pods/default/{box}/memory.max")
    assert limit.strip() == "max"
    assert await names(machine, box, "/dev/b") == [NOT_THERE]
    assert await users(machine, "two") == []


async def test_links_do_not_lead_out_of_the_container(
    machine: Guest, observer: Observer, box: str
) -> None:
    look = "find /guest/run /guest/dev /guest/tmp -xdev | grep -v innkeeper/"
    links = "ln -s ../../../../run /dev/up; ln -s /proc/1/root/run /dev/jump"
    assert (await done(machine, box, links)).code == 0
    before = await observer.ask(look)
    await update(machine, box, [grant("one", "/dev/up/x")])
    assert await names(machine, box, "/run/x") == ["one"]
    with pytest.raises(aio.AioRpcError):
        await update(machine, box, [grant("one", "/dev/jump/x")])
    assert await names(machine, box, "/run/x") == ["one"]
    assert await observer.ask(look) == before


async def test_a_container_that_has_ended_is_not_updated(machine: Guest) -> None:
    name = await machine.start("exit 3", devices=(grant("one"),))
    await machine.wait(name)
    assert await refused(update(machine, name, [])) == WRONG_STATE
    assert await users(machine, "one") == [f"container {name}"]
    await machine.remove(name)
    assert await users(machine, "one") == []


async def test_one_that_was_not_started_is_updated(machine: Guest) -> None:
    await machine.containers.Create(create_request("early", "head -c 3 /dev/a"))
    await update(machine, "early", [grant("one", "/dev/a")])
    await machine.containers.Start(containers.StartContainerRequest(id="early"))
    assert (await machine.follow(ref("early"))).text == "one"
    await machine.remove("early")


def with_own_users(*grants: containers.DeviceGrant) -> containers.CreateContainerRequest:
    mapping = [{"containerID": 0, "hostID": 100_000, "size": 65_536}]
    kinds = ("user", "mount", "pid", "ipc", "uts", "cgroup")
    linux = {
        "namespaces": [{"type": kind} for kind in kinds],
        "uidMappings": mapping,
        "gidMappings": mapping,
    }
    request = create_request("users", IDLE, linux=linux, devices=grants)
    # The layer lies where only the guest's own root may go.
    request.writable_layer = False
    return request


async def test_in_a_user_namespace_a_device_that_is_gone_leaves_no_right(
    machine: Guest, tmp_path: Path
) -> None:
    """Its node is a mount in it, made by the runtime, and goes with what it covers."""
    await machine.host.Plug(disk_plug("mine", disk(tmp_path, "own")))
    mine = await node_of(machine, "mine")
    await machine.containers.Create(with_own_users(grant("mine", "/dev/x")))
    await machine.containers.Start(containers.StartContainerRequest(id="users"))
    assert await names(machine, "users", "/dev/x") == ["own"]
    await taken_away(machine, "mine", unseen=False)
    assert await revoked(machine, "users") == "mine"
    await machine.host.Plug(disk_plug("yours", disk(tmp_path, "new")))
    yours = await node_of(machine, "yours")
    assert (yours.path, yours.major, yours.minor) == (mine.path, mine.major, mine.minor)
    assert await names(machine, "users", "/dev/x") == [NOT_THERE]
    for device in ("yours", "mine"):
        await machine.host.Unplug(host.UnplugRequest(id=device))
    await machine.remove("users")


async def test_in_a_user_namespace_nodes_do_not_come(machine: Guest) -> None:
    await machine.containers.Create(with_own_users())
    assert await refused(update(machine, "users", [grant("one")])) == WRONG_STATE
    assert await users(machine, "one") == []
    await memory(machine, "users", 100 << 20)
    await machine.remove("users")


# Exclusive CPUs.


async def test_a_cpu_for_itself(machine: Guest, box: str) -> None:
    """The container runs on it and nobody else does, through updates and the agent's death."""
    other = await machine.start(IDLE)
    try:
        allowed = "grep Cpus_allowed_list /proc/self/status | cut -f 2"
        status = await update(machine, box, exclusive_cpus=1)
        (cpu,) = status.exclusive_cpus
        everybody = str(1 - cpu)
        assert (await done(machine, box, allowed)).text.strip() == str(cpu)
        assert (await done(machine, other, allowed)).text.strip() == everybody
        exhausted = (grpc.StatusCode.RESOURCE_EXHAUSTED, "CPUS_EXHAUSTED")
        assert await refused(update(machine, other, exclusive_cpus=1)) == exhausted
        await update(machine, box, resources=b'{"cpu": {"cpus": "0-1", "shares": 100}}')
        assert (await done(machine, box, allowed)).text.strip() == str(cpu)
        await kill_agent(machine)
        status = await update(machine, box)
        assert list(status.exclusive_cpus) == [cpu]
        assert (await done(machine, box, allowed)).text.strip() == str(cpu)
        await update(machine, box, exclusive_cpus=0)
        assert (await done(machine, other, allowed)).text.strip() == "0-1"
    finally:
        await machine.remove(other)


async def test_a_cpu_from_the_creation_on(machine: Guest) -> None:
    request = create_request("alone", "grep Cpus_allowed_list /proc/self/status")
    request.exclusive_cpus = 1
    status = await machine.containers.Create(request)
    (cpu,) = status.exclusive_cpus
    await machine.containers.Start(containers.StartContainerRequest(id="alone"))
    assert (await machine.follow(ref("alone"))).text.split() == ["Cpus_allowed_list:", str(cpu)]
    await machine.remove("alone")
