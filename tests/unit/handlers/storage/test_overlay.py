"""Overlays: layers, and where the writes go."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.fileops import Location, OverlayMount
from agent.core.sources import OverlaySource, StorageDirectory, TmpfsSource
from agent.linux.mounting import MountFlag
from tests.fakes.source_bench import SourceBench, every_call_fails, source_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SourceBench]:
    async with source_bench(tmp_path) as made:
        for name in ("low", "up"):
            await made.attach(name, TmpfsSource())
        yield made


def at(storage_id: str, path: str = "") -> StorageDirectory:
    return StorageDirectory(storage_id=storage_id, path=path)


LOW = (at("low", "a"), at("low", "b"))


async def refused(bench: SourceBench, source: OverlaySource) -> AgentError:
    before = bench.traces()
    with pytest.raises(AgentError) as caught:
        await bench.attach("o", source)
    assert bench.traces() == before
    return caught.value


def tree(bench: SourceBench) -> list[str]:
    base = bench.point("up")
    return sorted(str(path.relative_to(base)) for path in base.rglob("*"))


async def test_layers_without_upper(bench: SourceBench) -> None:
    call = await bench.attach("o", OverlaySource(lower=LOW), options=("xino=off", "nodev"))
    root = str(bench.point("low"))
    assert isinstance(call, OverlayMount)
    assert call.lowers == (Location(root=root, path="a"), Location(root=root, path="b"))
    assert (call.upper, call.work, call.flags) == (None, None, MountFlag.NODEV)
    assert [str(each) for each in call.options] == ["xino=off"]
    assert bench.storages.get("low").used_by == {"o"}


@pytest.mark.parametrize(
    ("upper", "work", "made"),
    [
        (at("up"), None, ["upper", "work"]),
        (at("up", "a/b"), None, ["a", "a/b", "a/work"]),
        (at("up", "a/b"), at("up", "w/x"), ["a", "a/b", "w", "w/x"]),
        (at("up", "/a/./c/../b/"), None, ["a", "a/b", "a/work"]),
        (at("up", "../../a"), None, ["a", "work"]),
    ],
)
async def test_upper_and_work_are_made(
    bench: SourceBench, upper: StorageDirectory, work: StorageDirectory | None, made: list[str]
) -> None:
    call = await bench.attach("o", OverlaySource(lower=LOW, upper=upper, work=work))
    assert isinstance(call, OverlayMount)
    assert tree(bench) == made
    assert call.upper is not None
    assert call.work is not None
    assert not call.upper.links
    assert not call.work.links
    await bench.storages.detach("o")
    assert tree(bench) == made, "what was written is the user's"
    await bench.attach("o", OverlaySource(lower=LOW, upper=upper, work=work))
    assert tree(bench) == made


async def test_links_are_not_followed(bench: SourceBench) -> None:
    """A container that writes to the storage could have the overlay's writes go anywhere."""
    (bench.base / "outside").mkdir()
    (bench.point("up") / "link").symlink_to(bench.base / "outside")
    for path in ("link", "link/upper"):
        error = await refused(bench, OverlaySource(lower=LOW, upper=at("up", path)))
        assert (error.code, error.reason) == (Code.PERMISSION_DENIED, Reason.LEADS_OUTSIDE)
    assert os.listdir(bench.base / "outside") == []


async def test_a_file_is_no_upper(bench: SourceBench) -> None:
    (bench.point("up") / "file").touch()
    for path in ("file", "file/upper"):
        await refused(bench, OverlaySource(lower=LOW, upper=at("up", path)))


@pytest.mark.parametrize(
    "source",
    [
        OverlaySource(lower=()),
        OverlaySource(lower=(at("low"),) * 501),
        OverlaySource(lower=LOW, upper=at("up", "work")),
        OverlaySource(lower=LOW, upper=at("up", "/")),
        OverlaySource(lower=LOW, upper=at("up", "x"), work=at("up", "./x")),
    ],
)
async def test_impossible_requests(bench: SourceBench, source: OverlaySource) -> None:
    assert (await refused(bench, source)).reason is Reason.BAD_FIELD


async def test_five_hundred_layers(bench: SourceBench) -> None:
    lower = tuple(at("low", f"layer{number}") for number in range(500))
    call = await bench.attach("o", OverlaySource(lower=lower))
    assert isinstance(call, OverlayMount)
    assert len(call.lowers) == 500


@pytest.mark.parametrize(
    ("upper", "work"), [("x", None), ("./x", None), ("y", "x"), ("y/z", "work")]
)
async def test_a_directory_takes_the_writes_of_one_overlay(
    bench: SourceBench, upper: str, work: str | None
) -> None:
    await bench.attach("first", OverlaySource(lower=LOW, upper=at("up", "x")))
    source = OverlaySource(lower=LOW, upper=at("up", upper), work=at("up", work) if work else None)
    error = await refused(bench, source)
    assert (error.reason, error.fields["id"]) == (Reason.STILL_IN_USE, "first")
    bench.storages = bench.new_manager()
    await bench.storages.restore()
    error = await refused(bench, source)
    assert error.reason is Reason.STILL_IN_USE, "a new agent knows it too"
    await bench.storages.detach("first")
    await bench.attach("o", source)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EBUSY])
async def test_every_call_may_fail(bench: SourceBench, number: int, late: bool) -> None:
    """Two looks and two directories more than there are for one that is read-only."""
    source = OverlaySource(lower=LOW, upper=at("up", "deep/upper"))
    failed = await every_call_fails(bench, "o", source, errno=number, late=late)
    assert failed >= 7
