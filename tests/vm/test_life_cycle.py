"""Every state of a container and every way out of it, under the real crun, kernel and freezer."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import sandbox_pb2 as sandbox
from innkeeper.v1 import types_pb2 as types
from tests.vm.attachment import Attachment
from tests.vm.guest import Guest, create_request, refused
from tests.vm.observer import Observer, observing
from tests.vm.test_containers import kill_agent

pytestmark = [pytest.mark.vm, pytest.mark.containers]

WRONG_STATE = (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
TICKS = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done"
_EXECS = itertools.count(1)


def ref(name: str, exec_id: str = "") -> types.ProcessRef:
    return types.ProcessRef(container_id=name, exec_id=exec_id)


def exec_request(name: str, script: str, **more: Any) -> processes.ExecRequest:
    words = json.dumps({"args": ["sh", "-c", script], "cwd": "/"}).encode()
    return processes.ExecRequest(
        container_id=name, exec_id=f"x{next(_EXECS)}", process=words, **more
    )


async def pause(guest: Guest, name: str, **more: Any) -> containers.ContainerStatus:
    return await guest.containers.Pause(containers.PauseContainerRequest(id=name, **more))


async def resume(guest: Guest, name: str) -> containers.ContainerStatus:
    return await guest.containers.Resume(containers.ResumeContainerRequest(id=name))


async def start(guest: Guest, name: str) -> containers.ContainerStatus:
    return await guest.containers.Start(containers.StartContainerRequest(id=name))


async def status_of(guest: Guest, name: str) -> containers.ContainerStatus:
    listed = await guest.containers.List(containers.ListContainersRequest())
    return next(each for each in listed.containers if each.id == name)


async def signal(guest: Guest, process: types.ProcessRef, name: str, **more: Any) -> None:
    request = processes.SignalRequest(process=process, name=name, **more)
    await guest.processes.Signal(request)


async def events_of(guest: Guest, name: str) -> list[tuple[str, dict[str, str]]]:
    """Kind and details of all that was told of a container that is gone."""
    found = []
    async for event in guest.sandbox.Watch(sandbox.WatchRequest(), timeout=60):
        kind = sandbox.EventKind.Name(event.kind).removeprefix("EVENT_KIND_")
        if event.subject == name:
            found.append((kind, dict(event.details)))
            if kind == "CONTAINER_REMOVED":
                break
    return found


@pytest_asyncio.fixture(loop_scope="session")
async def observer(guest: Guest) -> AsyncIterator[Observer]:
    async with observing(guest) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def ticking(guest: Guest) -> AsyncIterator[str]:
    """A container that counts for as long as it runs."""
    name = await guest.start(TICKS)
    yield name
    with contextlib.suppress(grpc.aio.AioRpcError):
        await guest.remove(name)


# Paused.


async def test_a_paused_container_stands_still_and_goes_on(guest: Guest, ticking: str) -> None:
    attachment = await Attachment(guest.processes, process=ref(ticking)).open()
    await attachment.until_text(b"3\n")
    assert (await pause(guest, ticking)).state == containers.CONTAINER_STATE_PAUSED
    assert (await pause(guest, ticking)).state == containers.CONTAINER_STATE_PAUSED
    assert (await status_of(guest, ticking)).state == containers.CONTAINER_STATE_PAUSED
    usage = containers.ContainerStatsRequest(id=ticking)
    first = (await guest.containers.Stats(usage)).cpu.usage_micros
    second = (await guest.containers.Stats(usage)).cpu.usage_micros
    assert first == second
    assert (await resume(guest, ticking)).state == containers.CONTAINER_STATE_RUNNING
    assert (await resume(guest, ticking)).state == containers.CONTAINER_STATE_RUNNING
    last = attachment.data[types.STREAM_KIND_STDOUT].split()[-1]
    await attachment.until_text(b"\n%d\n" % (int(last) + 2))
    attachment.cancel()
    await guest.remove(ticking)
    told = await events_of(guest, ticking)
    kinds = [(kind, why.get("why")) for kind, why in told if kind.endswith(("PAUSED", "RESUMED"))]
    assert kinds == [("CONTAINER_PAUSED", None), ("CONTAINER_RESUMED", "asked")]


async def test_what_needs_it_running_is_refused_at_once(guest: Guest, ticking: str) -> None:
    """An exec in a paused container hung for good."""
    await pause(guest, ticking)
    update = containers.UpdateContainerRequest(id=ticking, resources=b'{"pids": {"limit": 50}}')
    for call in (
        guest.processes.Exec(exec_request(ticking, "true"), timeout=5),
        guest.containers.Update(update, timeout=5),
        start(guest, ticking),
    ):
        assert await refused(call) == WRONG_STATE


async def test_sigkill_ends_a_paused_one_and_others_wait(guest: Guest, ticking: str) -> None:
    """On cgroup v2 a frozen process can be killed; on v1 it stayed until it was thawed."""
    name = await guest.start("trap 'exit 5' TERM; while :; do sleep 0.05; done")
    for each in (name, ticking):
        await pause(guest, each)
    await signal(guest, ref(name), "term")
    assert (await status_of(guest, name)).state == containers.CONTAINER_STATE_PAUSED
    await resume(guest, name)
    assert (await guest.wait(name)).code == 5
    await signal(guest, ref(ticking), "SIGKILL")
    end = await guest.wait(ticking)
    assert (end.signal, end.cause, end.why) == (
        9,
        types.END_CAUSE_KILLED_BY_AGENT,
        "SIGKILL was asked for",
    )
    await guest.remove(name)


NESTED = (
    "cd /sys/fs/cgroup; mkdir in in/deep; sleep 300 & echo $! >in/deep/cgroup.procs;"
    "echo 1 >in/deep/cgroup.freeze; echo up; while :; do sleep 0.1; done"
)
WRITABLE: dict[str, Any] = {
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["rw"]},
    ]
}


async def test_a_removal_thaws_it_and_what_it_froze_itself(
    guest: Guest, observer: Observer
) -> None:
    assert (await guest.run("exit 3")).code == 3
    before = await observer.census()
    name = await guest.start(NESTED, **WRITABLE)
    attachment = await Attachment(guest.processes, process=ref(name)).open()
    await attachment.until_text(b"up\n")
    attachment.cancel()
    await pause(guest, name)
    request = containers.RemoveContainerRequest(id=name, grace_seconds=0.2)
    await guest.containers.Remove(request, timeout=30)
    end = await guest.wait(name)
    assert (end.signal, end.why) == (9, "its container was removed")
    await observer.returns_to(before)
    told = dict(await events_of(guest, name))
    assert told["CONTAINER_RESUMED"] == {"why": "removed"}


async def test_a_paused_one_can_end_by_itself_when_it_is_removed(guest: Guest) -> None:
    name = await guest.start("trap 'exit 6' TERM; echo up; while :; do sleep 0.05; done")
    attachment = await Attachment(guest.processes, process=ref(name)).open()
    await attachment.until_text(b"up\n")
    attachment.cancel()
    await pause(guest, name)
    await guest.containers.Remove(containers.RemoveContainerRequest(id=name, grace_seconds=30))
    end = await guest.wait(name)
    assert (end.code, end.cause) == (6, types.END_CAUSE_EXITED)


async def test_a_later_agent_sees_that_it_is_paused(guest: Guest, ticking: str) -> None:
    await pause(guest, ticking)
    await kill_agent(guest)
    assert (await status_of(guest, ticking)).state == containers.CONTAINER_STATE_PAUSED
    assert await refused(guest.processes.Exec(exec_request(ticking, "true"))) == WRONG_STATE
    assert (await resume(guest, ticking)).state == containers.CONTAINER_STATE_RUNNING


async def test_states_that_cannot_be_paused(guest: Guest) -> None:
    await guest.containers.Create(create_request("early", "exit 3"))
    assert await refused(pause(guest, "early")) == WRONG_STATE
    assert await refused(resume(guest, "early")) == WRONG_STATE
    await start(guest, "early")
    await guest.wait("early")
    assert await refused(pause(guest, "early")) == WRONG_STATE
    await guest.remove("early")
    unknown = (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONTAINER")
    assert await refused(pause(guest, "early")) == unknown


# What a status says.


async def test_a_status_says_when_and_what(guest: Guest) -> None:
    request = create_request("told", "", process={"args": ["sleep", "x" * 2000], "terminal": True})
    created = await guest.containers.Create(request)
    assert created.started_unix_micros == 0
    assert created.terminal
    assert created.cgroup.startswith("/pods/")
    assert created.cgroup.endswith("/told")
    assert list(created.arguments) == ["sleep", "x" * (1024 - 5)]
    started = await start(guest, "told")
    # The guest's clock counts, which need not be ours.
    assert 0 < created.created_unix_micros <= started.started_unix_micros
    again = await start(guest, "told")
    assert again.started_unix_micros == started.started_unix_micros
    await guest.remove("told")


# Ends, and signals.


async def test_the_tail_of_standard_error_comes_with_the_end(guest: Guest, ticking: str) -> None:
    request = exec_request(ticking, "seq 1 20000 >&2; echo last words >&2; exit 1")
    request.streams.when_full = types.WHEN_FULL_DROP
    await guest.processes.Exec(request)
    wait = processes.WaitRequest(process=ref(ticking, request.exec_id), stderr_tail_bytes=11)
    answer = await guest.processes.Wait(wait)
    assert answer.stderr_tail == b"last words\n"
    wait.stderr_tail_bytes = 0
    assert (await guest.processes.Wait(wait)).stderr_tail == b""
    wait.stderr_tail_bytes = 65_537
    bad = (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    assert await refused(guest.processes.Wait(wait)) == bad


async def test_signals_by_name_number_or_both(guest: Guest, ticking: str) -> None:
    script = (
        "trap 'echo got' USR1; echo up; n=0; while [ $n -lt 600 ]; do n=$((n+1)); sleep 0.1; done"
    )
    request = exec_request(ticking, script)
    await guest.processes.Exec(request)
    target = ref(ticking, request.exec_id)
    attachment = await Attachment(guest.processes, process=target).open()
    await attachment.until_text(b"up\n")
    for count, (name, number) in enumerate((("usr1", 0), ("", 10), ("SIGUSR1", 10)), 1):
        await signal(guest, target, name, signal=number)
        await attachment.until_text(b"got\n" * count)
    bad = (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    for name, number in (("USR1", 9), ("NONE", 0), ("", 0), ("RTMIN+31", 0), ("", 65)):
        assert await refused(signal(guest, target, name, signal=number)) == bad
    await signal(guest, target, "RTMIN+3")
    assert (await attachment.to_the_end()).code == 128 + 37


async def test_one_that_ended_is_signalled_without_an_error(guest: Guest, ticking: str) -> None:
    """By one rule, also when it is forgotten by now; one that never was is NOT_FOUND."""
    request = exec_request(ticking, "exit 0")
    await guest.processes.Exec(request)
    await guest.wait(ticking, request.exec_id)
    await signal(guest, ref(ticking, request.exec_id), "KILL")
    await guest.remove(ticking)
    await signal(guest, ref(ticking, request.exec_id), "KILL")
    unknown = (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONTAINER")
    assert await refused(signal(guest, ref("never"), "KILL")) == unknown


async def test_orphans_leave_no_zombies(guest: Guest, observer: Observer) -> None:
    """A hundred grandchildren whose parents end first, in a container whose first process
    takes nobody in."""
    name = await guest.start("exec sleep 300", linux={"namespaces": [{"type": "mount"}]})
    for _ in range(10):
        script = "for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.1 &); done; exit 0"
        request = exec_request(name, script)
        await guest.processes.Exec(request)
        assert (await guest.wait(name, request.exec_id)).code == 0
    await observer.sees_no_zombies()
    await guest.remove(name)
