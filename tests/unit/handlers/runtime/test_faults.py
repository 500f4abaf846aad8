"""Each operation fails at each of its steps: all is as before, and the same works at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from agent.core.errors import AgentError
from agent.core.life import PressureResource, PressureThreshold
from agent.core.model import (
    ContainerState,
    ContainerUpdate,
    DeviceGrant,
    ProcessRef,
    StorageMount,
)
from tests.fakes.bed import FakeBed as Bed
from tests.fakes.container_faults import FaultyLife

pytestmark = [pytest.mark.unit, pytest.mark.containers]

THRESHOLD = PressureThreshold(resource=PressureResource.CPU, stall=1000, window=1_000_000)


@pytest.fixture
async def life(bed: Bed) -> FaultyLife:
    made = FaultyLife(bed)
    bed.lives.append(made)
    await made.begin()
    return made


async def at_every_step(
    life: FaultyLife,
    operation: Callable[[], Awaitable[object]],
    seen: Callable[[], object],
    *,
    after: bool = False,
) -> int:
    """The operation fails at its first step, its second, and so on; how many there were.

    `seen` is what a failure must leave as it was. In the end it succeeds.
    """
    before, step = seen(), 0
    while True:
        step += 1
        life.faults.arm(step, after=after)
        try:
            await operation()
        except AgentError:
            at = life.faults.calls[step - 1]
            life.faults.arm(0)
            await life.containers.turns.all_done()
            assert (at, seen()) == (at, before)
        else:
            assert not life.faults.struck, life.faults.calls
            life.faults.arm(0)
            return step - 1


@pytest.mark.parametrize("after", [False, True])
async def test_a_create(bed: Bed, life: FaultyLife, after: bool) -> None:
    request = replace(
        bed.request("exit 4"),
        writable_layer=True,
        storages=(StorageMount(storage_id="data", destination="/data"),),
        devices=(DeviceGrant(device_id="disk"),),
        exclusive_cpus=1,
        pressure=(THRESHOLD,),
        shared_namespaces=("ipc",),
    )
    steps = await at_every_step(
        life, lambda: life.containers.create(request), bed.left, after=after
    )
    assert steps > 12
    assert bed.namespaces.open == 0
    await life.containers.start("c1")
    assert (await life.wait("c1")).code == 4
    await life.containers.remove("c1", 0, 10)
    assert bed.left() == {}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_start(bed: Bed, life: FaultyLife, step: int, after: bool) -> None:
    """It may have taken effect all the same; asked for again, it has either way."""
    await life.containers.create(bed.request("read line; exit 4"))
    life.faults.arm(step, after=after)
    with pytest.raises(AgentError):
        await life.containers.start("c1")
    life.faults.arm(0)
    assert (await life.containers.start("c1")).state is ContainerState.RUNNING
    await life.processes.close_input(ProcessRef(container_id="c1"), 0)
    assert (await life.wait("c1")).code == 4
    assert life.events.kinds().count("process_exited") == 1
    await life.containers.remove("c1", 0, 10)
    assert bed.left() == {}


@pytest.mark.parametrize("terminal", [False, True])
async def test_an_exec(bed: Bed, life: FaultyLife, terminal: bool) -> None:
    await life.containers.create(bed.request("sleep 100"))
    await life.containers.start("c1")
    request = bed.exec_request("exit 5", terminal=terminal, user={"username": "app"})
    for after in (False, True):
        steps = await at_every_step(
            life, lambda: life.processes.exec(request), bed.left, after=after
        )
        assert steps > 3
        assert (await life.wait("c1", "e1")).code == 5
        await forget_exec(life)


async def forget_exec(life: FaultyLife) -> None:
    container = life.containers.table.container("c1")
    await container.processes.pop("e1").forget()


async def test_an_update(bed: Bed, life: FaultyLife) -> None:
    await life.containers.create(bed.request("sleep 100"))
    await life.containers.start("c1")
    change = ContainerUpdate(
        id="c1",
        resources=b'{"pids": {"limit": 5}}',
        devices=(DeviceGrant(device_id="disk"),),
        exclusive_cpus=1,
        pressure=(THRESHOLD,),
    )

    def seen() -> Any:
        status = life.containers.get("c1")
        return status.devices, status.exclusive_cpus, bed.devices.held, dict(bed.pressure.watched)

    assert await at_every_step(life, lambda: life.containers.update(change), seen) > 4
    assert life.containers.get("c1").state is ContainerState.RUNNING
    assert bed.pressure.watched == {"c1": (THRESHOLD,)}
