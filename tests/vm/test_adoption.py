"""kill -9 of the agent: the VM lives, containers run on, exits and output arrive right."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import sandbox_pb2 as sandbox
from innkeeper.v1 import types_pb2 as types
from tests.vm.guest import PROBE, Guest

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


async def test_exits_and_events_from_before_the_restart_are_still_known(guest: Guest) -> None:
    """Numbers of events go on across agents, and say that one took over."""
    name = await guest.start("exit 5")
    assert (await guest.wait(name)).code == 5
    before = [event.sequence async for event in _events(guest)]
    await _kill_agent(guest)
    assert (await guest.wait(name)).code == 5
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
