"""Many containers and many processes, and nothing left of them.

A subprocess inside a process with gRPC's threads is where others hang, and an agent that
keeps a descriptor of each process ends at a thousand of them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import types_pb2 as types
from tests.vm.attachment import STDOUT, Attachment
from tests.vm.guest import Guest, create_request
from tests.vm.observer import Observer, observing

pytestmark = [pytest.mark.vm, pytest.mark.containers, pytest.mark.timeout(1800)]

SOAK = bool(os.environ.get("INNKEEPER_SOAK"))
IN_A_ROW = 1000 if SOAK else 100
AT_ONCE = 50 if SOAK else 20
EXECS = 2000 if SOAK else 300
EXECS_AT_ONCE = 4
STREAMS = 8
ROUNDS = 4
ROOM = 1 << 20
"""Bytes: a process that grows by more in each round leaks. In one or the other the allocator
takes more, and the last thousands of events and exits are kept, some KiB for each process."""

PATIENCE = 240.0
"""Seconds for each operation: many at once take turns at an emulated guest's two CPUs."""

_NUMBERS = itertools.count(1)


@pytest_asyncio.fixture(loop_scope="session")
async def observer(guest: Guest) -> AsyncIterator[Observer]:
    async with observing(guest) as running:
        yield running


async def test_containers_in_a_row_and_at_once(guest: Guest, observer: Observer) -> None:
    """Every second one has a terminal; each says its number and ends with it."""
    await _all_at_once(guest, AT_ONCE)
    before = await observer.census()
    memory = [await _resident(guest)]
    for _ in range(ROUNDS):
        for number in range(IN_A_ROW // ROUNDS):
            assert await _came_to(guest, number) == (number % 256, f"{number}\n")
        await observer.returns_to(before)
        memory.append(await _resident(guest))
    _check_memory(memory)


async def _all_at_once(guest: Guest, count: int) -> None:
    found = await asyncio.gather(*(_came_to(guest, number) for number in range(count)))
    assert list(found) == [(number % 256, f"{number}\n") for number in range(count)]


async def _came_to(guest: Guest, number: int) -> tuple[int, str]:
    name = f"many{next(_NUMBERS)}"
    script = f"echo {number}; exit {number % 256}"
    create = create_request(name, script, process={"terminal": number % 2 == 1})
    create.timeout_seconds = PATIENCE
    await guest.containers.Create(create)
    start = containers.StartContainerRequest(id=name, timeout_seconds=PATIENCE)
    remove = containers.RemoveContainerRequest(id=name, timeout_seconds=PATIENCE)
    try:
        await guest.containers.Start(start)
        finished = await guest.follow(types.ProcessRef(container_id=name))
    finally:
        await guest.containers.Remove(remove)
    return finished.code, finished.text.replace("\r\n", "\n")


async def test_execs_beside_active_streams(guest: Guest, observer: Observer) -> None:
    """None is lost, no code is another's, and the streams go on all the while."""
    before = await observer.census()
    memory = [await _resident(guest)]
    for _ in range(ROUNDS):
        await _execs_beside_streams(guest, observer, EXECS // ROUNDS)
        await observer.returns_to(before)
        memory.append(await _resident(guest))
    _check_memory(memory)


async def _execs_beside_streams(guest: Guest, observer: Observer, count: int) -> None:
    box = await guest.start("while :; do sleep 1; done")
    async with AsyncExitStack() as stack:
        streams = [await _talking(guest, box, stack) for _ in range(STREAMS)]
        await _execs(guest, box, 2 * EXECS_AT_ONCE)
        running = await observer.census()
        heard = [len(each.data[STDOUT]) for each in streams]
        await _execs(guest, box, count)
        for stream, so_far in zip(streams, heard, strict=True):
            await stream.until(lambda stream=stream, so_far=so_far: _length(stream) > so_far)
        await observer.returns_to(running, "agent", "init")
    for stream in streams:
        _check_counting(stream.data[STDOUT])
    await guest.remove(box)


async def _talking(guest: Guest, box: str, stack: AsyncExitStack) -> Attachment:
    """A process that counts for as long as somebody listens, and its listener."""
    process = await _added(guest, box, "i=0; while :; do echo $((i += 1)); sleep 0.2; done")
    attachment = Attachment(guest.processes, timeout=None, process=process)
    stack.callback(attachment.cancel)
    return await attachment.open()


def _length(attachment: Attachment) -> int:
    return len(attachment.data[STDOUT])


def _check_counting(said: bytes) -> None:
    whole = said[: said.rfind(b"\n") + 1].split()
    assert [int(word) for word in whole] == list(range(1, len(whole) + 1))


async def _execs(guest: Guest, box: str, count: int) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            process = await _added(
                guest, box, f"echo {number}; exit {number % 256}", terminal=number % 3 == 1
            )
            finished = await guest.follow(process)
            assert (finished.code, finished.text.split()) == (number % 256, [str(number)])

    async with asyncio.TaskGroup() as group:
        for _ in range(EXECS_AT_ONCE):
            group.create_task(worker())


async def _added(guest: Guest, box: str, script: str, **process: Any) -> types.ProcessRef:
    words = {"args": ["sh", "-c", script], "cwd": "/", **process}
    exec_id = f"n{next(_NUMBERS)}"
    request = processes.ExecRequest(
        container_id=box, exec_id=exec_id, process=json.dumps(words).encode()
    )
    await guest.processes.Exec(request)
    return types.ProcessRef(container_id=box, exec_id=exec_id)


async def _resident(guest: Guest) -> dict[str, int]:
    """Of PID 1 and the agent, in bytes."""
    return {each.name: each.resident for each in (await guest.describe()).memory}


def _check_memory(rounds: list[dict[str, int]]) -> None:
    for name in ("init", "agent"):
        grown = [after[name] - before[name] for before, after in itertools.pairwise(rounds)]
        assert min(grown) < ROOM, (name, grown)


async def test_none_is_listed_that_is_removed(guest: Guest) -> None:
    """After all of that the table holds what is there."""
    listed = await guest.containers.List(containers.ListContainersRequest())
    names = {each.id for each in listed.containers}
    name = await guest.start("sleep 60")
    await guest.remove(name)
    again = await guest.containers.List(containers.ListContainersRequest())
    assert {each.id for each in again.containers} == names
