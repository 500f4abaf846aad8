"""Attachments of every class whose n-th call fails, for every n: nothing is left of them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.model import StorageRequest
from agent.handlers.storage import CLASSES
from agent.handlers.storage.classes import ClassTable
from tests.fakes.failing_files import Fault
from tests.fakes.fault_bench import CASES, FaultBench, fault_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]

ERRNOS = [errno.EIO, errno.ENOSPC, errno.EBUSY]
MOST = 100


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FaultBench]:
    async with fault_bench(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture(params=CASES)
async def wanted(request: pytest.FixtureRequest, lab: FaultBench) -> StorageRequest:
    return await lab.prepare(CASES[request.param])


def test_every_class_has_a_case() -> None:
    table = ClassTable(CLASSES)
    assert {table.of(case.source).name for case in CASES.values()} == {
        each.name for each in CLASSES
    }


def same(after: dict[str, object], before: dict[str, object], when: object) -> None:
    """Nothing but what differs is told."""
    pairs = ((name, before[name], after[name]) for name in before)
    found = {name: differences(old, new) for name, old, new in pairs if old != new}
    assert not found, (found, when)


def differences(old: object, new: object) -> object:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"{old} -> {new}"
    return {
        key: (old.get(key), new.get(key)) for key in {*old, *new} if old.get(key) != new.get(key)
    }


async def attempt(lab: FaultBench, wanted: StorageRequest) -> AgentError | None:
    """None where it is attached."""
    lab.programs.formatted.clear()
    try:
        await lab.storages.attach(wanted)
    except AgentError as error:
        return error
    return None


async def there_and_gone(lab: FaultBench, wanted: StorageRequest) -> None:
    """What is attached goes without a trace."""
    lab.seam.arm(0)
    assert wanted.id in [each.request.id for each in lab.storages.list()]
    assert (await lab.storages.detach(wanted.id)).left == ()
    lab.remove_kept()


async def each_call_fails(
    lab: FaultBench, wanted: StorageRequest, fault: Fault, number: int = 0
) -> None:
    """One call after another; the end is an attachment without a fault."""
    before = lab.traces()
    for at in range(1, MOST):
        lab.seam.arm(at, fault, number)
        error = await attempt(lab, wanted)
        struck, calls = lab.seam.struck, list(lab.seam.calls)
        if error is None:
            await there_and_gone(lab, wanted)
        same(lab.traces(), before, (at, calls))
        assert error is None or "not_undone" not in error.fields
        if not struck:
            break
    assert error is None
    assert at > 2


@pytest.mark.parametrize("number", ERRNOS, ids=errno.errorcode.get)
async def test_a_call_that_is_refused(lab: FaultBench, wanted: StorageRequest, number: int) -> None:
    await each_call_fails(lab, wanted, Fault.REFUSED, number)


@pytest.mark.parametrize("fault", [Fault.LATE, Fault.DONE_LATE, Fault.KILLED])
async def test_a_worker_that_is_given_up(
    lab: FaultBench, wanted: StorageRequest, fault: Fault
) -> None:
    await each_call_fails(lab, wanted, fault)


async def cut_off(lab: FaultBench, wanted: StorageRequest) -> asyncio.Task[object]:
    """An attachment that is over, or has come to the call that never returns."""
    lab.programs.formatted.clear()
    attaching: asyncio.Task[object] = asyncio.create_task(lab.storages.attach(wanted))
    reached = asyncio.create_task(lab.seam.reached.wait())
    await asyncio.wait([attaching, reached], return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    await asyncio.wait([reached])
    return attaching


@pytest.mark.parametrize("fault", [Fault.LEFT, Fault.DONE_LEFT])
async def test_a_caller_that_leaves(lab: FaultBench, wanted: StorageRequest, fault: Fault) -> None:
    before = lab.traces()
    for at in range(1, MOST):
        lab.seam.arm(at, fault)
        attaching = await cut_off(lab, wanted)
        if attaching.done():
            break
        attaching.cancel()
        await asyncio.wait([attaching])
        same(lab.traces(), before, (at, lab.seam.calls))
    assert at > 2
    await there_and_gone(lab, wanted)


async def test_a_full_run_directory(lab: FaultBench, wanted: StorageRequest) -> None:
    """Nothing is made that could not be written down before."""
    before = lab.traces()
    for at in range(1, MOST):
        lab.state.writes.clear()
        lab.state.full_at = at
        error = await attempt(lab, wanted)
        if error is None:
            break
        assert error.reason is Reason.NO_SPACE
        same(lab.traces(), before, (at, lab.state.writes))
    assert at > 2
    await there_and_gone(lab, wanted)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LATE, Fault.KILLED])
async def test_a_kernel_that_refuses_everything_from_a_call_on(
    lab: FaultBench, wanted: StorageRequest, fault: Fault
) -> None:
    """What could not be taken back is told, and is in nobody's way."""
    before = lab.traces()
    for at in range(1, MOST):
        lab.seam.arm(at, fault, on=True)
        error = await attempt(lab, wanted)
        struck, calls = lab.seam.struck, list(lab.seam.calls)
        lab.seam.arm(0)
        if error is not None and lab.traces() != before:
            assert "not_undone" in error.fields, calls
            await lab.storages.attach(wanted)
            error = None
        if error is None:
            await there_and_gone(lab, wanted)
        same(lab.traces(), before, (at, calls))
        if not struck:
            break
    assert at > 2


@pytest.mark.parametrize("fault", [Fault.DEAD, Fault.DONE_DEAD])
async def test_an_agent_that_dies(lab: FaultBench, wanted: StorageRequest, fault: Fault) -> None:
    """What the next one leaves is nothing."""
    before = lab.traces()
    dead: list[asyncio.Task[object]] = []
    for at in range(1, MOST):
        lab.seam.arm(at, fault)
        attaching = await cut_off(lab, wanted)
        if attaching.done():
            break
        dead.append(attaching)
        calls = lab.seam.calls
        await lab.restart()
        same(lab.traces() | {"tasks": 0}, before | {"tasks": 0}, (at, calls))
    assert at > 2
    await there_and_gone(lab, wanted)
    for task in dead:
        task.cancel()
    await asyncio.wait(dead)
