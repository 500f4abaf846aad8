"""`kill -9` of the agent, at every point: containers run on, exits and bytes come out right."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.life import EndCause
from agent.core.model import (
    ContainerState,
    DeviceGrant,
    OutputChunk,
    ProcessExit,
    ProcessRef,
    StorageMount,
    Stream,
)
from agent.handlers.runtime import process as process_module
from agent.handlers.runtime.departed import Departed
from tests.fakes.bed import FakeBed as Bed
from tests.fakes.bed import Life
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.containers]

C1 = ProcessRef(container_id="c1")
READ = "echo up; read line; echo got $line; exit 9"


def change_state(bed: Bed, kind: str, key: str, **changes: Any) -> None:
    """Make the saved state what it was at an earlier point."""
    path = bed.roots.state / kind / f"{key}.json"
    content = json.loads(path.read_text())
    content["data"].update(changes)
    path.write_text(json.dumps(content))


@pytest.fixture
async def running(bed: Bed, life: Life) -> Life:
    await life.containers.create(bed.request(READ))
    await life.containers.start("c1")
    return life


async def test_an_exit_after_the_restart(bed: Bed, running: Life) -> None:
    before = running.containers.get("c1")
    heir = await bed.restart(running)
    assert heir.containers.get("c1") == before
    await heir.processes.write_input(C1, 0, b"x\n")
    assert (await heir.wait("c1")).code == 9
    assert await heir.output("c1") == b"up\ngot x\n"
    assert heir.events.kinds() == ["process_exited"]
    await heir.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_an_exit_while_no_agent_was_there(bed: Bed, running: Life) -> None:
    await running.processes.write_input(C1, 0, b"y\n")
    bed.pid1.hold()
    await running.end()
    bed.pid1.release()
    await until(lambda: bed.pid1.journal)
    heir = await bed.start()
    assert (await heir.wait("c1")).code == 9
    assert heir.containers.get("c1").state is ContainerState.STOPPED
    assert await heir.output("c1") == b"up\ngot y\n"


async def test_an_exit_before_the_restart_is_not_told_twice(bed: Bed, running: Life) -> None:
    await running.processes.close_input(C1, 0)
    await running.wait("c1")
    heir = await bed.restart(running)
    assert (await heir.wait("c1")).code == 9
    assert heir.events.kinds() == []


async def test_an_exec_goes_on(bed: Bed, running: Life) -> None:
    await running.processes.exec(bed.exec_request("read line; exit 6"))
    heir = await bed.restart(running)
    e1 = ProcessRef(container_id="c1", exec_id="e1")
    await heir.processes.close_input(e1, 0)
    assert (await heir.wait("c1", "e1")).code == 6


async def test_the_same_requests_are_answered_by_the_next_agent(bed: Bed, running: Life) -> None:
    pid = await running.processes.exec(bed.exec_request("sleep 100"))
    heir = await bed.restart(running)
    assert await heir.containers.create(bed.request(READ)) == heir.containers.get("c1")
    assert await heir.processes.exec(bed.exec_request("sleep 100")) == pid
    with pytest.raises(AgentError) as caught:
        await heir.containers.create(bed.request("other"))
    assert caught.value.reason is Reason.ID_IN_USE


async def test_an_exec_that_ended_before_its_pid_was_saved(bed: Bed, running: Life) -> None:
    """Its maker died between the runtime's answer and the note of the pid."""
    pid = await running.processes.exec(bed.exec_request("exit 8"))
    await running.wait("c1", "e1")
    await running.end()
    change_state(bed, "processes", "c1:e1", pid=0, exit=None)
    (bed.roots.bundles / "c1/exec-e1.pid").write_text(str(pid))
    heir = await bed.start()
    assert (await heir.wait("c1", "e1")).code == 8
    assert not (bed.roots.bundles / "c1/exec-e1.pid").exists()


async def test_an_exec_that_the_runtime_had_not_made_is_taken_back(bed: Bed, running: Life) -> None:
    before = bed.left()
    await running.processes.exec(bed.exec_request("sleep 100"))
    await running.end()
    change_state(bed, "processes", "c1:e1", pid=0)
    heir = await bed.start()
    assert bed.left() == before
    with pytest.raises(AgentError) as caught:
        await heir.wait("c1", "e1")
    assert caught.value.reason is Reason.UNKNOWN_PROCESS


