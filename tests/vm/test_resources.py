"""CPUs and memory plugged into a running guest, and CPUs that a container has for itself.

The kernel is told to leave hot-added memory offline (`memhp_default_state=offline`), so
whatever comes online does so by the agent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from agent.core.cpus import parse_cpus, spell_cpus
from innkeeper.shim.client import VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import sandbox_pb2 as sandbox
from tests.vm.guest import Guest, booted, create_request, refused

pytestmark = [pytest.mark.vm, pytest.mark.devices]

MIB = 1 << 20
MORE = 256 * MIB
PATIENCE = 60.0
_NUMBERS = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def roomy(image: Path) -> AsyncIterator[Guest]:
    """A VM with four CPUs and 512 MiB that can grow. Two of its CPUs are there but
    offline after the boot, as if they had just been plugged."""
    spec = VmSpec(
        name="resources",
        image=f"{image}/",
        transport="serial",
        cpus=4,
        max_cpus=5,
        max_memory=2048 * MIB,
        ports=2,
        cmdline=("memhp_default_state=offline", "maxcpus=2"),
    )
    async with booted(spec) as guest:
        told = await online(guest)
        assert (list(told.cpus_online), list(told.cpus_added)) == ([0, 1, 2, 3], [2, 3])
        yield guest


async def online(guest: Guest, **asked: Any) -> sandbox.OnlineResourcesResponse:
    request = sandbox.OnlineResourcesRequest(**{"timeout_seconds": PATIENCE, **asked})
    return await guest.sandbox.OnlineResources(request, timeout=2 * PATIENCE)


async def look(guest: Guest) -> sandbox.OnlineResourcesResponse:
    """What is online; so much is in any case."""
    return await online(guest, cpus=1, memory=1)


def plug(name: str, hardware: host.Hardware) -> host.PlugRequest:
    return host.PlugRequest(functions=[host.PlugFunction(id=name, hardware=hardware)])


async def numbers(guest: Guest, script: str) -> list[int]:
    return [int(word) for word in (await guest.probe(script)).split()]


async def memory(guest: Guest) -> tuple[int, int]:
    """All of the guest's memory, and how much of it containers may have, in bytes."""
    script = "grep -o '[0-9]*' /proc/meminfo | head -n 1; cat /sys/fs/cgroup/pods/memory.max"
    total, bound = await numbers(guest, script)
    return total << 10, bound


async def test_a_dimm_comes_online_while_somebody_waits_and_goes_again(roomy: Guest) -> None:
    before, had = await look(roomy), await memory(roomy)
    goal = before.memory_online + MORE
    waiting = asyncio.ensure_future(online(roomy, memory=goal, movable=True))
    dimm = host.Hardware(memory=host.Memory(size=MORE))
    plugged = await roomy.host.Plug(plug("dimm", dimm))
    told = await waiting
    assert plugged.online.memory_online == told.memory_online == goal
    # One of the two calls brought each block online, and says so.
    blocks = sorted([*told.blocks_added, *plugged.online.blocks_added])
    assert len(blocks) == len(set(blocks)) == MORE // told.block_bytes
    has = await memory(roomy)
    # Containers get all of it. A little is the kernel's, for its own pages' descriptions.
    assert has[1] - had[1] == has[0] - had[0] > MORE * 9 // 10

    back = await online(roomy, memory=before.memory_online, allow_offline=True)
    assert (sorted(back.blocks_removed), list(back.refused)) == (blocks, [])
    assert await memory(roomy) == had
    await roomy.host.Unplug(host.UnplugRequest(id="dimm"))
    assert (await look(roomy)).memory_online == before.memory_online


async def test_a_dimm_that_is_online_goes_by_its_ejection(roomy: Guest) -> None:
    """The kernel takes its blocks offline itself when ACPI asks for it."""
    before = (await look(roomy)).memory_online
    dimm = host.Hardware(memory=host.Memory(size=MORE))
    await roomy.host.Plug(plug("dimm", dimm))
    assert (await look(roomy)).memory_online == before + MORE
    await roomy.host.Unplug(host.UnplugRequest(id="dimm"))
    assert (await look(roomy)).memory_online == before


