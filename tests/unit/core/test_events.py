"""Numbered events and their watchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.events import EventLog
from agent.core.model import Event
from agent.core.state import StateStore

pytestmark = [pytest.mark.unit, pytest.mark.operations]


async def take(watch: AsyncIterator[Event], count: int) -> list[int]:
    return [(await anext(watch)).sequence for _ in range(count)]


async def test_numbers_start_at_one_and_have_no_gaps(tmp_path: Path) -> None:
    events = EventLog(StateStore(tmp_path))
    for name in ("a", "b", "c"):
        events.publish("device-attached", name)
    watch = events.watch(after=0)
    assert await take(watch, 3) == [1, 2, 3]


async def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    before = EventLog(StateStore(tmp_path))
    before.publish("x", "a")
    before.publish("x", "b")
    after = EventLog(StateStore(tmp_path))
    assert after.publish("x", "c").sequence == 3
    assert await take(after.watch(after=2), 1) == [3]


async def test_a_watcher_waits_for_news_and_misses_none(tmp_path: Path) -> None:
    events = EventLog(StateStore(tmp_path))
    events.publish("x", "old")
    watch = events.watch()
    first = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    assert not first.done()
    for name in ("a", "b", "c"):
        events.publish("x", name, {"k": "v"})
    event = await first
    assert (event.sequence, event.subject, event.details) == (2, "a", {"k": "v"})
    assert await take(watch, 2) == [3, 4]


async def test_a_watcher_is_told_when_the_ring_does_not_reach_back(tmp_path: Path) -> None:
    events = EventLog(StateStore(tmp_path), size=3)
    for name in "abcde":
        events.publish("x", name)
    with pytest.raises(AgentError) as caught:
        await anext(events.watch(after=1))
    assert (caught.value.code, caught.value.reason) == (Code.OUT_OF_RANGE, Reason.OFFSET_NOT_KEPT)
    assert (caught.value.fields["oldest"], caught.value.fields["last"]) == ("3", "5")
    assert await take(events.watch(after=2), 3) == [3, 4, 5]


async def test_a_watcher_that_falls_behind_is_told(tmp_path: Path) -> None:
    events = EventLog(StateStore(tmp_path), size=2)
    events.publish("x", "a")
    watch = events.watch(after=0)
    assert await take(watch, 1) == [1]
    for name in "bcde":
        events.publish("x", name)
    with pytest.raises(AgentError, match="not kept"):
        await anext(watch)


async def test_events_from_before_a_restart_are_not_kept(tmp_path: Path) -> None:
    EventLog(StateStore(tmp_path)).publish("x", "a")
    with pytest.raises(AgentError, match="not kept"):
        await anext(EventLog(StateStore(tmp_path)).watch(after=0))


async def test_a_number_that_was_never_given_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="not kept"):
        await anext(EventLog(StateStore(tmp_path)).watch(after=1))


def test_publishing_survives_a_full_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = EventLog(StateStore(tmp_path))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert events.publish("x", "a").sequence == 1
    assert events.last == 1
