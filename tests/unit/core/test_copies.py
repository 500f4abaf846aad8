"""Workers of copies: killed, stuck, too many of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agent.core import copies
from agent.core.copies import CopyInRules, CopyOutRules, CopyPlace, CopyWorkers
from agent.core.errors import AgentError, Code, Reason, wrong_state
from agent.linux.copyframes import Entry, EntryType, pack_part
from tests.fakes.copying import tree
from tests.fakes.copyworkers import DEAD, NAMED, STUCK
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.storage]

RULES = CopyInRules()


def place(root: Path, path: str = "") -> CopyPlace:
    return CopyPlace(root=str(root), path=path, name="storage data")


def half_a_file(path: str = "d/f") -> tuple[bytes, ...]:
    entry = Entry(path, EntryType.FILE, 0o644, os.getuid(), os.getgid(), 100)
    return pack_part(entry, 0, b"x" * 50)


async def endless(*batches: tuple[bytes, ...]) -> AsyncIterator[tuple[bytes, ...]]:
    for batch in batches:
        yield batch
    await asyncio.Event().wait()


def children() -> set[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return set(map(int, text.split()))


@pytest.fixture
async def no_worker_left() -> AsyncIterator[None]:
    before = children()
    yield
    await until(lambda: children() <= before)


@pytest.mark.usefixtures("no_worker_left")
async def test_a_worker_that_is_killed_leaves_no_temporary_file(tmp_path: Path) -> None:
    """kill -9, on a file system whose new files have a name: the next worker removes it."""
    (tmp_path / "d").mkdir()
    workers, before = CopyWorkers(argv=NAMED), children()
    copy = asyncio.create_task(workers.copy_in(place(tmp_path), RULES, endless(half_a_file())))
    await until(lambda: any((tmp_path / "d").iterdir()))
    (worker,) = children() - before
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(AgentError, match="worker ended in the middle") as raised:
        await copy
    assert raised.value.code is Code.UNAVAILABLE
    assert tree(tmp_path) == {"d": 0o755}


@pytest.mark.usefixtures("no_worker_left")
async def test_one_that_replaces_the_start_itself_neither(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    workers, before = CopyWorkers(argv=NAMED), children()
    copy = workers.copy_in(place(tmp_path, "f"), RULES, endless(half_a_file("")))
    task = asyncio.create_task(copy)
    await until(lambda: len(list(tmp_path.iterdir())) == 2)
    (worker,) = children() - before
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(AgentError):
        await task
    assert tree(tmp_path) == {"f": b"old"}


@pytest.mark.usefixtures("no_worker_left")
async def test_a_copy_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    workers = CopyWorkers(argv=NAMED)
    copy = asyncio.create_task(workers.copy_in(place(tmp_path), RULES, endless(half_a_file())))
    await until(lambda: (tmp_path / "d").exists() and any((tmp_path / "d").iterdir()))
    copy.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copy
    assert tree(tmp_path) == {"d": 0o755}


@pytest.mark.usefixtures("no_worker_left")
async def test_a_worker_that_does_not_move_is_given_up(tmp_path: Path) -> None:
    workers = CopyWorkers(argv=STUCK, patience=0.2)

    async def nothing() -> AsyncIterator[tuple[bytes, ...]]:
        return
        yield

    with pytest.raises(AgentError) as raised:
        await workers.copy_in(place(tmp_path), RULES, nothing())
    assert raised.value.reason is Reason.OPERATION_TIMED_OUT
    with pytest.raises(AgentError) as raised:
        async with aclosing(workers.copy_out(place(tmp_path), CopyOutRules())) as frames:
            await anext(frames)
    assert raised.value.reason is Reason.OPERATION_TIMED_OUT


@pytest.mark.usefixtures("no_worker_left")
async def test_a_host_that_pauses_is_not_a_worker_that_is_stuck(tmp_path: Path) -> None:
    workers = CopyWorkers(patience=1.0)
    going = asyncio.Event()

    async def slow() -> AsyncIterator[tuple[bytes, ...]]:
        yield half_a_file()
        await going.wait()
        yield pack_part(None, 0, b"y" * 50)

    copy = asyncio.create_task(workers.copy_in(place(tmp_path), RULES, slow()))
    _, waiting = await asyncio.wait({copy}, timeout=2.5)
    assert waiting
    going.set()
    assert (await copy).size == 100


@pytest.mark.usefixtures("no_worker_left")
async def test_a_worker_that_can_not_start_its_work_is_told(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="ended in the middle"):
        await CopyWorkers(argv=DEAD).copy_in(place(tmp_path), RULES, endless())


@pytest.mark.usefixtures("no_worker_left")
async def test_a_worker_that_is_dead_before_it_is_asked_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed for memory, say: send(2) on its socket is EPIPE then."""
    start = copies._Worker.start

    async def started(*arguments: Any) -> copies._Worker:
        worker = await start(*arguments)
        await worker.gone()
        return worker

    monkeypatch.setattr(copies._Worker, "start", started)
    with pytest.raises(AgentError, match="ended in the middle"):
        await CopyWorkers(argv=DEAD).copy_in(place(tmp_path), RULES, endless())


@pytest.mark.usefixtures("no_worker_left")
async def test_a_root_that_is_not_what_was_meant_is_not_written_to(tmp_path: Path) -> None:
    """The container's process ended and its number is another's."""

    def changed() -> None:
        raise wrong_state("another process")

    where = CopyPlace(root=str(tmp_path), path="", name="container c", check=changed)
    with pytest.raises(AgentError, match="another process"):
        await CopyWorkers().copy_in(where, RULES, endless(half_a_file()))
    assert tree(tmp_path) == {}


@pytest.mark.usefixtures("no_worker_left")
async def test_copies_are_limited_and_the_place_of_one_is_free_again(tmp_path: Path) -> None:
    workers = CopyWorkers(limit=1)
    first = asyncio.create_task(workers.copy_in(place(tmp_path), RULES, endless()))
    await until(lambda: workers.busy == 1)
    with pytest.raises(AgentError) as raised:
        await workers.copy_in(place(tmp_path), RULES, endless())
    assert raised.value.reason is Reason.LIMIT_REACHED
    first.cancel()
    await asyncio.wait({first})
    assert workers.busy == 0


@pytest.mark.usefixtures("no_worker_left")
async def test_what_ends_the_batches_ends_the_copy(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[tuple[bytes, ...]]:
        yield half_a_file()
        raise wrong_state("the host sent nonsense")

    with pytest.raises(AgentError, match="nonsense"):
        await CopyWorkers().copy_in(place(tmp_path), RULES, broken())
    assert tree(tmp_path) == {"d": 0o755}