async def test_what_is_not_plugged_is_told_at_the_deadline(roomy: Guest) -> None:
    before = (await look(roomy)).memory_online
    call = online(roomy, memory=before + MORE, timeout_seconds=0.5)
    assert await refused(call) == (grpc.StatusCode.DEADLINE_EXCEEDED, "RESOURCES_NOT_ONLINE")
    assert await refused(online(roomy, cpus=64)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "RESOURCES_NOT_ONLINE",
    )


async def test_cpus_go_offline_and_come_back(roomy: Guest) -> None:
    told = await online(roomy, cpus=1, allow_offline=True)
    assert (list(told.cpus_online), list(told.cpus_removed)) == ([0], [1, 2, 3])
    assert await numbers(roomy, "nproc") == [1]
    told = await online(roomy, more_cpus=1)
    assert list(told.cpus_added) == [1]
    told = await online(roomy)
    assert (list(told.cpus_online), list(told.cpus_added)) == ([0, 1, 2, 3], [2, 3])
    assert await numbers(roomy, "nproc") == [4]


async def test_virtio_mem_comes_online(roomy: Guest) -> None:
    """Its driver, a module, adds the blocks by itself, one after the other."""
    before = (await look(roomy)).memory_online
    more = host.Memory(size=MORE, model=host.MEMORY_MODEL_VIRTIO)
    plugged = await roomy.host.Plug(plug("growing", host.Hardware(memory=more)))
    assert plugged.online.memory_online == before + MORE
    code, why = await refused(roomy.host.Unplug(host.UnplugRequest(id="growing")))
    assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_REMOVABLE")


async def allowed(guest: Guest, name: str) -> str:
    """The CPUs on which the first process of a container may run."""
    script = f"cat /sys/fs/cgroup/pods/*/{name}/cgroup.procs | head -n 1"
    (pid,) = await numbers(guest, script)
    return (await guest.probe(f"sed -n 's/^Cpus_allowed_list:.//p' /proc/{pid}/status")).strip()


async def everybody_else(guest: Guest, name: str) -> str:
    """All CPUs on which any process outside a container and the kernel's own may run."""
    script = (
        f"mine=$(cat /sys/fs/cgroup/pods/*/{name}/cgroup.procs); "
        "for pid in $(cat /sys/fs/cgroup/init/cgroup.procs /sys/fs/cgroup/agent/cgroup.procs "
        "/sys/fs/cgroup/pods/*/*/cgroup.procs); do "
        'case " $mine " in *"$pid"*) ;; *) '
        "sed -n 's/^Cpus_allowed_list:.//p' /proc/$pid/status 2>/dev/null ;; esac; done; true"
    )
    lists = (await guest.probe(script)).split()
    assert len(lists) >= 4
    return spell_cpus(frozenset[int]().union(*(parse_cpus(each) for each in lists)))


async def exclusive(guest: Guest, name: str) -> list[int]:
    found = await guest.containers.List(containers.ListContainersRequest())
    return next(list(each.exclusive_cpus) for each in found.containers if each.id == name)


async def until_told(guest: Guest, name: str, *cpus: str) -> None:
    """Until an event says that a container has these CPUs, or those."""
    async with asyncio.timeout(PATIENCE):
        async for event in guest.sandbox.Watch(sandbox.WatchRequest()):
            if event.subject == name and event.details.get("exclusive_cpus") in cpus:
                assert event.kind == sandbox.EVENT_KIND_RESOURCES_CHANGED
                return


@pytest_asyncio.fixture(loop_scope="session")
async def alone(roomy: Guest) -> AsyncIterator[str]:
    """A container with a CPU for itself, beside one without. (Its own name for each
    test, as events of earlier tests are still told.)"""
    name = f"alone{next(_NUMBERS)}"
    for each, count in ((name, 1), ("shared", 0)):
        request = create_request(each, "sleep 3000")
        request.exclusive_cpus = count
        await roomy.containers.Create(request)
        await roomy.containers.Start(containers.StartContainerRequest(id=each))
    yield name
    for each in (name, "shared"):
        await roomy.remove(each)


async def update(guest: Guest, name: str, **change: Any) -> list[int]:
    request = containers.UpdateContainerRequest(id=name, **change)
    return list((await guest.containers.Update(request)).exclusive_cpus)


