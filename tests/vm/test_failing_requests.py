"""Requests that fail, at every step, leave the guest as it was, and the same id works at once.

One that hangs delays only itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio
from grpc_health.v1 import health_pb2

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import processes_pb2 as processes
from tests.vm.guest import Guest, create_request, reason, refused
from tests.vm.observer import Observer, observing

pytestmark = [pytest.mark.vm, pytest.mark.containers]

FAILED = grpc.StatusCode.FAILED_PRECONDITION
NAME = "same"
_PIDS = {"limit": 40}


@pytest_asyncio.fixture(loop_scope="session")
async def observer(guest: Guest) -> AsyncIterator[Observer]:
    async with observing(guest) as running:
        yield running


def request(name: str = NAME, **members: Any) -> containers.CreateContainerRequest:
    """A good one but for the `members` of its specification."""
    made = create_request(name, members.pop("script", "exit 4"))
    spec = json.loads(made.spec)
    process = members.pop("process", {})
    spec = {**spec, **members, "process": {**spec["process"], **process}}
    made.spec = json.dumps(spec).encode()
    return made


def hook(kind: str, script: str, **more: Any) -> dict[str, Any]:
    return {kind: [{"path": "/bin/sh", "args": ["sh", "-c", script], **more}]}


def mounted(**mount: Any) -> list[dict[str, Any]]:
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        {"destination": "/there", "type": "bind", "options": ["bind"], **mount},
    ]


CREATES: dict[str, tuple[dict[str, Any], str]] = {
    "a program that is not there": ({"process": {"args": ["/no/such"]}}, "RUNTIME_REFUSED"),
    "a source that is not there": ({"mounts": mounted(source="/no/such")}, "RUNTIME_REFUSED"),
    "a hook that fails": ({"hooks": hook("createRuntime", "exit 3")}, "HOOK_FAILED"),
    "a hook that is slow": ({"hooks": hook("prestart", "sleep 60", timeout=1)}, "HOOK_FAILED"),
    "a limit that is none": (
        {"linux": {"resources": {"unified": {"memory.max": "much"}}}},
        "RUNTIME_REFUSED",
    ),
    "a user that is nobody": ({"process": {"user": {"username": "no-such"}}}, "UNKNOWN_USER"),
    "a directory that can't be made": ({"process": {"cwd": "/proc/no"}}, "RUNTIME_REFUSED"),
    "a profile that is not there": (
        {"process": {"apparmorProfile": "no-such"}},
        "NOT_SUPPORTED",
    ),
}


async def runs(guest: Guest, made: containers.CreateContainerRequest) -> None:
    """From its creation to its removal."""
    await guest.containers.Create(made)
    await guest.containers.Start(containers.StartContainerRequest(id=made.id))
    assert (await guest.wait(made.id)).code == 4
    await guest.remove(made.id)


async def test_creates_that_fail_leave_nothing(guest: Guest, observer: Observer) -> None:
    await runs(guest, request())
    before = await observer.census()
    for what, (members, why) in CREATES.items():
        assert (what, await refused(guest.containers.Create(request(**members)))) == (
            what,
            (FAILED, why),
        )
    await observer.returns_to(before)
    await runs(guest, request())


async def test_creates_that_take_too_long_leave_nothing(guest: Guest, observer: Observer) -> None:
    """One that its own deadline ends, one whose caller leaves, one whose runtime is killed."""
    await runs(guest, request())
    before = await observer.census()
    slow = request(hooks=hook("createRuntime", "sleep 300"))
    slow.timeout_seconds = 2
    code, why = await refused(guest.containers.Create(slow))
    assert (code, why) in (
        (grpc.StatusCode.DEADLINE_EXCEEDED, "OPERATION_TIMED_OUT"),
        (FAILED, "HOOK_FAILED"),
    )
    await runs(guest, request())
    slow.timeout_seconds = 15
    left = asyncio.ensure_future(guest.containers.Create(slow))
    await _until_seen(observer, "sleep 300")
    left.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await left
    # It is taken back, and whoever asks for the id waits for that.
    await runs(guest, request())
    slow.timeout_seconds = 60
    killed = asyncio.ensure_future(refused(guest.containers.Create(slow)))
    await _until_seen(observer, "sleep 300")
    await observer.ask("for pid in $(pidof crun); do kill -9 $pid; done")
    assert (await killed)[0] == FAILED
    pids = "ps -o pid,args | grep 'slee[p] 300' | sed 's/^ *//;s/ .*//'"
    await observer.ask(f"for pid in $({pids}); do kill -9 $pid; done")
    await observer.returns_to(before)
    await runs(guest, request())


async def test_a_removal_ends_what_hangs(guest: Guest, observer: Observer) -> None:
    """A create is taken back, a start given up: neither can keep its container alive."""
    await runs(guest, request())
    before = await observer.census()
    slow = request(hooks=hook("createRuntime", "sleep 300"))
    slow.timeout_seconds = 300
    hanging = asyncio.ensure_future(refused(guest.containers.Create(slow, timeout=240)))
    await _until_seen(observer, "sleep 300")
    await guest.remove(NAME)
    assert await hanging == (FAILED, "WRONG_STATE")
    await guest.containers.Create(request(hooks=hook("startContainer", "sleep 300")))
    start = containers.StartContainerRequest(id=NAME, timeout_seconds=300)
    hanging = asyncio.ensure_future(refused(guest.containers.Start(start, timeout=240)))
    await _until_seen(observer, "sleep 300")
    await guest.remove(NAME)
    assert await hanging == (FAILED, "WRONG_STATE")
    await observer.returns_to(before)
    await runs(guest, request())


async def _until_seen(observer: Observer, words: str) -> None:
    async with asyncio.timeout(60):
        while words not in await observer.ask("ps -o args"):
            pass


async def test_starts_that_fail_leave_one_that_has_stopped(
    guest: Guest, observer: Observer
) -> None:
    await runs(guest, request())
    before = await observer.census()
    await guest.containers.Create(request(hooks=hook("startContainer", "echo no >&2; exit 3")))
    start = containers.StartContainerRequest(id=NAME)
    assert await refused(guest.containers.Start(start)) == (FAILED, "HOOK_FAILED")
    answer = await guest.containers.Start(start)
    assert answer.state == containers.CONTAINER_STATE_STOPPED
    await guest.remove(NAME)
    await observer.returns_to(before)
    await runs(guest, request())


EXECS: dict[str, tuple[dict[str, Any], str]] = {
    "a program that is not there": ({"args": ["/no/such"]}, "RUNTIME_REFUSED"),
    "one on a terminal": ({"args": ["/no/such"], "terminal": True}, "RUNTIME_REFUSED"),
    "a directory that is not there": ({"cwd": "/no/such"}, "RUNTIME_REFUSED"),
    "a user that is nobody": ({"user": {"username": "no-such"}}, "UNKNOWN_USER"),
}


async def test_execs_that_fail_leave_nothing(guest: Guest, observer: Observer) -> None:
    name = await guest.start("while :; do sleep 1; done", process={"terminal": True})
    before = await observer.census()
    good = {"args": ["sh", "-c", "exit 5"], "cwd": "/"}
    for number in range(12):
        members, why = list(EXECS.values())[number % len(EXECS)]
        words = json.dumps({**good, **members}).encode()
        bad = processes.ExecRequest(container_id=name, exec_id="same", process=words)
        assert await refused(guest.processes.Exec(bad)) == (FAILED, why)
    await observer.returns_to(before)
    bad.process = json.dumps(good).encode()
    await guest.processes.Exec(bad)
    assert (await guest.wait(name, "same")).code == 5
    await guest.remove(name)


async def test_one_that_hangs_delays_only_itself(guest: Guest, observer: Observer) -> None:
    """In its create, its start and its removal: health and others are answered meanwhile."""
    await observer.ask("mkfifo /guest/run/nobody-opens-it")
    gate = "read line </run/nobody-opens-it"
    hanging = {
        "creates": hook("createRuntime", gate),
        "starts": hook("startContainer", "sleep 300"),
        "goes": hook("poststop", gate),
    }
    for name in ("starts", "goes"):
        await guest.containers.Create(request(name, hooks=hanging[name], script="exec sleep 300"))
    await guest.containers.Start(containers.StartContainerRequest(id="goes"))
    calls = [
        guest.containers.Create(request("creates", hooks=hanging["creates"]), timeout=240),
        guest.containers.Start(containers.StartContainerRequest(id="starts"), timeout=240),
        guest.containers.Remove(containers.RemoveContainerRequest(id="goes"), timeout=240),
    ]
    stuck = [asyncio.ensure_future(_outcome(call)) for call in calls]
    await _until_seen(observer, gate)
    health = await guest.health.Check(health_pb2.HealthCheckRequest(), timeout=20)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    await runs(guest, request())
    name = await guest.start("while :; do sleep 1; done")
    words = b'{"args": ["true"], "cwd": "/"}'
    await guest.processes.Exec(processes.ExecRequest(container_id=name, exec_id="e", process=words))
    assert (await guest.wait(name, "e")).code == 0
    await guest.remove(name)
    assert not any(each.done() for each in stuck)
    await observer.ask("(echo a; echo b; echo c) >/guest/run/nobody-opens-it &")
    for each in stuck:
        each.cancel()
    for name in hanging:
        await _gone(guest, name)
    await observer.ask("rm /guest/run/nobody-opens-it")


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.1, 0.15, 0.2, 0.3])
async def test_an_exec_whose_caller_leaves(guest: Guest, observer: Observer, moment: float) -> None:
    """Whether it was taken back or had been done: it runs once when it is asked for again."""
    await runs(guest, request())  # the first exit of all makes a file
    before = await observer.census()
    name = await guest.start("while :; do sleep 1; done")
    words = json.dumps({"args": ["sleep", "4711"], "cwd": "/"}).encode()
    wanted = processes.ExecRequest(container_id=name, exec_id="again", process=words)
    call = guest.processes.Exec(wanted)
    await asyncio.wait([asyncio.ensure_future(_outcome(call))], timeout=moment)
    call.cancel()
    try:
        await observer.sees_only((await guest.processes.Exec(wanted)).pid, "sleep 4711")
    finally:
        await guest.remove(name)
    await observer.returns_to(before)


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.1, 0.2])
async def test_an_update_whose_caller_leaves(guest: Guest, moment: float) -> None:
    """All of it is done, or nothing."""
    name = await guest.start("while :; do sleep 1; done", linux={"resources": {"pids": _PIDS}})
    limits = json.dumps({"pids": {"limit": 50}, "cpu": {"shares": 2048}}).encode()
    call = guest.containers.Update(containers.UpdateContainerRequest(id=name, resources=limits))
    await asyncio.wait([asyncio.ensure_future(_outcome(call))], timeout=moment)
    call.cancel()
    await guest.containers.Update(containers.UpdateContainerRequest(id=name))
    group = f"/guest/sys/fs/cgroup/pods/*/{name}"
    found = (await guest.probe(f"cat {group}/pids.max {group}/cpu.weight")).split()
    assert found in (["40", "100"], ["50", "79"]), found
    await guest.remove(name)


async def _outcome(call: Any) -> str:
    try:
        await call
    except aio.AioRpcError as error:
        return reason(error)
    return ""


async def _gone(guest: Guest, name: str) -> None:
    """Removed, however far it came: what hung has ended at its deadline."""
    with contextlib.suppress(aio.AioRpcError):
        await guest.containers.Remove(
            containers.RemoveContainerRequest(id=name, timeout_seconds=60), timeout=120
        )
