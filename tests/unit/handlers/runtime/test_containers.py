"""Containers from create to remove, and what every failure leaves behind: nothing."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from agent.core.errors import AgentError, Code, Reason, wrong_state
from agent.core.fileops import BindMount, FsMount, Location, MountOption, OverlayMount
from agent.core.life import EndCause, OutOfMemory, PressureResource, PressureThreshold
from agent.core.model import (
    ContainerState,
    ContainerUpdate,
    DeviceGrant,
    OutputChunk,
    ProcessExit,
    ProcessRef,
    RootPath,
    RootStorage,
    StorageMount,
    Stream,
)
from agent.handlers.runtime import containers
from agent.handlers.runtime.creating import shown
from agent.handlers.runtime.exitdetails import details_of, end_of
from agent.handlers.runtime.records import Phase
from agent.handlers.runtime.table import Container
from tests.fakes.bed import FakeBed as Bed
from tests.fakes.bed import Life
from tests.fakes.crun import FakeGroup
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.containers]

C1 = ProcessRef(container_id="c1")


async def test_a_container_from_create_to_remove(bed: Bed, life: Life) -> None:
    created = await life.containers.create(bed.request("echo hello; exit 42"))
    assert created.state is ContainerState.CREATED
    started = await life.containers.start("c1")
    assert started.pid == created.pid
    assert (await life.wait("c1")).code == 42
    assert life.containers.get("c1").state is ContainerState.STOPPED
    assert await life.output("c1") == b"hello\n"
    await life.containers.remove("c1", 0, 10)
    assert (life.containers.list(), bed.left()) == ((), {})
    assert life.events.kinds() == [
        "container_created",
        "container_started",
        "process_exited",
        "container_removed",
    ]


async def test_an_end_by_a_signal_is_128_and_its_number(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request("kill -KILL $$"))
    await life.containers.start("c1")
    end = await life.wait("c1")
    assert (end.code, end.signal) == (137, 9)
    details = next(d for kind, _, d in life.events.published if kind == "process_exited")
    assert (details["code"], details["signal"]) == ("137", "9")


async def test_an_exit_can_be_asked_for_after_the_removal(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request("exit 5"))
    await life.containers.start("c1")
    waiting = [asyncio.create_task(life.wait("c1")) for _ in range(3)]
    await life.wait("c1")
    await life.containers.remove("c1", 0, 10)
    assert (await life.wait("c1")).code == 5
    assert {(await each).code for each in waiting} == {5}


async def test_the_same_request_twice_is_answered_twice(bed: Bed, life: Life) -> None:
    request = bed.request("sleep 100")
    both = asyncio.gather(life.containers.create(request), life.containers.create(request))
    first, second = await both
    third = await life.containers.create(replace(request, timeout=99))
    assert first == second == third
    assert bed.crun.operations() == ["create"]


async def test_another_request_with_the_id_leaves_the_first_alone(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request("sleep 100"))
    before = await life.containers.start("c1")
    with pytest.raises(AgentError) as caught:
        await life.containers.create(bed.request("sleep 200"))
    assert (caught.value.code, caught.value.reason) == (Code.ALREADY_EXISTS, Reason.ID_IN_USE)
    assert life.containers.get("c1") == before


async def test_a_second_start_is_answered_also_after_the_end(bed: Bed, life: Life) -> None:
    """A host that lost the first answer asks again, and nothing is started twice."""
    await life.containers.create(bed.request("read line; exit 4"))
    first = await life.containers.start("c1")
    assert await life.containers.start("c1") == first
    await life.processes.close_input(C1, 0)
    await life.wait("c1")
    again = await life.containers.start("c1")
    assert again.state is ContainerState.STOPPED
    assert again.exit is not None
    assert again.exit.code == 4


async def test_unknown_ids_are_not_found(life: Life) -> None:
    for call in (life.containers.start("no"), life.containers.remove("no", 0, 1)):
        with pytest.raises(AgentError) as caught:
            await call
        assert caught.value.reason is Reason.UNKNOWN_CONTAINER


@pytest.mark.parametrize("name", ["../x", "-rf", "a b", "", "x" * 65, "a/b"])
async def test_bad_ids_are_refused_before_anything_is_done(bed: Bed, life: Life, name: str) -> None:
    """crun lets `../x` and `-rf` through its own check."""
    with pytest.raises(AgentError) as caught:
        await life.containers.create(bed.request(id=name))
    assert caught.value.reason is Reason.BAD_ID
    assert (bed.crun.calls, bed.left()) == ([], {})


async def test_ids_come_after_two_dashes(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request())
    assert bed.crun.calls[0][-2:] == ["--", "c1"]


FAILURES: dict[str, tuple[dict[str, Any], Reason]] = {
    "bad spec": ({"spec": b"{}"}, Reason.BAD_SPEC),
    "unknown storage": (
        {"storages": (StorageMount(storage_id="no", destination="/d"),)},
        Reason.UNKNOWN_STORAGE,
    ),
    "unknown root": ({"rootfs": RootStorage(storage_id="no")}, Reason.UNKNOWN_STORAGE),
    "unknown device": ({"devices": (DeviceGrant(device_id="no"),)}, Reason.UNKNOWN_DEVICE),
    "root that is not there": ({"rootfs": RootPath(path="/no/such")}, Reason.BAD_FIELD),
    "root with a detour": ({"rootfs": RootPath(path="/usr/../etc")}, Reason.BAD_FIELD),
    "relative root": ({"rootfs": RootPath(path="usr")}, Reason.BAD_FIELD),
    "bad grant": (
        {"devices": (DeviceGrant(device_id="disk", permissions="x"),)},
        Reason.BAD_FIELD,
    ),
    "bad timeout": ({"timeout": -1.0}, Reason.BAD_FIELD),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_request_that_cannot_be_met_leaves_nothing(bed: Bed, life: Life, name: str) -> None:
    changes, reason = FAILURES[name]
    held = StorageMount(storage_id="data", destination="/data")
    request = replace(replace(bed.request(), storages=(held,)), **changes)
    with pytest.raises(AgentError) as caught:
        await life.containers.create(request)
    assert caught.value.reason is reason
    assert (life.containers.list(), bed.left()) == ((), {})


async def test_what_crun_says_is_told_and_nothing_is_left(bed: Bed, life: Life) -> None:
    bed.crun.plan(fail={"create": "executable file `nosuch` not found in $PATH"})
    request = replace(
        bed.request(),
        writable_layer=True,
        storages=(StorageMount(storage_id="data", destination="/data"),),
        devices=(DeviceGrant(device_id="disk"),),
    )
    with pytest.raises(AgentError) as caught:
        await life.containers.create(request)
    assert caught.value.reason is Reason.RUNTIME_REFUSED
    assert caught.value.fields["runtime_message"] == "executable file `nosuch` not found in $PATH"
    assert bed.left() == {}
    bed.crun.plan(fail={})
    assert (await life.containers.create(request)).state is ContainerState.CREATED


async def test_a_create_that_hangs_ends_at_its_deadline(bed: Bed, life: Life) -> None:
    bed.crun.plan(hang=["create"])
    with pytest.raises(AgentError) as caught:
        await life.containers.create(bed.request("sleep 100", timeout=1.0))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    assert bed.left() == {}


async def test_the_time_of_the_way_back_begins_with_it(
    bed: Bed, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once began with the create: one that took longer than that left its bundle and mounts."""
    monkeypatch.setattr(containers, "_ROLLBACK_TIMEOUT", 2.0)
    bed.crun.plan(hang=["create"])
    with pytest.raises(AgentError) as caught:
        await life.containers.create(bed.request("sleep 100", timeout=2.2))
    assert "not_undone" not in caught.value.fields
    assert bed.left() == {}