async def test_a_container_has_a_cpu_for_itself(roomy: Guest, alone: str) -> None:
    assert await exclusive(roomy, alone) == [3]
    assert await allowed(roomy, alone) == "3"
    assert await allowed(roomy, "shared") == "0-2"
    assert await everybody_else(roomy, alone) == "0-2"


async def test_one_cpu_stays_for_everybody(roomy: Guest, alone: str) -> None:
    greedy = create_request("greedy", "exit 0")
    greedy.exclusive_cpus = 3
    exhausted = (grpc.StatusCode.RESOURCE_EXHAUSTED, "CPUS_EXHAUSTED")
    assert await refused(roomy.containers.Create(greedy)) == exhausted
    assert await refused(update(roomy, alone, exclusive_cpus=4)) == exhausted
    assert await everybody_else(roomy, alone) == "0-2"


async def test_more_and_fewer_while_it_runs(roomy: Guest, alone: str) -> None:
    assert await update(roomy, alone, exclusive_cpus=3) == [1, 2, 3]
    assert await everybody_else(roomy, alone) == "0"
    # What the runtime writes for other limits leaves it alone.
    assert await update(roomy, alone, resources=b'{"cpu": {"shares": 512}}') == [1, 2, 3]
    assert await allowed(roomy, alone) == "1-3"
    assert await update(roomy, alone, exclusive_cpus=0) == []
    assert await everybody_else(roomy, alone) == "0-3"


async def test_an_exclusive_cpu_does_not_go_offline_on_request(roomy: Guest, alone: str) -> None:
    told = await online(roomy, cpus=2, allow_offline=True)
    assert list(told.refused) == ["cpu3 offline: a container has it for itself alone"]
    assert list(told.cpus_online) == [0, 1, 3]
    assert list((await online(roomy)).cpus_added) == [2]


async def test_another_cpu_takes_the_place_of_one_that_went(roomy: Guest, alone: str) -> None:
    """Somebody in the guest takes CPUs offline without asking the agent. (A partition has
    two here: its only one the kernel may refuse to take, with EBUSY.)"""
    assert await update(roomy, alone, exclusive_cpus=2) == [2, 3]
    await roomy.probe("echo 0 > /sys/devices/system/cpu/cpu3/online")
    await until_told(roomy, alone, "1-2")
    assert (await allowed(roomy, alone), await everybody_else(roomy, alone)) == ("1-2", "0")
    # With nothing left to take its place it is short, until one comes.
    await roomy.probe("echo 0 > /sys/devices/system/cpu/cpu2/online")
    await until_told(roomy, alone, "1")
    told = await online(roomy)
    assert list(told.cpus_added) == [2, 3]
    await until_told(roomy, alone, "1,3", "1-2")
    assert len(await exclusive(roomy, alone)) == 2


async def test_a_new_agent_takes_exclusive_cpus_over(roomy: Guest, alone: str) -> None:
    before = await roomy.describe()
    await roomy.probe(f"kill -9 {before.agent_pid}")
    assert (await roomy.describe()).agent_pid != before.agent_pid
    assert await exclusive(roomy, alone) == [3]
    assert await everybody_else(roomy, alone) == "0-2"
    told = await online(roomy, cpus=3, allow_offline=True)
    assert list(told.refused) == ["cpu3 offline: a container has it for itself alone"]


async def test_a_cpu_is_plugged_and_goes_where_qemu_lets_it(roomy: Guest) -> None:
    """QEMU 7.2 does not survive the unplug of an emulated one: it is refused by name.

    The last test: the CPU stays then.
    """
    before = list((await look(roomy)).cpus_online)
    cpus = host.Hardware(cpus=host.Cpus(count=1))
    plugged = await roomy.host.Plug(plug("cpus", cpus))
    assert list(plugged.online.cpus_added) == [4]
    assert await numbers(roomy, "nproc") == [len(before) + 1]
    unplug = host.UnplugRequest(id="cpus")
    if (await roomy.host.Describe(host.DescribeVmRequest())).accelerator == "tcg":
        assert (await refused(roomy.host.Unplug(unplug)))[1] == "NOT_REMOVABLE"
    else:
        await roomy.host.Unplug(unplug)
        assert list((await look(roomy)).cpus_online) == before
