"""Hooks under the real crun: order, what they are told, time limits, and what a failure leaves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.rpc import error_details_pb2, status_pb2
from grpc import aio

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import types_pb2 as types
from tests.vm.guest import PATH, Guest, create_request
from tests.vm.observer import Observer, observing

pytestmark = [pytest.mark.vm, pytest.mark.containers]

BEFORE = ("prestart", "createRuntime", "createContainer")
DIRECTORY = "/run/hooktest"
SHARED = {"destination": "/h", "type": "bind", "source": DIRECTORY, "options": ["rbind", "rw"]}
PROC = {"destination": "/proc", "type": "proc", "source": "proc"}


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def observer(guest: Guest) -> AsyncIterator[Observer]:
    """With an empty directory of the guest for what hooks write."""
    async with observing(guest) as running:
        await running.ask(f"rm -rf /guest{DIRECTORY}; mkdir -m 777 /guest{DIRECTORY}")
        yield running
        await running.ask(f"rm -rf /guest{DIRECTORY}")


def shell(script: str, **members: Any) -> dict[str, Any]:
    """A hook of the guest's shell."""
    args = ["sh", "-c", script]
    return {"path": "/usr/bin/busybox", "args": args, "env": [PATH], **members}


def inside(script: str, **members: Any) -> dict[str, Any]:
    """A hook of the container's shell."""
    return {"path": "/bin/sh", "args": ["sh", "-c", script], "env": [PATH], **members}


def hooked(name: str, script: str, **hooks: list[dict[str, Any]]) -> Any:
    request = create_request(name, script, mounts=[PROC, SHARED])
    spec = json.loads(request.spec)
    spec["hooks"] = hooks
    spec["annotations"] = {"org.example.note": "seen"}
    request.spec = json.dumps(spec).encode()
    return request


async def start(guest: Guest, name: str) -> Any:
    return await guest.containers.Start(containers.StartContainerRequest(id=name))


async def failure(call: Any) -> dict[str, str]:
    """The metadata of a call that must fail because of a hook."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION, caught.value
    for key, value in caught.value.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    assert info.reason == "HOOK_FAILED", caught.value
                    return dict(info.metadata)
    raise AssertionError("no details")


def keeping(kind: str) -> dict[str, Any]:
    return shell(f"echo {kind} >>{DIRECTORY}/order; cat >{DIRECTORY}/{kind}.json")


async def test_all_kinds_run_in_order_and_are_told_the_state(
    guest: Guest, observer: Observer
) -> None:
    """Hooks' state has id, pid, status and bundle; those after the start find the program."""
    exe = (
        f"echo poststart >>{DIRECTORY}/order; cat >{DIRECTORY}/poststart.json; "
        f"pid=$(sed 's/.*\"pid\": *\\([0-9]*\\).*/\\1/' {DIRECTORY}/poststart.json); "
        f"readlink /proc/$pid/exe >{DIRECTORY}/exe"
    )
    hooks = {kind: [keeping(kind), shell(f"echo {kind}2 >>{DIRECTORY}/order")] for kind in BEFORE}
    hooks["startContainer"] = [
        inside("echo startContainer >>/h/order; cat >/h/startContainer.json"),
        # crun calls the next hooks meanwhile: they are to come after the program's start.
        inside("sleep 1"),
    ]
    hooks["poststart"] = [shell(exe)]
    hooks["poststop"] = [keeping("poststop")]
    created = await guest.containers.Create(hooked("hooks", "exec sleep 300", **hooks))
    order = await observer.ask(f"cat /guest{DIRECTORY}/order")
    assert order.split() == [word for kind in BEFORE for word in (kind, f"{kind}2")]
    await start(guest, "hooks")
    assert "busybox" in await observer.ask(f"cat /guest{DIRECTORY}/exe")
    await guest.remove("hooks")
    order = await observer.ask(f"cat /guest{DIRECTORY}/order")
    assert order.split()[6:] == ["startContainer", "poststart", "poststop"]
    states = {
        kind: json.loads(await observer.ask(f"cat /guest{DIRECTORY}/{kind}.json"))
        for kind in (*BEFORE, "startContainer", "poststart", "poststop")
    }
    assert {state["id"] for state in states.values()} == {"hooks"}
    states.pop("startContainer")
    assert {kind: state["status"] for kind, state in states.items()} == {
        "prestart": "creating",
        "createRuntime": "creating",
        "createContainer": "creating",
        "poststart": "running",
        "poststop": "stopped",
    }
    bundles = {state["bundle"] for state in states.values()}
    assert bundles == {"/run/innkeeper/bundles/hooks"}
    assert {state["ociVersion"] for state in states.values()} == {"1.1.0"}
    assert all(state["annotations"] == {"org.example.note": "seen"} for state in states.values())
    pids = {kind: state["pid"] for kind, state in states.items()}
    outside = {pids["prestart"], pids["createRuntime"], pids["poststart"]}
    assert outside == {created.pid}
    # In a pid namespace of its own.
    assert pids["createContainer"] == 1