async def test_a_create_that_was_half_done_is_taken_back(bed: Bed, life: Life) -> None:
    request = replace(
        bed.request("sleep 100"),
        writable_layer=True,
        storages=(StorageMount(storage_id="data", destination="/data"),),
        devices=(DeviceGrant(device_id="disk"),),
    )
    await life.containers.create(request)
    await life.end()
    change_state(bed, "containers", "c1", phase="creating")
    change_state(bed, "processes", "c1:-", pid=0)
    heir = await bed.start()
    await heir.containers.turns.all_done()
    assert (heir.containers.list(), bed.left()) == ((), {})
    assert (await heir.containers.create(request)).state is ContainerState.CREATED


async def test_a_removal_that_was_half_done_is_finished(bed: Bed, running: Life) -> None:
    await running.end()
    change_state(bed, "containers", "c1", phase="removing")
    heir = await bed.start()
    await heir.containers.turns.all_done()
    assert (heir.containers.list(), bed.left()) == ((), {})


@pytest.mark.parametrize("started", [False, True])
async def test_a_start_that_was_cut_off_is_asked_of_the_runtime(
    bed: Bed, life: Life, started: bool
) -> None:
    await life.containers.create(bed.request(READ))
    if started:
        await life.containers.start("c1")
    await life.end()
    change_state(bed, "containers", "c1", phase="starting")
    heir = await bed.start()
    expected = ContainerState.RUNNING if started else ContainerState.CREATED
    assert heir.containers.get("c1").state is expected
    await heir.containers.start("c1")
    await heir.processes.close_input(C1, 0)
    assert (await heir.wait("c1")).code == 9


async def test_devices_and_storages_are_held_again(bed: Bed, life: Life) -> None:
    request = replace(
        bed.request("sleep 100"),
        storages=(StorageMount(storage_id="data", destination="/data"),),
        devices=(DeviceGrant(device_id="disk"),),
    )
    await life.containers.create(request)
    await life.end()
    bed.devices.users.clear()
    bed.storages.users.add(("data", "of nobody"))
    heir = await bed.start()
    assert bed.devices.users == {"container c1"}
    assert bed.storages.users == {("data", "c1")}
    await heir.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_streams_of_nobody_are_swept(bed: Bed, running: Life) -> None:
    await running.end()
    for kind, key in (("containers", "c1"), ("processes", "c1:-")):
        (bed.roots.state / kind / f"{key}.json").unlink()
    heir = await bed.start()
    await until(lambda: heir.containers.list() == ())
    assert bed.pid1.store == {}
    assert list(bed.roots.spools.iterdir()) == []


async def test_output_that_was_read_half_goes_on(bed: Bed, life: Life) -> None:
    script = "head -c 500000 /dev/zero | tr '\\0' x; read line; echo END"
    await life.containers.create(bed.request(script))
    await life.containers.start("c1")
    had = 0
    async for chunk in life.processes.output(C1, {Stream.STDOUT: 0}):
        assert isinstance(chunk, OutputChunk)
        had = chunk.offset + len(chunk.data)
        if had > 200_000:
            break
    heir = await bed.restart(life)
    await heir.processes.close_input(C1, 0)
    pieces = heir.processes.output(C1, {Stream.STDOUT: had})
    rest = b"".join([each.data async for each in pieces if isinstance(each, OutputChunk)])
    assert len(rest) == 500_004 - had
    assert rest.endswith(b"xEND\n")


async def test_a_terminal_is_taken_over(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request(READ, terminal=True))
    await life.containers.start("c1")
    heir = await bed.restart(life)
    await heir.processes.write_input(C1, 0, b"z\n")
    assert (await heir.wait("c1")).code == 9
    assert b"got z\r\n" in await heir.output("c1")