async def test_a_caller_that_leaves_gets_the_answer_when_it_asks_again(
    bed: Bed, life: Life
) -> None:
    request = bed.request("sleep 100")
    task = asyncio.create_task(life.containers.create(request))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await life.containers.create(request)).state is ContainerState.CREATED
    assert bed.crun.operations() == ["create"]


async def test_a_create_whose_caller_leaves_is_taken_back(bed: Bed, life: Life) -> None:
    """It once went on for all the time that it had been given, and nobody could end it."""
    bed.crun.plan(hang=["create"])
    task = asyncio.create_task(life.containers.create(bed.request("sleep 100", timeout=300)))
    await until(lambda: bed.crun.operations() == ["create"])
    task.cancel()
    await asyncio.wait([task])
    await until(lambda: life.containers.being_created() == ())
    assert (life.containers.list(), bed.left()) == ((), {})
    bed.crun.plan(hang=[])
    assert (await life.containers.create(bed.request("exit 0"))).state is ContainerState.CREATED


@pytest.mark.parametrize("leaving", [0, 1])
async def test_one_of_two_callers_of_a_create_may_leave(bed: Bed, life: Life, leaving: int) -> None:
    request = bed.request("sleep 100")
    both = [asyncio.create_task(life.containers.create(request)) for _ in range(2)]
    await until(lambda: bed.crun.operations() == ["create"])
    both.pop(leaving).cancel()
    assert (await both[0]).state is ContainerState.CREATED
    assert bed.crun.operations() == ["create"]


