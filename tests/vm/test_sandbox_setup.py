"""Sandbox.Create and Destroy under a real kernel: what all containers share, and the way back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import network_pb2 as network
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import sandbox_pb2 as sandbox
from innkeeper.v1 import storages_pb2 as storages
from innkeeper.v1 import types_pb2 as types
from tests.vm.guest import PROBE, Finished, Guest, create_request, refused

pytestmark = [pytest.mark.vm, pytest.mark.containers]

HOOKS = "/run/test-hooks"
ALL = ("ipc", "pid", "uts")
REQUEST = sandbox.CreateSandboxRequest(
    id="pod",
    hostname="pod-1",
    dns=network.ApplyDnsRequest(servers=["192.0.2.53"], searches=["pod.example"]),
    modules=[sandbox.KernelModule(name="loop", parameters=["max_loop=3"])],
    sysctls={"vm.max_map_count": "262144", "net.ipv4.ip_forward": "1"},
    shared_namespaces=ALL,
    guest_hooks=HOOKS,
    pressure=[
        types.PressureThreshold(
            resource=types.PRESSURE_RESOURCE_CPU, stall_micros=900_000, window_micros=1_000_000
        )
    ],
)
HOOK = "#!/bin/sh\ncat >> /run/test-hooks/$(basename $0)\necho >> /run/test-hooks/$(basename $0)\n"
AS_THE_GUEST = """chroot /guest /usr/bin/python3 -c "import os, sys
for name in ('cgroup', 'mnt'): os.setns(os.open('/proc/1/ns/' + name, 0))
os.execv('/bin/sh', ['sh', '-c', sys.argv[1]])" """
"""Begins a command that runs in the guest's own mounts, and may go to any cgroup of its."""