async def test_arguments_and_environment_are_exactly_those_given(
    guest: Guest, observer: Observer
) -> None:
    # The shell itself, not what it runs last in its place.
    script = f"cat /proc/$$/cmdline >{DIRECTORY}/args; cat /proc/$$/environ >{DIRECTORY}/env; :"
    hook = shell(script, env=[PATH, "A=ü b"])
    hook["args"] = [*hook["args"], "x", "prestart", ""]
    await guest.containers.Create(hooked("argv", "true", prestart=[hook]))
    await guest.remove("argv")
    said = await observer.ask(f"tr '\\0' '\\n' </guest{DIRECTORY}/args")
    assert said.split("\n")[:-1] == hook["args"]
    said = await observer.ask(f"tr '\\0' '\\n' </guest{DIRECTORY}/env")
    assert said.split("\n")[:-1] == hook["env"]


@pytest.mark.parametrize("kind", BEFORE)
async def test_a_failure_aborts_the_create_and_leaves_nothing(
    guest: Guest, observer: Observer, kind: str
) -> None:
    """What the hook said comes with the error; the same id can be used at once."""
    before = await observer.census()
    bad = shell("echo no such luck >&2; exit 3")
    never = shell(f"touch {DIRECTORY}/never")
    fields = await failure(guest.containers.Create(hooked("bad", "true", **{kind: [bad, never]})))
    assert fields == {
        "hook": kind,
        "path": "/usr/bin/busybox",
        "ended": "exit status 3",
        "stderr": "no such luck\n",
    }
    assert await observer.ask(f"ls /guest{DIRECTORY}") == ""
    await observer.returns_to(before)
    await guest.containers.Create(hooked("bad", "true"))
    await guest.remove("bad")


async def test_a_hook_that_is_not_there_aborts_too(guest: Guest) -> None:
    fields = await failure(
        guest.containers.Create(hooked("bad", "true", createRuntime=[{"path": "/h/x"}]))
    )
    assert fields["ended"] == "could not be started: No such file or directory"


async def test_a_time_limit_ends_the_hook_and_its_children(
    guest: Guest, observer: Observer
) -> None:
    before = await observer.census()
    slow = shell("sleep 4711 & sleep 4711", timeout=1)
    fields = await failure(guest.containers.Create(hooked("slow", "true", prestart=[slow])))
    assert fields["ended"] == "took longer than 1 s"
    await observer.returns_to(before)


async def test_the_creates_own_time_limit_ends_it_as_well(guest: Guest, observer: Observer) -> None:
    before = await observer.census()
    request = hooked("slow", "true", createContainer=[shell("sleep 4712 & sleep 4712")])
    request.timeout_seconds = 3
    fields = await failure(guest.containers.Create(request))
    assert fields["hook"] == "createContainer"
    await observer.returns_to(before)


async def test_output_and_children_of_hooks_hold_nobody_up(
    guest: Guest, observer: Observer
) -> None:
    """1 MiB on standard error; a child that holds both outputs and stays."""
    loud = shell("dd if=/dev/zero bs=65536 count=16 >&2 2>/dev/null; sleep 0 & exit 0")
    left = shell(f"sleep 4713 & echo $! >{DIRECTORY}/pid")
    await guest.containers.Create(hooked("loud", "true", prestart=[loud], createRuntime=[left]))
    await start(guest, "loud")
    assert (await guest.wait("loud")).code == 0
    await guest.remove("loud")
    await observer.ask(f"kill $(cat /guest{DIRECTORY}/pid)")
    await observer.sees_no_zombies()


async def test_a_failure_inside_the_container_fails_the_start(guest: Guest) -> None:
    """crun itself answers before; the program was not run."""
    hooks = [inside("exit 0"), inside("echo own words >&2; exit 3")]
    await guest.containers.Create(hooked("inside", "echo program", startContainer=hooks))
    fields = await failure(start(guest, "inside"))
    assert (fields["hook"], fields["path"]) == ("startContainer", "/bin/sh")
    assert fields["ended"] == "exit status 3"
    finished = await guest.follow(types.ProcessRef(container_id="inside"))
    assert (finished.code, finished.stdout) == (1, b"")
    await guest.remove("inside")


@pytest.mark.parametrize("kind", ["poststart", "poststop"])
async def test_later_failures_are_only_logged(guest: Guest, observer: Observer, kind: str) -> None:
    """And all others still run."""
    hooks = [
        shell("exit 3"),
        {"path": "/not/there"},
        shell("sleep 4714", timeout=1),
        shell(f"touch {DIRECTORY}/{kind}"),
    ]
    await guest.containers.Create(hooked("later", "exec sleep 300", **{kind: hooks}))
    await start(guest, "later")
    with suppress(aio.AioRpcError):
        await guest.remove("later")
    assert await observer.ask(f"ls /guest{DIRECTORY}") == f"{kind}\n"
    await guest.containers.Create(hooked("later", "true"))
    await guest.remove("later")


async def test_hooks_in_a_user_namespace(guest: Guest) -> None:
    """The outcome of one that is root there alone is known as well."""
    request = hooked("users", "true", createContainer=[shell("echo mine >&2; exit 4")])
    spec = json.loads(request.spec)
    kinds = ("user", "pid", "mount", "ipc", "uts")
    maps = [{"containerID": 0, "hostID": 100_000, "size": 65_536}]
    # As is usual: with a /dev that its root may write.
    del spec["mounts"]
    spec["linux"] = {
        "namespaces": [{"type": kind} for kind in kinds],
        "uidMappings": maps,
        "gidMappings": maps,
    }
    request.spec = json.dumps(spec).encode()
    fields = await failure(guest.containers.Create(request))
    assert (fields["hook"], fields["stderr"]) == ("createContainer", "mine\n")
