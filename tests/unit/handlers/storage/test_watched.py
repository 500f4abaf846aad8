"""Watched copies: when there is a look, and what comes of one that fails."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, timed_out
from agent.core.fileops import FsMount, Location, Refreshed
from agent.core.model import FsGroup
from agent.core.sources import StorageDirectory, TmpfsSource, WatchedSource
from agent.handlers.storage.base import ServiceSetting
from agent.handlers.storage.watched import WatchedCopy
from agent.linux.mounting import MountFlag
from tests.fakes.source_bench import SourceBench, every_call_fails, source_bench
from tests.fakes.storages import made_from

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SourceBench]:
    async with source_bench(tmp_path) as made:
        yield made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    made.mkdir()
    return made


async def test_a_writable_tmpfs_that_is_filled_before_the_answer(
    bench: SourceBench, source: Path
) -> None:
    wanted = WatchedSource(path=str(source), interval=0)
    group = FsGroup(gid=1234)
    call = await bench.attach("w", wanted, read_only=True, options=("noexec",), fs_group=group)
    assert isinstance(call, FsMount)
    assert call.fs_type == "tmpfs"
    assert call.flags == MountFlag.NOEXEC, "only its mount becomes read-only"
    assert [str(each) for each in call.options] == ["mode=755", "size=50%", "nr_inodes=0"]
    (copy,) = bench.files.copies
    assert copy["source"] == {"root": "/", "path": str(source)[1:], "links": False}
    assert (copy["target"], copy["gid"]) == (str(bench.point("w")), 1234)


async def test_refresh_looks_now_and_tells(bench: SourceBench, source: Path) -> None:
    await bench.attach("w", WatchedSource(path=str(source), interval=0))
    assert await bench.storages.refresh("w")
    bench.files.changed = False
    assert not await bench.storages.refresh("w")
    assert len(bench.files.copies) == 3


async def test_a_directory_of_a_storage(bench: SourceBench) -> None:
    await bench.attach("base", TmpfsSource())
    (bench.point("base") / "config").mkdir()
    directory = StorageDirectory(storage_id="base", path="config")
    await bench.attach("w", WatchedSource(directory=directory, interval=0))
    assert bench.files.copies[0]["source"]["root"] == str(bench.point("base"))
    bench.storages = bench.new_manager()
    await bench.storages.restore()
    assert await bench.storages.refresh("w"), "a new agent goes on"


async def test_what_is_not_there_is_refused(bench: SourceBench, source: Path) -> None:
    before = bench.traces()
    with pytest.raises(AgentError) as caught:
        await bench.attach("w", WatchedSource(path=str(source / "no")))
    assert caught.value.fields["errno"] == "ENOENT"
    assert bench.traces() == before


@pytest.mark.parametrize("late", [False, True])
async def test_every_call_may_fail(bench: SourceBench, source: Path, late: bool) -> None:
    wanted = WatchedSource(path=str(source), interval=0)
    assert await every_call_fails(bench, "w", wanted, errno=errno.ENOSPC, late=late) == 4


class Files:
    """Answers of looks, in their order; the last one stays."""

    def __init__(self, *answers: Refreshed | Exception) -> None:
        self.answers = list(answers)
        self.looks = 0
        self.settling = asyncio.Event()
        self.settling.set()
        self.looked = asyncio.Condition()

    async def refresh_copy(
        self, source: Location, target: str, gid: int | None, deadline: Deadline
    ) -> Refreshed:
        async with self.looked:
            self.looks += 1
            self.looked.notify_all()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def settled(self, obj: str, patience: float | None = None) -> bool:
        await self.settling.wait()
        return True

    async def until(self, holds: Callable[[int], bool]) -> None:
        async with self.looked, asyncio.timeout(20):
            await self.looked.wait_for(lambda: holds(self.looks))


def copy_of(bench: SourceBench, files: Files, told: list[object], interval: float) -> WatchedCopy:
    tools = bench.tools
    object.__setattr__(tools, "files", files)
    setting = ServiceSetting(
        tools=tools,
        request=made_from(WatchedSource(path="/x"), "w"),
        mount_point="/point",
        locations={},
        told=told.append,
    )
    where = Location(root="/", path="x", links=False)
    return WatchedCopy(setting=setting, where=where, interval=interval)


NEWS = Refreshed(True, 2, [])
SAME = Refreshed(False, 2, [])


async def test_it_looks_again_and_again_and_tells_of_news(bench: SourceBench) -> None:
    told: list[object] = []
    files = Files(SAME, NEWS, SAME)
    task = asyncio.ensure_future(copy_of(bench, files, told, 0.001).run())
    await files.until(lambda looks: looks >= 4)
    task.cancel()
    await asyncio.wait([task])
    assert told == [{"entries": "2", "left_out": ""}]


async def test_without_an_interval_only_when_told(bench: SourceBench) -> None:
    files = Files(SAME)
    await copy_of(bench, files, [], 0).run()
    assert files.looks == 0


async def test_failures_are_logged_once_a_kind_and_looks_go_on(
    bench: SourceBench, caplog: pytest.LogCaptureFixture
) -> None:
    gone = OSError(errno.ENOENT, "openat2: No such file or directory", "x")
    full = OSError(errno.ENOSPC, "write: No space left on device", "x")
    files = Files(gone, gone, gone, full, full, timed_out("late"), NEWS)
    told: list[object] = []
    with caplog.at_level(logging.WARNING):
        task = asyncio.ensure_future(copy_of(bench, files, told, 0.001).run())
        await files.until(lambda looks: looks >= 8)
        task.cancel()
        await asyncio.wait([task])
    warnings = [record.getMessage() for record in caplog.records]
    assert [("ENOENT" in text, "ENOSPC" in text, "late" in text) for text in warnings] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    assert told


async def test_a_source_that_hangs_costs_one_worker(bench: SourceBench) -> None:
    """As long as a look that was given up is in the kernel there is no other one."""
    files = Files(timed_out("late"), SAME)
    task = asyncio.ensure_future(copy_of(bench, files, [], 0.001).run())
    await files.until(lambda looks: looks >= 1)
    files.settling.clear()
    seen = files.looks
    for _ in range(20):
        await asyncio.sleep(0)
    assert files.looks <= seen + 1
    files.settling.set()
    await files.until(lambda looks: looks >= seen + 2)
    task.cancel()
    await asyncio.wait([task])


async def test_what_is_left_out_is_logged_once(
    bench: SourceBench, caplog: pytest.LogCaptureFixture
) -> None:
    out = Refreshed(True, 1, ["x leads outside"])
    copy = copy_of(bench, Files(out), [], 0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await copy.fill(Deadline.after(5))
    assert [record.getMessage() for record in caplog.records] == [
        "storage w: not copied: x leads outside"
    ]


async def test_a_fill_that_fails_says_what(bench: SourceBench) -> None:
    full = OSError(errno.ENOSPC, "write: No space left on device", "x")
    with pytest.raises(AgentError) as caught:
        await copy_of(bench, Files(full), [], 0).fill(Deadline.after(5))
    assert (caught.value.reason, caught.value.fields["errno"]) == (Reason.MOUNT_REFUSED, "ENOSPC")