KERNEL = """
ls -d /sys/module/loop; cat /sys/module/loop/parameters/max_loop
cat /proc/sys/vm/max_map_count /proc/sys/net/ipv4/ip_forward
nsenter -t 1 -u hostname; cat /guest/etc/resolv.conf; ls /guest/run/innkeeper/sandbox
ls -d /sys/fs/cgroup/pods/pod; grep innkeeper/sandbox /proc/1/mountinfo; :
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def before(guest: Guest) -> str:
    """What a sandbox changes, as it was before; and hooks for it."""
    text = HOOK.replace("\n", "\\n").replace("$", "\\$")
    await guest.probe(
        f"for kind in prestart poststop; do mkdir -p /guest{HOOKS}/$kind;"
        f' printf "{text}" > /guest{HOOKS}/$kind/10-$kind;'
        f" chmod 755 /guest{HOOKS}/$kind/10-$kind; done; echo no > /guest{HOOKS}/prestart/README"
    )
    return await guest.probe(KERNEL)


@pytest_asyncio.fixture(loop_scope="session")
async def pod(guest: Guest, before: str) -> AsyncIterator[str]:
    """The sandbox for one test; its id."""
    await guest.when_serving(lambda: guest.sandbox.Create(REQUEST))
    yield "pod"
    await destroy(guest)


async def destroy(guest: Guest) -> list[str]:
    request = sandbox.DestroySandboxRequest(timeout_seconds=60)
    return list((await guest.when_serving(lambda: guest.sandbox.Destroy(request))).leftovers)


def sharing(
    name: str, script: str, kinds: tuple[str, ...] = ALL, **parts: Any
) -> containers.CreateContainerRequest:
    request = create_request(name, script, **parts)
    request.shared_namespaces.extend(kinds)
    return request


async def started(guest: Guest, request: containers.CreateContainerRequest) -> str:
    await guest.when_serving(lambda: guest.containers.Create(request))
    await guest.containers.Start(containers.StartContainerRequest(id=request.id))
    return request.id


async def done(guest: Guest, request: containers.CreateContainerRequest) -> Finished:
    name = await started(guest, request)
    try:
        return await guest.follow(types.ProcessRef(container_id=name))
    finally:
        await guest.remove(name)


async def added(guest: Guest, name: str, script: str) -> Finished:
    process = {"args": ["sh", "-c", script], "cwd": "/"}
    request = processes.ExecRequest(
        container_id=name, exec_id="added", process=json.dumps(process).encode()
    )
    await guest.processes.Exec(request)
    return await guest.follow(types.ProcessRef(container_id=name, exec_id="added"))


async def kill(guest: Guest, name: str) -> types.ExitStatus:
    ref = types.ProcessRef(container_id=name)
    await guest.processes.Signal(processes.SignalRequest(process=ref, signal=9))
    return await guest.wait(name)


LINKS = "for kind in pid ipc uts; do readlink /proc/self/ns/$kind; done; hostname"


async def test_containers_share_the_sandboxs_namespaces_and_not_the_guests(
    guest: Guest, pod: str
) -> None:
    await started(guest, sharing("a", "echo here > /dev/shm/word; exec sleep 301"))
    seen = await done(guest, sharing("b", f"{LINKS}; cat /dev/shm/word; ps -o pid,args"))
    assert seen.code == 0, seen
    lines = seen.text.splitlines()
    assert lines[:5] == [*(await added(guest, "a", LINKS)).text.splitlines()[:4], "here"]
    assert lines[3] == "pod-1"
    listed = [line.split(maxsplit=1) for line in lines[6:]]
    assert [pid for pid, words in listed if "trap" in words] == ["1"]
    assert [words for _, words in listed if words == "sleep 301"]
    # Of the guest's own processes none is seen.
    assert not any("innkeeper" in words for _, words in listed)
    guests = (await guest.probe(LINKS)).splitlines()
    assert not set(lines[:3]) & set(guests)
    alone = (await guest.run(LINKS)).text.splitlines()
    assert not set(lines[:3]) & set(alone[:3])


async def test_one_kind_can_be_shared_alone_and_the_network_is_the_guests(
    guest: Guest, pod: str
) -> None:
    parts = {"linux": {"namespaces": [{"type": "mount"}, {"type": "network"}, {"type": "pid"}]}}
    script = "readlink /proc/self/ns/net; readlink /proc/self/ns/ipc; echo $$"
    seen = (await done(guest, sharing("n", script, ("network", "ipc"), **parts))).text.splitlines()
    own = (await guest.probe("readlink /proc/1/ns/net; readlink /proc/1/ns/ipc")).splitlines()
    assert seen[0] == own[0]
    assert seen[1] != own[1]
    assert seen[2] == "1"


async def test_what_is_left_behind_is_reaped_by_the_sandboxs_init(guest: Guest, pod: str) -> None:
    """And it takes no signal from inside, whatever a container tries."""
    script = """
        orphan=$(sh -c 'sleep 1 >/dev/null & echo $!')
        grep PPid /proc/$orphan/status
        for i in $(seq 100); do [ -d /proc/$orphan ] || break; sleep 0.1; done
        [ -d /proc/$orphan ] && grep State /proc/$orphan/status
        for number in $(seq 64); do kill -$number 1 2>/dev/null; done
        pid=$(sh -c 'sleep 0 >/dev/null & echo $!')
        for i in $(seq 100); do [ -d /proc/$pid ] || break; sleep 0.1; done
        [ -d /proc/$pid ] || echo reaped
    """
    seen = await done(guest, sharing("o", script))
    assert seen.text.split() == ["PPid:", "1", "reaped"], seen


async def test_the_end_of_one_containers_first_process_leaves_the_other(
    guest: Guest, pod: str
) -> None:
    await started(guest, sharing("a", "exec sleep 300"))
    await started(guest, sharing("b", "exec sleep 300"))
    status = await kill(guest, "a")
    assert (status.code, status.signal) == (137, 9)
    assert (await added(guest, "b", "echo alive")).stdout == b"alive\n"
    await guest.remove("a")
    listed = await guest.containers.List(containers.ListContainersRequest())
    states = {each.id: each.state for each in listed.containers}
    assert states == {"b": containers.CONTAINER_STATE_RUNNING}


async def test_a_new_agent_has_the_same_namespaces_to_share(guest: Guest, pod: str) -> None:
    await started(guest, sharing("a", "exec sleep 300"))
    agent = await guest.describe()
    killer = await guest.start(f"kill -9 {agent.agent_pid}", **PROBE)
    await guest.wait(killer)
    assert (await guest.describe()).agent_pid != agent.agent_pid
    assert (await guest.describe()).sandbox_id == "pod"
    seen = (await done(guest, sharing("b", LINKS))).stdout
    assert seen == (await added(guest, "a", LINKS)).stdout
    await guest.sandbox.Create(REQUEST)


async def test_modules_sysctls_and_dns_are_there(guest: Guest, pod: str) -> None:
    seen = (await guest.probe(KERNEL)).splitlines()
    assert seen[:4] == ["/sys/module/loop", "3", "262144", "1"]
    assert seen[4] == "pod-1"
    assert {"nameserver 192.0.2.53", "search pod.example"} <= set(seen)
    inside = (await guest.run("cat /etc/resolv.conf /etc/hostname")).text.splitlines()
    assert "nameserver 192.0.2.53" in inside
    assert inside[-1] == "pod-1"


async def test_a_containers_own_words_for_what_it_shares_are_refused(
    guest: Guest, pod: str
) -> None:
    for number, linux in enumerate(
        ({"sysctl": {"kernel.shmmax": "4096"}}, {"sysctl": {"net.ipv4.ip_forward": "0"}})
    ):
        request = sharing(f"s{number}", "true", ("ipc", "network"), linux=linux)
        spec = json.loads(request.spec)
        spec["linux"]["namespaces"] = [{"type": "mount"}, {"type": "ipc"}, {"type": "network"}]
        request.spec = json.dumps(spec).encode()
        answer = await refused(guest.containers.Create(request))
        assert answer == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_SPEC")
    request = sharing("h", "true")
    request.spec = json.dumps({**json.loads(request.spec), "hostname": "other"}).encode()
    answer = await refused(guest.containers.Create(request))
    assert answer == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_SPEC")


async def test_what_create_did_not_make_cannot_be_shared(guest: Guest, before: str) -> None:
    request = sandbox.CreateSandboxRequest(id="pod", shared_namespaces=["uts"])
    await guest.sandbox.Create(request)
    answer = await refused(guest.containers.Create(sharing("x", "true", ("pid",))))
    assert answer == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
    assert (await done(guest, sharing("x", "hostname", ("uts",)))).code == 0
    assert await destroy(guest) == []


async def test_the_guests_hooks_run_for_every_container(guest: Guest, pod: str) -> None:
    for name in ("first", "second"):
        await done(guest, create_request(name, "true"))
    told = await guest.probe(
        f"cat /guest{HOOKS}/10-prestart; echo ===; cat /guest{HOOKS}/10-poststop"
    )
    for part in told.split("==="):
        states = [json.loads(line) for line in part.splitlines() if line.startswith("{")]
        assert {"first", "second"} <= {state["id"] for state in states}


async def test_another_create_changes_nothing(guest: Guest, pod: str) -> None:
    other = sandbox.CreateSandboxRequest(id="other", sysctls={"vm.max_map_count": "70000"})
    answer = await refused(guest.sandbox.Create(other))
    assert answer == (grpc.StatusCode.ALREADY_EXISTS, "ID_IN_USE")
    await guest.sandbox.Create(REQUEST)
    assert (await guest.probe("cat /proc/sys/vm/max_map_count")).strip() == "262144"


async def test_a_create_that_fails_leaves_nothing(guest: Guest, before: str) -> None:
    request = sandbox.CreateSandboxRequest()
    request.CopyFrom(REQUEST)
    request.guest_hooks = "/run/no-such-hooks"
    answer = await refused(guest.sandbox.Create(request))
    assert answer[0] == grpc.StatusCode.FAILED_PRECONDITION
    assert await guest.probe(KERNEL) == before
    for modules, why in (
        ([sandbox.KernelModule(name="loop", parameters=["no_such=1"])], "MODULE_REFUSED"),
        ([sandbox.KernelModule(name="no_such_module")], "MODULE_REFUSED"),
    ):
        answer = await refused(
            guest.sandbox.Create(sandbox.CreateSandboxRequest(id="pod", modules=modules))
        )
        assert answer == (grpc.StatusCode.FAILED_PRECONDITION, why)
    assert await guest.probe(KERNEL) == before


async def test_destroy_puts_all_back_and_tells_what_it_cannot(guest: Guest, before: str) -> None:
    """A mount that somebody sits in, a module that somebody uses; and then they are let go."""
    await guest.sandbox.Create(REQUEST)
    await started(guest, sharing("a", "exec sleep 300"))
    point = "/run/innkeeper/storages/data"
    storage = storages.Storage(
        id="data", mount_point=point, tmpfs=storages.TmpfsSource(size=1 << 20)
    )
    await guest.storages.Attach(storages.AttachStorageRequest(storage=storage))
    # Beside the containers, as something of the guest's own would be.
    await guest.probe(
        "dd if=/dev/zero of=/guest/run/disk bs=1024 count=64 2>/dev/null;"
        f'{AS_THE_GUEST} "losetup /dev/loop0 /run/disk; cd {point};'
        " echo 0 > /sys/fs/cgroup/init/cgroup.procs; sleep 600 >/dev/null 2>&1 &"
        ' echo \\$! > /run/sleeper"; :'
    )
    left = await destroy(guest)
    assert sorted(line.partition(": ")[0] for line in left) == ["module loop", "storage data"]
    assert (await guest.describe()).sandbox_id == ""
    assert not (await guest.containers.List(containers.ListContainersRequest())).containers
    await guest.probe(f'kill $(cat /guest/run/sleeper); {AS_THE_GUEST} "losetup -d /dev/loop0"')
    assert await destroy(guest) == []
    assert await guest.probe(KERNEL) == before
    assert await destroy(guest) == []
    await guest.sandbox.Create(REQUEST)
    assert (await done(guest, sharing("b", "hostname"))).stdout == b"pod-1\n"
    assert await destroy(guest) == []
    assert await guest.probe(KERNEL) == before


async def test_containers_that_go_with_the_sandbox_say_so(guest: Guest, pod: str) -> None:
    await started(guest, sharing("a", "exec sleep 300"))
    assert await destroy(guest) == []
    status = await guest.wait("a")
    assert status.cause == types.END_CAUSE_SANDBOX_GONE


async def test_when_the_init_is_killed_it_is_told(guest: Guest, pod: str) -> None:
    """A privileged container can; everything in the namespace of pids goes with it."""
    await started(guest, sharing("a", "exec sleep 300"))
    await guest.probe("kill -9 $(cat /guest/run/innkeeper/sandbox/pid)")
    assert (await guest.wait("a")).signal == 9
    async for event in guest.sandbox.Watch(sandbox.WatchRequest(), timeout=60):
        if event.kind == sandbox.EVENT_KIND_PROCESS_EXITED and event.subject == "_sandbox":
            break
    assert event.exit.signal == 9
    answer = await refused(guest.containers.Create(sharing("b", "true")))
    assert answer == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
    await guest.run("true")
    assert await destroy(guest) == []
    await guest.sandbox.Create(REQUEST)
    assert (await done(guest, sharing("b", "true"))).code == 0