async def test_a_create_goes_when_the_last_of_its_callers_has_left(bed: Bed, life: Life) -> None:
    bed.crun.plan(hang=["create"])
    request = bed.request("sleep 100", timeout=300)
    both = [asyncio.create_task(life.containers.create(request)) for _ in range(2)]
    await until(lambda: bed.crun.operations() == ["create"])
    for task in both:
        task.cancel()
        await asyncio.wait([task])
    await until(lambda: life.containers.being_created() == ())
    assert (bed.crun.operations().count("create"), bed.left()) == (1, {})


@pytest.mark.parametrize("gone", [False, True])
async def test_a_removal_stops_a_create(bed: Bed, life: Life, gone: bool) -> None:
    group = bed.roots.cgroup / "pods/s"
    group.mkdir(parents=True)
    bed.crun.plan(hang=["create"])
    request = bed.request("sleep 100", timeout=300)
    both = [asyncio.create_task(life.containers.create(request)) for _ in range(2)]
    await until(lambda: bed.crun.operations() == ["create"])
    assert life.containers.being_created() == ("c1",)
    await life.containers.remove("c1", 0, 20, sandbox_gone=gone)
    assert (life.containers.list(), bed.left()) == ((), {})
    assert group.exists() is not gone
    said = "the sandbox is being destroyed" if gone else "is being removed"
    for task in both:
        with pytest.raises(AgentError, match=said) as caught:
            await task
        assert caught.value.reason is Reason.WRONG_STATE
    assert bed.crun.operations().count("create") == 1


async def test_a_sandbox_that_goes_takes_no_containers(bed: Bed, life: Life) -> None:
    with life.containers.closed(), pytest.raises(AgentError) as caught:
        await life.containers.create(bed.request())
    assert caught.value.reason is Reason.WRONG_STATE
    assert (await life.containers.create(bed.request())).state is ContainerState.CREATED


async def test_a_layer_that_cannot_be_mounted(bed: Bed, life: Life) -> None:
    bed.noted.fail = {"rootfs"}
    with pytest.raises(AgentError) as caught:
        await life.containers.create(bed.request(writable_layer=True))
    assert caught.value.reason is Reason.MOUNT_REFUSED
    bed.noted.fail = set()
    assert len(life.containers.list()) == 1
    await life.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_the_layer_is_limited_and_lies_over_a_path_as_it_is(bed: Bed, life: Life) -> None:
    odd = bed.top / "odd,na:me"
    odd.mkdir()
    await life.containers.create(bed.request(writable_layer=True, rootfs=RootPath(path=str(odd))))
    (_, layer), (_, overlay) = bed.noted.mounts
    assert isinstance(layer, FsMount)
    assert MountOption(key="size", value="268435456") in layer.options
    assert isinstance(overlay, OverlayMount)
    assert [lower.root for lower in overlay.lowers] == [f"{bed.top}/odd,na:me"]
    await life.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_mount_targets_are_made_before_the_runtime_mounts(bed: Bed, life: Life) -> None:
    mounts = [
        {"destination": "/etc/hosts", "type": "bind", "source": "/etc/hosts"},
        {"destination": "/l", "type": "bind", "source": "/l", "options": ["copy-symlink"]},
        {"destination": "/r", "source": "relative", "options": ["rbind"]},
        {"destination": "/proc", "type": "proc"},
    ]
    spec = {"process": {"args": ["/bin/sh"]}, "mounts": mounts}
    storage = StorageMount(storage_id="data", destination="/var/run/secrets")
    request = bed.request(spec=json.dumps(spec).encode(), storages=(storage,))
    await life.containers.create(request)
    root = f"{bed.top}/bundles/c1/rootfs"
    assert bed.noted.targets == [(root, ["/etc/hosts", "/proc", "/var/run/secrets"])]


