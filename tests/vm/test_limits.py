"""Limits in the guest's own cgroup v2: what is named changes, and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import types_pb2 as types
from tests.vm.attachment import Attachment
from tests.vm.guest import Guest, refused
from tests.vm.observer import Observer, observing

pytestmark = [pytest.mark.vm, pytest.mark.containers]

MIB = 1 << 20
FILES = (
    *("cpu.max", "cpu.max.burst", "cpu.weight", "memory.max", "memory.swap.max", "memory.low"),
    *("memory.high", "pids.max", "cpuset.cpus"),
)
LIMITED: dict[str, Any] = {
    "cpu": {"quota": 20_000, "period": 50_000, "shares": 2048},
    "memory": {"limit": 64 * MIB, "swap": 96 * MIB, "reservation": 16 * MIB},
    "pids": {"limit": 100},
    "unified": {"memory.high": str(60 * MIB)},
}
AT_FIRST = {
    "cpu.max": "20000 50000",
    "cpu.max.burst": "0",
    "memory.max": str(64 * MIB),
    "memory.swap.max": str(32 * MIB),
    "memory.low": str(16 * MIB),
    "memory.high": str(60 * MIB),
    "pids.max": "100",
    "cpuset.cpus": "",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def observer(guest: Guest) -> AsyncIterator[Observer]:
    async with observing(guest) as running:
        yield running


class Limited:
    """A container with limits, and its files."""

    def __init__(self, guest: Guest, observer: Observer, name: str) -> None:
        self.guest = guest
        self.name = name
        self._observer = observer

    async def files(self, *names: str) -> dict[str, str]:
        listed = await self.guest.containers.List(containers.ListContainersRequest())
        group = next(each.cgroup for each in listed.containers if each.id == self.name)
        wanted = names or FILES
        script = "; ".join(f"cat /sys/fs/cgroup{group}/{name}; echo ." for name in wanted)
        texts = (await self._observer.ask(script)).split(".\n")
        return {name: text.strip() for name, text in zip(wanted, texts, strict=False)}

    async def update(self, resources: dict[str, Any], timeout: float = 0) -> None:
        request = containers.UpdateContainerRequest(
            id=self.name, resources=json.dumps(resources).encode(), timeout_seconds=timeout
        )
        await self.guest.containers.Update(request)


@pytest_asyncio.fixture(loop_scope="session")
async def limited(guest: Guest, observer: Observer) -> AsyncIterator[Limited]:
    name = await guest.start("while :; do sleep 1; done", linux={"resources": LIMITED})
    yield Limited(guest, observer, name)
    await guest.remove(name)


UPDATES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"cpu": {"quota": 30_000}}, {"cpu.max": "30000 50000"}),
    ({"cpu": {"period": 100_000}}, {"cpu.max": "30000 100000"}),
    ({"cpu": {"burst": 5000}}, {"cpu.max.burst": "5000"}),
    ({"cpu": {"quota": 4000, "burst": 2000}}, {"cpu.max": "4000 100000", "cpu.max.burst": "2000"}),
    ({"cpu": {"quota": -1}}, {"cpu.max": "max 100000"}),
    ({"cpu": {"cpus": "0"}}, {"cpuset.cpus": "0"}),
    ({"pids": {"limit": 77}}, {"pids.max": "77"}),
    ({"pids": {"limit": -1}}, {"pids.max": "max"}),
    ({"memory": {"limit": 48 * MIB}}, {"memory.max": str(48 * MIB)}),
    ({"memory": {"swap": 50 * MIB}}, {"memory.swap.max": str(2 * MIB)}),
    ({"memory": {"swap": -1}}, {"memory.swap.max": "max"}),
    ({"memory": {"reservation": 0}}, {"memory.low": "0"}),
    ({"memory": {"limit": "max"}}, {"memory.max": "max"}),
    ({"unified": {"memory.high": "-1"}}, {"memory.high": "max"}),
    ({"unified": {"pids.max": "50"}}, {"pids.max": "50"}),
]


async def test_an_update_changes_what_it_names_and_nothing_else(limited: Limited) -> None:
    """The runtime sets the period to its default when only the quota is named, and so on."""
    expected = await limited.files()
    weight = expected.pop("cpu.weight")
    assert expected == AT_FIRST
    for resources, changes in UPDATES:
        await limited.update(resources)
        expected |= changes
        assert await limited.files() == expected | {"cpu.weight": weight}, resources
    await limited.update({"cpu": {"shares": 1024}})
    assert await limited.files("cpu.weight") != {"cpu.weight": weight}


async def test_no_limit_is_said_in_the_same_words_at_the_creation(
    guest: Guest, observer: Observer
) -> None:
    resources = {
        "cpu": {"quota": -1, "period": 50_000},
        "memory": {"limit": -1, "swap": -1, "reservation": "max"},
        "pids": {"limit": -1},
        "hugepageLimits": [{"pageSize": "2MB", "limit": -1}],
        "unified": {"memory.high": "max"},
    }
    name = await guest.start("exec sleep 300", linux={"resources": resources})
    files = await Limited(guest, observer, name).files(*FILES, "hugetlb.2MB.max")
    assert files["cpu.max"] == "max 50000"
    unlimited = {"memory.max", "memory.swap.max", "memory.high", "pids.max", "hugetlb.2MB.max"}
    assert {files[each] for each in unlimited} == {"max"}
    await guest.remove(name)


async def test_huge_pages_are_limited_and_not(limited: Limited) -> None:
    for limit, text in ((4 * MIB, str(4 * MIB)), (0, "0"), (-1, "max")):
        await limited.update({"hugepageLimits": [{"pageSize": "2MB", "limit": limit}]})
        assert await limited.files("hugetlb.2MB.max") == {"hugetlb.2MB.max": text}


async def test_an_update_that_is_refused_changes_nothing(limited: Limited) -> None:
    before = await limited.files()
    wrong = (grpc.StatusCode.FAILED_PRECONDITION, "RUNTIME_REFUSED")
    # The kernel takes no such list of CPUs, after it took the number of processes.
    resources = {"pids": {"limit": 5}, "cpu": {"cpus": "900", "quota": 5000}}
    assert await refused(limited.update(resources)) == wrong
    assert await limited.files() == before
    bad = (grpc.StatusCode.INVALID_ARGUMENT, "BAD_SPEC")
    assert await refused(limited.update({"memory": {"limit": "much"}})) == bad
    assert await limited.files() == before


NEST = """
set -e
cd /sys/fs/cgroup
mkdir init work
for pid in $(cat cgroup.procs); do echo $pid >init/cgroup.procs || true; done
echo +pids +memory >cgroup.subtree_control
echo 7 >work/pids.max
echo 33554432 >work/memory.max
sleep 300 &
echo $! >work/cgroup.procs
cat /proc/$!/cgroup work/pids.max work/pids.current
if echo 500 >pids.max; then echo own limit changed; fi
if mkdir ../escaped 2>/dev/null && [ -e ../escaped/cgroup.procs ]; then echo escaped; fi
echo done
while :; do sleep 0.2; done
"""


async def test_a_container_has_groups_of_its_own(guest: Guest, observer: Observer) -> None:
    """With a writable mount of its cgroup namespace it makes groups, enables controllers and
    sets limits inside its own, and never outside; an exec still gets in, and all goes."""
    before = await observer.census()
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup"},
    ]
    resources = {"pids": {"limit": 40}}
    name = await guest.start(NEST, mounts=mounts, linux={"resources": resources})
    process = types.ProcessRef(container_id=name)
    attachment = await Attachment(guest.processes, process=process).open()
    await attachment.until_text(b"done\n")
    attachment.cancel()
    said = attachment.data[types.STREAM_KIND_STDOUT].decode().split()
    assert said == ["0::/work", "7", "1", "done"]
    own = await Limited(guest, observer, name).files("pids.max", "work/pids.max")
    assert own == {"pids.max": "40", "work/pids.max": "7"}
    request = processes.ExecRequest(
        container_id=name, exec_id="in", process=b'{"args": ["sh", "-c", "exit 4"], "cwd": "/"}'
    )
    await guest.processes.Exec(request)
    assert (await guest.wait(name, "in")).code == 4
    await guest.remove(name)
    await observer.returns_to(before)
