"""The agent's side of PID 1's socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Code
from agent.core.pid1 import JournalEntry, Pid1Client
from tests.fakes.pid1 import FakePid1

pytestmark = [pytest.mark.unit, pytest.mark.containers]


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
def null() -> Iterator[int]:
    """Some descriptor."""
    with open("/dev/null") as file:
        yield file.fileno()


async def entries(client: Pid1Client, after: int, count: int) -> list[JournalEntry]:
    found: list[JournalEntry] = []
    following = client.follow(after)
    async for entry in following:
        found.append(entry)
        if len(found) == count:
            break
    await following.aclose()  # type: ignore[attr-defined]
    return found


async def test_descriptors_come_back_as_the_same_open_file(client: Pid1Client) -> None:
    """The position is shared: what was read through one is not read again through the other."""
    mine = os.memfd_create("kept")
    os.write(mine, b"abcdef")
    os.lseek(mine, 2, os.SEEK_SET)
    await client.store("streams/c/-/stdin", mine)
    os.close(mine)
    found = await client.fetch(["streams/c/-/stdin", "streams/c/-/other"])
    assert list(found) == ["streams/c/-/stdin"]
    (fd,) = found.values()
    assert os.read(fd, 10) == b"cdef"
    assert not os.get_inheritable(fd)
    os.close(fd)


async def test_more_names_than_fit_into_one_message(client: Pid1Client, null: int) -> None:
    names = [f"streams/c/-/{number:02}" for number in range(40)]
    await asyncio.gather(*(client.store(name, null) for name in names))
    assert await client.names("streams/c/") == tuple(names)
    found = await client.fetch(names)
    assert sorted(found) == names
    for fd in found.values():
        os.close(fd)


async def test_dropped_names_are_gone_and_dropping_again_is_fine(
    client: Pid1Client, pid1: FakePid1, null: int
) -> None:
    await client.store("streams/c/-/a", null)
    await client.drop(["streams/c/-/a"])
    await client.drop(["streams/c/-/a"])
    assert pid1.store == {}


async def test_the_journal_is_followed_from_a_number(client: Pid1Client, pid1: FakePid1) -> None:
    for code in (1, 2, 3):
        pid1.exits(100 + code, "/pods/s/c", code=code)
    assert await client.journal_sequence() == 3
    got = await entries(client, 1, 2)
    assert [(entry.sequence, entry.pid, entry.code) for entry in got] == [(2, 102, 2), (3, 103, 3)]


async def test_power_is_passed_on(client: Pid1Client, pid1: FakePid1) -> None:
    await client.power("reboot")
    assert pid1.powered == ["reboot"]


async def test_a_refusal_carries_its_reason(client: Pid1Client, pid1: FakePid1, null: int) -> None:
    pid1.refusing = "store"
    with pytest.raises(AgentError, match="refused by the test") as caught:
        await client.store("x", null)
    assert caught.value.fields["errno"] == "EPERM"
    assert caught.value.code is Code.FAILED_PRECONDITION


async def test_without_pid1_the_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"nobody\.sock") as caught:
        await Pid1Client(tmp_path / "nobody.sock").ping()
    assert caught.value.code is Code.UNAVAILABLE


async def test_no_answer_ends_at_the_deadline_and_the_next_call_is_heard(
    pid1: FakePid1,
) -> None:
    client = Pid1Client(pid1.path, call_timeout=0.1)
    pid1.silent = True
    with pytest.raises(AgentError, match="no answer to ping") as caught:
        await client.ping()
    assert caught.value.code is Code.UNAVAILABLE
    pid1.silent = False
    assert (await client.ping())["ok"]
    client.close()


async def test_a_broken_connection_fails_who_waits_and_is_made_anew(
    client: Pid1Client, pid1: FakePid1
) -> None:
    await client.ping()
    pid1.silent = True
    waiting = asyncio.create_task(client.ping())
    await asyncio.sleep(0)
    pid1.drop_connections()
    with pytest.raises(AgentError, match="can't be reached"):
        await waiting
    pid1.silent = False
    assert (await client.ping())["ok"]


async def test_a_cancelled_caller_does_not_shift_the_replies(
    client: Pid1Client, pid1: FakePid1
) -> None:
    first = asyncio.create_task(client.names("a"))
    second = asyncio.create_task(client.ping())
    await asyncio.sleep(0)
    first.cancel()
    assert "journal_sequence" in await second
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_follower_that_is_dropped_is_told(client: Pid1Client, pid1: FakePid1) -> None:
    pid1.exits(5, "/pods/s/c")
    following = client.follow(0)
    assert (await anext(following)).pid == 5
    pid1.drop_followers()
    with pytest.raises(AgentError, match="journal's connection broke"):
        await anext(following)