async def test_what_the_guest_cannot_do_is_refused_and_not_left_out(bed: Bed, life: Life) -> None:
    """A label in a guest without SELinux, of the process or of an exec."""
    label = "system_u:system_r:container_t:s0:c1,c2"
    process = {"args": ["/bin/sh", "-c", "sleep 100"]}
    spec = {"process": {**process, "selinuxLabel": label}}
    with pytest.raises(AgentError) as caught:
        await life.containers.create(bed.request(spec=json.dumps(spec).encode()))
    assert caught.value.reason is Reason.NOT_SUPPORTED
    assert (bed.crun.calls, bed.left()) == ([], {})
    await life.containers.create(bed.request("sleep 100"))
    await life.containers.start("c1")
    with pytest.raises(AgentError) as caught:
        await life.processes.exec(bed.exec_request("exit 0", selinuxLabel=label))
    assert caught.value.reason is Reason.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("number", "code", "reason", "words"),
    [
        (errno.ELOOP, Code.FAILED_PRECONDITION, Reason.MOUNT_REFUSED, "circle"),
        (errno.EROFS, Code.FAILED_PRECONDITION, Reason.MOUNT_REFUSED, "read-only"),
        (errno.ENOTDIR, Code.FAILED_PRECONDITION, Reason.MOUNT_REFUSED, "directory"),
        (errno.EBUSY, Code.FAILED_PRECONDITION, Reason.MOUNT_REFUSED, "root itself"),
        (errno.ENOSPC, Code.FAILED_PRECONDITION, Reason.MOUNT_REFUSED, "No space"),
        (errno.EXDEV, Code.PERMISSION_DENIED, Reason.LEADS_OUTSIDE, "/proc"),
    ],
)
async def test_a_target_that_cannot_be_made_is_named(
    bed: Bed, life: Life, number: int, code: Code, reason: Reason, words: str
) -> None:
    bed.noted.targets_refused = OSError(number, "no", "/var/run/x")
    with pytest.raises(AgentError, match=words) as caught:
        await life.containers.create(bed.request())
    assert (caught.value.code, caught.value.reason) == (code, reason)
    assert caught.value.fields["target"] == "/var/run/x"
    assert "/var/run/x" in caught.value.message
    assert "create" not in bed.crun.operations()
    assert bed.left() == {}


async def test_a_root_given_as_a_path_is_mounted_where_only_the_agent_may_change_it(
    bed: Bed, life: Life
) -> None:
    """A path in a storage could be led elsewhere between a check and the runtime's use."""
    await life.containers.create(bed.request())
    ((target, call),) = bed.noted.mounts
    assert call == BindMount(source=Location(root=str(bed.root)), recursive=True)
    config = life.containers.table.container("c1").bundle.config()
    assert config["root"]["path"] == target == f"{bed.top}/bundles/c1/rootfs"
    life = await bed.restart(life)
    await life.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_sources_in_a_storage_are_resolved_inside_it(bed: Bed, life: Life) -> None:
    """Else another container could put a link to the guest's files there meanwhile."""
    storages = bed.roots.storages
    sources = {
        f"{storages}/s/a/folder": Location(root=f"{storages}/s", path="a/folder"),
        f"{storages}/x/../s/file": Location(root=f"{storages}/s", path="file"),
    }
    kept = [f"{storages}/s", "/etc/hosts", f"{storages}x/s/file"]
    mounts = [
        {"destination": f"/{number}", "type": "bind", "source": source}
        for number, source in enumerate([*sources, *kept])
    ]
    spec = {"process": {"args": ["/bin/sh"]}, "mounts": mounts}
    await life.containers.create(bed.request(spec=json.dumps(spec).encode()))
    config = life.containers.table.container("c1").bundle.config()
    places = [f"{bed.top}/bundles/c1/sources/{number}" for number in range(2)]
    assert [mount["source"] for mount in config["mounts"]] == [*places, *kept]
    assert bed.noted.mounts[1:] == [
        (place, BindMount(source=location, recursive=True))
        for place, location in zip(places, sources.values(), strict=True)
    ]
    await life.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_a_root_that_is_led_elsewhere_meanwhile_is_refused(bed: Bed, life: Life) -> None:
    bed.noted.fail = {"rootfs"}
    with pytest.raises(AgentError, match="for a root") as caught:
        await life.containers.create(bed.request())
    assert caught.value.reason is Reason.MOUNT_REFUSED
    assert "create" not in bed.crun.operations()


async def test_a_failed_start_leaves_it_created(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request("exit 3"))
    bed.crun.plan(fail={"start": "no luck"})
    with pytest.raises(AgentError, match="no luck"):
        await life.containers.start("c1")
    assert life.containers.get("c1").state is ContainerState.CREATED
    bed.crun.plan(fail={})
    await life.containers.start("c1")
    assert (await life.wait("c1")).code == 3