async def test_an_exit_that_the_journal_lost(
    bed: Bed, running: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More exits than the journal keeps fell while no agent was there: nobody waits for ever."""
    monkeypatch.setattr(process_module, "LOST_AFTER", 0.01)
    await running.processes.close_input(C1, 0)
    await running.wait("c1")
    await running.end()
    change_state(bed, "processes", "c1:-", exit=None)
    bed.pid1.journal.clear()
    heir = await bed.start()
    assert (await heir.wait("c1")).code == 255


async def test_a_container_whose_record_is_lost_is_ended_and_removed(
    bed: Bed, running: Life
) -> None:
    """Nobody could see it or end it, and its id could never be used again."""
    await running.end()
    (bed.roots.state / "containers" / "c1.json").unlink()
    heir = await bed.start()
    await until(lambda: bed.left() == {})
    await heir.containers.create(bed.request("exit 3"))
    await heir.containers.start("c1")
    assert (await heir.wait("c1")).code == 3


async def test_a_record_under_another_key_is_not_believed(bed: Bed, running: Life) -> None:
    """Its container would be listed for good under an id that no request can name."""
    await running.end()
    change_state(bed, "containers", "c1", id="../../x")
    heir = await bed.start()
    await until(lambda: heir.containers.list() == ())


async def test_an_end_is_remembered_for_a_minute_by_the_next_agent_too(
    bed: Bed, running: Life
) -> None:
    await running.processes.close_input(C1, 0)
    end = await running.wait("c1")
    await running.containers.remove("c1", 0, 10)
    heir = await bed.restart(running)
    assert await heir.wait("c1") == end
    await heir.end()
    bed.lives.remove(heir)
    change_state(bed, "departed", "c1:-", until=0.0)
    late = await bed.start()
    with pytest.raises(AgentError) as caught:
        await late.wait("c1")
    assert caught.value.reason is Reason.UNKNOWN_CONTAINER
    assert not (bed.roots.state / "departed/c1:-.json").exists()


async def test_remembered_ends_are_bounded_and_the_oldest_goes_first(bed: Bed, life: Life) -> None:
    departed = Departed(life.context.state, limit=2)
    refs = [ProcessRef(container_id=f"c{number}") for number in range(3)]
    for number, ref in enumerate(refs):
        departed.add(ref, ProcessExit(code=number))
    assert [departed.find(ref) is not None for ref in refs] == [False, True, True]
    later = Departed(life.context.state, limit=2)
    later.restore()
    assert later.find(refs[2]) == ProcessExit(code=2)
    assert later.find(refs[0]) is None


async def test_ends_of_another_shape_are_dropped(bed: Bed, life: Life) -> None:
    life.context.state.save("departed", "x:-", {"until": 1e12, "exit": {"kode": 1}, "process": {}})
    departed = Departed(life.context.state)
    departed.restore()
    assert not (bed.roots.state / "departed/x:-.json").exists()


async def test_that_it_is_paused_is_seen_by_the_next_agent(bed: Bed, running: Life) -> None:
    await running.containers.pause("c1")
    heir = await bed.restart(running)
    assert heir.containers.get("c1").state is ContainerState.PAUSED
    assert (await heir.containers.resume("c1")).state is ContainerState.RUNNING


async def test_why_it_was_ended_is_known_to_the_next_agent(bed: Bed, running: Life) -> None:
    """The agent dies between its signal and the end."""
    bed.pid1.hold()
    await running.processes.signal(C1, 9)
    await running.end()
    bed.pid1.release()
    heir = await bed.start()
    end = await heir.wait("c1")
    assert (end.cause, end.why) == (EndCause.KILLED_BY_AGENT, "SIGKILL was asked for")


async def test_an_end_whose_output_was_not_whole_yet_is_told_by_the_next_agent(
    bed: Bed, running: Life
) -> None:
    """The agent died after it had saved the exit and before it knew how much was written."""
    await running.processes.close_input(C1, 0)
    end = await running.wait("c1")
    await running.end()
    change = {"exit": {"code": 9, "signal": 0, "at": end.at, "cause": "exited"}}
    change_state(bed, "processes", "c1:-", **change)
    heir = await bed.start()
    assert await heir.wait("c1") == end
    assert heir.events.kinds() == ["process_exited"]


async def test_records_of_an_agent_of_before_are_understood(bed: Bed, running: Life) -> None:
    """What they lack is as it was then."""
    await running.end()
    for kind, key, names in (
        ("containers", "c1", ("created", "started", "arguments", "terminal", "pressure")),
        ("processes", "c1:-", ("streams", "sent")),
    ):
        path = bed.roots.state / kind / f"{key}.json"
        content = json.loads(path.read_text())
        for name in names:
            del content["data"][name]
        path.write_text(json.dumps(content))
    heir = await bed.start()
    status = heir.containers.get("c1")
    assert (status.state, status.created) == (ContainerState.RUNNING, 0.0)
    await heir.processes.close_input(C1, 0)
    assert (await heir.wait("c1")).code == 9
