"""kill -9 of the agent: the VM lives, containers run on, exits and output arrive right."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import sandbox_pb2 as sandbox
from innkeeper.v1 import types_pb2 as types
from tests.vm.guest import PROBE, Guest, create_request

pytestmark = [pytest.mark.vm, pytest.mark.containers]


async def _kill_agent(guest: Guest) -> None:
    """Kills the agent from inside the guest and returns when a new one serves."""
    before = await guest.describe()
    killer = await guest.start(f"kill -9 {before.agent_pid}", **PROBE)
    await guest.wait(killer)
    after = await guest.describe()
    assert after.agent_pid != before.agent_pid
    assert after.agent_restarts == before.agent_restarts + 1
    assert after.boot_id == before.boot_id, "the VM itself went on"
    await guest.remove(killer)


async def test_a_container_outlives_the_agent(guest: Guest) -> None:
    """Its exit comes after the restart; its output is whole, from the first byte on."""
    name = await guest.start("echo before; read line; echo after $line; exit 42")
    await _kill_agent(guest)
    listed = await guest.containers.List(containers.ListContainersRequest())
    states = {each.id: each.state for each in listed.containers}
    assert states[name] == containers.CONTAINER_STATE_RUNNING
    call = guest.processes.Attach(timeout=60)
    ref = types.ProcessRef(container_id=name)
    await call.write(processes.AttachRequest(open=processes.OpenStreams(process=ref)))
    line = processes.InputFrame(offset=0, data=b"input\n")
    await call.write(processes.AttachRequest(input=line))
    finished = await guest.follow(ref)
    assert finished.stdout == b"before\nafter input\n"
    assert finished.code == 42
    call.cancel()
    await guest.remove(name)


async def test_an_exit_while_the_agent_is_dead_is_kept(guest: Guest) -> None:
    """The container kills the agent itself and ends at once: nobody was there to see it."""
    agent = (await guest.describe()).agent_pid
    name = await guest.start(f"kill -9 {agent}; echo gone; exit 7", **PROBE)
    exit_status = await guest.wait(name)
    assert (exit_status.code, exit_status.signal) == (7, 0)
    finished = await guest.follow(types.ProcessRef(container_id=name))
    assert finished.stdout == b"gone\n"
    await guest.remove(name)


async def test_an_exit_before_the_restart_is_still_known(guest: Guest) -> None:
    name = await guest.start("kill -TERM $$; sleep 60", process={"args": ["sh", "-c", "exit 5"]})
    assert (await guest.wait(name)).code == 5
    await _kill_agent(guest)
    assert (await guest.wait(name)).code == 5
    await guest.remove(name)


async def test_an_exec_that_ends_at_once_is_matched(guest: Guest) -> None:
    """It is gone before its pid file can be read; PID 1's journal still has it."""
    name = await guest.start("sleep 300")
    for number in range(20):
        request = processes.ExecRequest(
            container_id=name,
            exec_id=f"e{number}",
            process=json.dumps({"args": ["sh", "-c", f"exit {number}"], "cwd": "/"}).encode(),
        )
        await guest.processes.Exec(request)
        assert (await guest.wait(name, f"e{number}")).code == number
    await guest.remove(name)


async def test_signals_end_as_128_plus_their_number(guest: Guest) -> None:
    name = await guest.start("trap 'exit 3' USR1; while :; do sleep 1; done")
    ref = types.ProcessRef(container_id=name)
    await guest.processes.Signal(processes.SignalRequest(process=ref, signal=9))
    status = await guest.wait(name)
    assert (status.code, status.signal) == (128 + 9, 9)
    await guest.remove(name)


async def test_devices_storages_and_events_are_adopted(guest: Guest) -> None:
    """Numbers of events go on across agents, and say that one took over."""
    name = await guest.start("sleep 300")
    before = [event.sequence async for event in _events(guest)]
    await _kill_agent(guest)
    after = [event async for event in _events(guest)]
    numbers = [event.sequence for event in after]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] > before[-1]
    assert sandbox.EVENT_KIND_AGENT_RESTARTED in {event.kind for event in after}
    await guest.remove(name)


async def _events(guest: Guest) -> AsyncIterator[sandbox.Event]:
    """Events so far: those up to one that we cause ourselves."""
    marker = await guest.start("true")
    await guest.wait(marker)
    await guest.remove(marker)
    call = guest.sandbox.Watch(sandbox.WatchRequest(after_sequence=0), timeout=30)
    async for event in call:
        yield event
        removed = event.kind == sandbox.EVENT_KIND_CONTAINER_REMOVED
        if removed and event.subject == marker:
            call.cancel()
            return


async def test_the_same_id_can_be_used_at_once(guest: Guest) -> None:
    for code in (1, 2, 3):
        request = create_request("again", f"exit {code}")
        await guest.containers.Create(request)
        await guest.containers.Start(containers.StartContainerRequest(id="again"))
        assert (await guest.wait("again")).code == code
        await guest.remove("again")