async def test_a_start_of_what_is_killed_meanwhile_fails_at_once(
    bed: Bed, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime waits for the other end of a FIFO, which nobody will open any more."""
    pid = (await life.containers.create(bed.request("sleep 100"))).pid
    with monkeypatch.context() as patch:
        patch.setattr(Container, "require", lambda *_: os.kill(pid, signal.SIGKILL))
        with pytest.raises(AgentError, match="ended before") as caught:
            await life.containers.start("c1", 300)
    assert caught.value.reason is Reason.WRONG_STATE
    # It was never started, however often that is asked for.
    with pytest.raises(AgentError, match="is stopped, not created"):
        await life.containers.start("c1", 300)
    assert life.containers.get("c1").state is ContainerState.STOPPED
    assert (await life.wait("c1")).signal == signal.SIGKILL
    await life.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_the_runtime_may_have_more_to_do_than_a_short_process(bed: Bed, life: Life) -> None:
    """Hooks, once the process runs; it is not cut off because that has ended."""
    await life.containers.create(bed.request("exit 3"))
    bed.crun.plan(hang=["start"])
    starting = asyncio.create_task(life.containers.start("c1", 2.0))
    assert (await life.wait("c1")).code == 3
    with pytest.raises(AgentError) as caught:
        await starting
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT


async def hang_in_start(bed: Bed, life: Life) -> asyncio.Task[Any]:
    await life.containers.create(bed.request("sleep 100"))
    bed.crun.plan(hang=["start"])
    starting = asyncio.create_task(life.containers.start("c1", 300))
    await until(lambda: bed.crun.operations() == ["create", "start"])
    return starting


async def test_a_start_whose_caller_leaves_is_given_up(bed: Bed, life: Life) -> None:
    starting = await hang_in_start(bed, life)
    await until(lambda: not life.context.runtime.is_held("c1"))
    starting.cancel()
    await asyncio.wait([starting])
    # Whether it took effect is known then.
    assert (await life.containers.start("c1", 20)).state is ContainerState.RUNNING
    assert bed.crun.operations() == ["create", "start", "state"]


async def test_an_exec_whose_caller_leaves_is_taken_back(bed: Bed, running: Life) -> None:
    bed.crun.plan(hang=["exec"])
    request = replace(bed.exec_request("sleep 100"), timeout=300)
    execing = asyncio.create_task(running.processes.exec(request))
    await until(lambda: "exec" in bed.crun.operations())
    execing.cancel()
    await asyncio.wait([execing])
    bed.crun.plan(hang=[])
    # As the next turn, so that the first one's end is over.
    assert await running.processes.exec(request) > 0
    assert bed.crun.operations().count("exec") == 2


async def test_an_exec_that_is_cut_off_before_its_pid_is_told_is_killed(
    bed: Bed, running: Life
) -> None:
    """It is the program that was asked for by then, and only its pipes tell whose it is."""
    group = running.containers.table.container("c1").cgroup
    before = set(group.members())
    bed.crun.plan(hang=["exec"], skip=["pid-file"])
    request = replace(bed.exec_request("exec sleep 100"), timeout=300)
    execing = asyncio.create_task(running.processes.exec(request))
    await until(lambda: set(group.members()) > before)
    execing.cancel()
    await asyncio.wait([execing])
    await until(lambda: set(group.members()) == before)


async def test_an_update_whose_caller_leaves_is_taken_back(bed: Bed, running: Life) -> None:
    group = running.containers.table.container("c1").cgroup
    group.set_limits({"memory.max": "4096"})
    bed.crun.plan(hang=["update"])
    change = ContainerUpdate(
        id="c1", resources=b'{"memory": {"limit": 8192}}', exclusive_cpus=1, timeout=300
    )
    updating = asyncio.create_task(running.containers.update(change))
    await until(lambda: "update" in bed.crun.operations())
    updating.cancel()
    await asyncio.wait([updating])
    bed.crun.plan(hang=[])
    await running.containers.update(ContainerUpdate(id="c1"))
    record = running.containers.table.container("c1").record
    assert (group.limits()["memory.max"], record.exclusive_cpus) == ("4096", 0)


async def test_a_pause_whose_caller_leaves_ends(
    bed: Bed, running: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeGroup, "slow", True)
    pausing = asyncio.create_task(running.containers.pause("c1", 300))
    await until(lambda: running.containers.get("c1").state is ContainerState.PAUSED)
    pausing.cancel()
    await asyncio.wait([pausing])
    resumed = await running.containers.resume("c1")
    assert resumed.state is ContainerState.RUNNING
    assert running.events.published[-1] == ("container_resumed", "c1", {"why": "failed"})


async def test_a_resume_whose_caller_leaves_has_told_the_kernel(
    bed: Bed, running: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.containers.pause("c1")
    monkeypatch.setattr(FakeGroup, "slow", True)
    resuming = asyncio.create_task(running.containers.resume("c1", 300))
    await until(lambda: running.containers.get("c1").state is ContainerState.RUNNING)
    resuming.cancel()
    await asyncio.wait([resuming])
    await running.containers.update(ContainerUpdate(id="c1"))
    assert running.events.published[-1] == ("container_resumed", "c1", {"why": "asked"})


async def test_a_removal_stops_what_hangs_before_it(bed: Bed, life: Life) -> None:
    starting = await hang_in_start(bed, life)
    waiting = asyncio.create_task(life.containers.pause("c1", 300))
    await asyncio.sleep(0)
    await life.containers.remove("c1", 0, 20)
    for task in (starting, waiting):
        with pytest.raises(AgentError, match="is being removed") as caught:
            await task
        assert caught.value.reason is Reason.WRONG_STATE
    assert bed.left() == {}


async def test_a_removal_stops_an_exec_that_hangs(bed: Bed, running: Life) -> None:
    bed.crun.plan(hang=["exec"])
    execing = asyncio.create_task(
        running.processes.exec(replace(bed.exec_request("sleep 100"), timeout=300))
    )
    await until(lambda: "exec" in bed.crun.operations())
    await running.containers.remove("c1", 0, 20)
    with pytest.raises(AgentError):
        await execing
    assert bed.left() == {}


async def test_a_removal_does_not_stop_another(bed: Bed, running: Life) -> None:
    assert (await anext(running.processes.output(C1, {Stream.STDOUT: 0}))) is not None
    first = asyncio.create_task(running.containers.remove("c1", 10, 20))
    await until(lambda: running.containers.table.container("c1").record.phase is Phase.REMOVING)
    with pytest.raises(AgentError) as caught:
        await running.containers.remove("c1", 0, 20)
    assert caught.value.reason is Reason.UNKNOWN_CONTAINER
    await first
    assert (await running.wait("c1")).code == 6


async def test_remove_gives_the_grace_and_then_kills(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request("trap 'exit 7' TERM; echo up; sleep 100 & wait"))
    await life.containers.start("c1")
    chunk = await anext(life.processes.output(C1, {Stream.STDOUT: 0}))
    assert chunk == OutputChunk(stream=Stream.STDOUT, offset=0, data=b"up\n")
    await life.containers.remove("c1", 10, 20)
    assert (await life.wait("c1")).code == 7


async def test_remove_kills_what_ignores_the_request(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request("trap '' TERM; echo up; read line"))
    await life.containers.start("c1")
    chunk = await anext(life.processes.output(C1, {Stream.STDOUT: 0}))
    assert chunk == OutputChunk(stream=Stream.STDOUT, offset=0, data=b"up\n")
    await life.containers.remove("c1", 0.05, 10)
    assert (await life.wait("c1")).code == 137
    assert bed.left() == {}


async def test_a_created_container_can_be_removed(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request())
    await life.containers.remove("c1", 0, 10)
    assert (await life.wait("c1")).code == 137
    assert bed.left() == {}


async def test_a_removal_that_fails_can_be_asked_for_again(
    bed: Bed, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    await life.containers.create(bed.request("sleep 100"))
    monkeypatch.setattr(FakeGroup, "stuck", True)
    with pytest.raises(AgentError) as caught:
        await life.containers.remove("c1", 0, 10)
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    assert [each.id for each in life.containers.list()] == ["c1"]
    with pytest.raises(AgentError, match="not removed whole"):
        await life.containers.create(bed.request("sleep 100"))
    monkeypatch.setattr(FakeGroup, "stuck", False)
    await life.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_all_are_removed_at_once(bed: Bed, life: Life) -> None:
    for number in range(3):
        await life.containers.create(bed.request("sleep 100", id=f"c{number}"))
    assert await life.containers.remove_all() == ()
    assert bed.left() == {}


async def test_eight_rounds_leave_nothing(bed: Bed, life: Life) -> None:
    for number in range(8):
        bed.crun.plan(fail={"create": "no luck"} if number % 4 == 0 else {})
        try:
            await life.containers.create(bed.request("exit 1"))
            await life.containers.start("c1")
            await life.wait("c1")
            await life.containers.remove("c1", 0, 10)
        except AgentError:
            assert number % 4 == 0
        assert bed.left() == {}


@pytest.fixture
async def running(bed: Bed, life: Life) -> Life:
    await life.containers.create(bed.request("trap 'exit 6' TERM; echo up; read line"))
    await life.containers.start("c1")
    return life


async def test_a_pause_and_its_end_are_told_once(bed: Bed, running: Life) -> None:
    for _ in range(2):
        paused = await running.containers.pause("c1")
        assert paused.state is ContainerState.PAUSED
    for _ in range(2):
        assert (await running.containers.resume("c1")).state is ContainerState.RUNNING
    told = [each for each in running.events.published if each[0].endswith(("paused", "resumed"))]
    assert told == [
        ("container_paused", "c1", {}),
        ("container_resumed", "c1", {"why": "asked"}),
    ]


async def test_what_needs_it_running_is_refused_with_the_state(bed: Bed, running: Life) -> None:
    """An exec in a paused container would hang until it is resumed."""
    await running.containers.pause("c1")
    for call in (
        running.containers.start("c1"),
        running.containers.update(ContainerUpdate(id="c1", exclusive_cpus=1)),
        running.processes.exec(bed.exec_request("exit 0")),
    ):
        with pytest.raises(AgentError) as caught:
            await call
        assert caught.value.reason is Reason.WRONG_STATE
        assert caught.value.fields["state"] == "paused"
    assert bed.crun.operations() == ["create", "start"]


async def test_a_paused_one_is_resumed_to_be_removed(bed: Bed, running: Life) -> None:
    await running.containers.pause("c1")
    await running.containers.remove("c1", 10, 20)
    assert bed.left() == {}
    assert ("container_resumed", "c1", {"why": "removed"}) in running.events.published


async def test_one_that_does_not_stop_is_resumed(
    bed: Bed, running: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeGroup, "restless", True)
    with pytest.raises(AgentError) as caught:
        await running.containers.pause("c1")
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    assert running.containers.get("c1").state is ContainerState.RUNNING
    assert running.events.published[-1] == ("container_resumed", "c1", {"why": "failed"})


@pytest.mark.parametrize("state", [ContainerState.CREATED, ContainerState.STOPPED])
async def test_only_one_that_runs_can_be_paused(
    bed: Bed, life: Life, state: ContainerState
) -> None:
    await life.containers.create(bed.request("exit 0"))
    if state is ContainerState.STOPPED:
        await life.containers.start("c1")
        await life.wait("c1")
    for call in (life.containers.pause("c1"), life.containers.resume("c1")):
        with pytest.raises(AgentError) as caught:
            await call
        assert caught.value.reason is Reason.WRONG_STATE
        assert caught.value.fields["state"] == state


async def test_a_status_says_when_and_what(bed: Bed, life: Life) -> None:
    created = await life.containers.create(bed.request("exit 0" + " " * 2000, terminal=True))
    assert (created.started, created.terminal, created.cgroup) == (0.0, True, "/pods/s/c1")
    assert created.arguments[:2] == ("/bin/sh", "-c")
    assert sum(len(each) for each in created.arguments) == 1024
    started = await life.containers.start("c1")
    assert 0 < created.created <= started.started


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a", "", "b"], ("a", "", "b")),
        (["x" * 1023, "yz", "w"], ("x" * 1023, "y")),
        (["\u4e16" * 400], ("\u4e16" * 341,)),
        (["a\ud800b"], ("a?b",)),
        ([], ()),
    ],
)
def test_arguments_are_cut_to_what_a_status_has_room_for(
    arguments: list[str], expected: tuple[str, ...]
) -> None:
    assert shown(arguments) == expected


async def test_pressure_is_watched_from_its_creation_to_its_removal(bed: Bed, life: Life) -> None:
    one = PressureThreshold(resource=PressureResource.CPU, stall=1000, window=1_000_000)
    two = replace(one, resource=PressureResource.IO)
    await life.containers.create(bed.request("sleep 100", pressure=(one,)))
    assert bed.pressure.watched == {"c1": (one,)}
    await life.containers.update(ContainerUpdate(id="c1", pressure=(one, two)))
    bed.pressure.watched.clear()
    heir = await bed.restart(life)
    assert bed.pressure.watched == {"c1": (one, two)}
    await heir.containers.update(ContainerUpdate(id="c1", pressure=()))
    assert bed.pressure.watched == {}
    await heir.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_a_threshold_that_is_refused_takes_the_container_back(bed: Bed, life: Life) -> None:
    bed.pressure.refused = wrong_state("no PSI here", reason=Reason.NOT_SUPPORTED)
    one = PressureThreshold(resource=PressureResource.CPU, stall=1000, window=1_000_000)
    with pytest.raises(AgentError) as caught:
        await life.containers.create(bed.request("sleep 100", pressure=(one,)))
    assert caught.value.reason is Reason.NOT_SUPPORTED
    assert bed.left() == {}


async def test_namespaces_of_the_sandbox_are_joined(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request("exit 0", shared_namespaces=("ipc", "pid")))
    config = life.containers.table.container("c1").bundle.config()
    joined = {each["type"]: each.get("path") for each in config["linux"]["namespaces"]}
    assert (joined["pid"], joined["ipc"]) == ("/namespaces/pid", "/namespaces/ipc")
    assert bed.namespaces.open == 0


async def test_one_that_waits_for_its_turn_too_long_is_not_begun(bed: Bed, life: Life) -> None:
    """What hangs is bounded by its own deadline, who waits behind it by another."""
    bed.crun.plan(hang=["create"])
    hanging = asyncio.create_task(life.containers.create(bed.request("sleep 100", timeout=4.0)))
    await until(lambda: bed.crun.operations() == ["create"])
    with pytest.raises(AgentError) as caught:
        await life.containers.create(bed.request("sleep 200", timeout=0.05))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    assert not hanging.done()
    # Another container does not notice.
    bed.crun.plan(hang=[])
    await life.containers.create(bed.request("exit 0", id="c2"))
    await life.containers.remove("c2", 0, 10)
    with pytest.raises(AgentError):
        await hanging
    assert (bed.crun.operations().count("create"), bed.left()) == (2, {})


@pytest.mark.parametrize(
    ("gone", "cause", "why"),
    [
        (False, EndCause.KILLED_BY_AGENT, "its container was removed"),
        (True, EndCause.SANDBOX_GONE, "the sandbox was destroyed"),
    ],
)
async def test_why_the_agent_ended_it(
    bed: Bed, running: Life, gone: bool, cause: EndCause, why: str
) -> None:
    await running.processes.exec(bed.exec_request("exec sleep 100"))
    await running.containers.remove("c1", 0, 10, sandbox_gone=gone)
    for exec_id in ("", "e1"):
        end = await running.wait("c1", exec_id)
        assert (end.signal, end.cause, end.why) == (9, cause, why)


async def test_one_that_ends_when_it_is_asked_to_has_exited(bed: Bed, running: Life) -> None:
    assert (await anext(running.processes.output(C1, {Stream.STDOUT: 0}))) is not None
    await running.containers.remove("c1", 10, 20)
    end = await running.wait("c1")
    assert (end.code, end.cause, end.why) == (6, EndCause.EXITED, "")


async def test_the_event_of_an_end_tells_all_of_it(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request("echo out; echo err >&2; kill -KILL $$"))
    bed.oom.kills[life.containers.get("c1").pid] = OutOfMemory(victim="sh", pid=5, limit=9)
    await life.containers.start("c1")
    end = await life.wait("c1")
    assert (end.cause, end.stdout_bytes, end.stderr_bytes) == (EndCause.OUT_OF_MEMORY, 4, 4)
    details = next(d for kind, _, d in life.events.published if kind == "process_exited")
    assert end_of(details, end.at) == end
    assert details["victim"] == "sh"


async def test_an_end_is_told_once_its_output_is_there(
    bed: Bed, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told twice when a start ended after the exit and before the last output."""
    await life.containers.create(bed.request("exit 3"))
    first = life.containers.table.container("c1").processes[""]
    gate, ended = asyncio.Event(), first.streams.ended

    async def late() -> tuple[int, int]:
        await gate.wait()
        return await ended()

    monkeypatch.setattr(first.streams, "ended", late)
    bed.crun.plan(hang=["start"])
    starting = asyncio.create_task(life.containers.start("c1", 300))
    await until(lambda: first.exit is not None)
    starting.cancel()
    await asyncio.wait([starting])
    assert (await life.containers.start("c1")).state is ContainerState.STOPPED
    gate.set()
    await life.wait("c1")
    assert life.events.kinds() == ["container_created", "process_exited"]


def test_an_end_of_which_little_is_known() -> None:
    end = ProcessExit(code=3, at=1.5)
    assert details_of(end) == {"code": "3", "signal": "0"}
    assert end_of(details_of(end), 1.5) == end
    dumped = ProcessExit(code=139, signal=11, core_dumped=True, cause=EndCause.SIGNALLED, why="x")
    assert end_of(details_of(dumped), 0.0) == dumped


@pytest.mark.parametrize("gone", [False, True])
async def test_the_sandboxs_group_goes_with_its_last_container(
    bed: Bed, running: Life, gone: bool
) -> None:
    group = bed.roots.cgroup / "pods/s"
    (group / "c2").mkdir(parents=True)
    await running.containers.remove("c1", 0, 10, sandbox_gone=True)
    assert group.exists()
    (group / "c2").rmdir()
    await running.containers.create(bed.request("exit 0"))
    await running.containers.remove("c1", 0, 10, sandbox_gone=gone)
    assert group.exists() is not gone
