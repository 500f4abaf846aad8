"""Exits from the journal: whose they are, and that none is missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.exits import ExitWatcher, Expectation, is_within
from agent.core.pid1 import JournalEntry, Pid1Client
from tests.fakes.pid1 import FakePid1

pytestmark = [pytest.mark.unit, pytest.mark.containers]

GROUP = "/pods/s/c1"


@pytest.fixture
async def pid1(tmp_path: Path) -> AsyncIterator[FakePid1]:
    async with FakePid1(tmp_path / "init.sock") as fake:
        yield fake


@pytest.fixture
async def client(pid1: FakePid1) -> AsyncIterator[Pid1Client]:
    client = Pid1Client(pid1.path)
    yield client
    client.close()


@pytest.fixture
async def exits(client: Pid1Client) -> AsyncIterator[ExitWatcher]:
    watcher = ExitWatcher(client, retry=0)
    await watcher.start()
    yield watcher
    await watcher.stop()


def expected(pid: int = 42, after: int = 0) -> Expectation:
    return Expectation(pid=pid, cgroup=GROUP, after=after)


def entry(pid: int, cgroup: str, sequence: int = 1) -> JournalEntry:
    return JournalEntry(sequence=sequence, pid=pid, cgroup=cgroup, code=0, signal=0, at=0.0)


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/pods/s/c1", True),
        ("/pods/s/c1/nested/deep", True),
        ("/pods/s/c10", False),
        ("/pods/s", False),
        ("/agent", False),
        ("", False),
    ],
)
def test_a_cgroup_is_matched_by_whole_components(path: str, inside: bool) -> None:
    assert is_within(path, GROUP) is inside


def test_an_entry_at_or_before_the_note_is_not_ours() -> None:
    assert not expected(after=1).matches(entry(42, GROUP, sequence=1))
    assert expected(after=1).matches(entry(42, GROUP, sequence=2))


def test_without_a_cgroup_the_pid_decides() -> None:
    assert expected().matches(entry(42, ""))
    assert not expected().matches(entry(43, ""))


async def test_an_exit_that_comes_later(exits: ExitWatcher, pid1: FakePid1) -> None:
    waiting = asyncio.create_task(exits.wait(expected()))
    await asyncio.sleep(0)
    pid1.exits(42, GROUP, code=7)
    assert (await waiting).code == 7


async def test_an_exit_before_its_pid_was_known(exits: ExitWatcher, pid1: FakePid1) -> None:
    note = await exits.note()
    pid1.exits(42, GROUP, code=3)
    assert (await exits.wait(expected(after=note))).code == 3


async def test_a_pid_that_others_had_before(exits: ExitWatcher, pid1: FakePid1) -> None:
    """A crun that outlived its agent, and a process elsewhere, had the same number."""
    pid1.exits(42, GROUP, code=1)
    note = await exits.note()
    pid1.exits(42, "/agent", code=2)
    pid1.exits(42, "/pods/s/c10", code=3)
    pid1.exits(42, GROUP + "/nested", code=4)
    pid1.exits(42, GROUP, code=5)
    assert (await exits.wait(expected(after=note))).code == 4


async def test_any_number_of_waiters_and_one_who_leaves(exits: ExitWatcher, pid1: FakePid1) -> None:
    waiting = [asyncio.create_task(exits.wait(expected())) for _ in range(5)]
    await asyncio.sleep(0)
    waiting.pop().cancel()
    await asyncio.sleep(0)
    pid1.exits(42, GROUP, code=9)
    assert [one.code for one in await asyncio.gather(*waiting)] == [9] * 4
    assert exits._waiters == {}


async def test_what_happened_while_no_agent_was_there(client: Pid1Client, pid1: FakePid1) -> None:
    pid1.exits(42, GROUP, code=137, signal=9)
    watcher = ExitWatcher(client)
    await watcher.start()
    found = watcher.find(expected())
    await watcher.stop()
    assert found is not None
    assert (found.code, found.signal) == (137, 9)


async def test_a_broken_connection_misses_and_repeats_nothing(
    exits: ExitWatcher, pid1: FakePid1
) -> None:
    pid1.exits(1, GROUP)
    await exits.reached(1)
    pid1.drop_followers()
    pid1.exits(42, GROUP, code=6)
    assert (await exits.wait(expected())).code == 6
    assert [one.sequence for one in exits._entries] == [1, 2]
