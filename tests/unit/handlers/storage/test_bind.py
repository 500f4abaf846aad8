"""Bind mounts: what is bound, and what is not to be had."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.fileops import BindMount, Location
from agent.core.sources import BindSource, StorageDirectory, TmpfsSource
from agent.handlers.storage.guestpaths import guest_location
from agent.linux.mounting import MountFlag
from tests.fakes.source_bench import SourceBench, every_call_fails, source_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SourceBench]:
    async with source_bench(tmp_path) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "place"
    made.mkdir()
    (made / "file").write_text("x")
    return made


async def refused(bench: SourceBench, source: BindSource, **more: object) -> AgentError:
    before = bench.traces()
    with pytest.raises(AgentError) as caught:
        await bench.attach("b", source, **more)
    assert bench.traces() == before
    return caught.value


async def test_case_62_bind_and_ro(bench: SourceBench, place: Path) -> None:
    call = await bench.attach("b", BindSource(path=str(place)), options=("bind", "ro"))
    where = Location(root="/", path=str(place)[1:], links=False)
    assert call == BindMount(source=where, flags=MountFlag.RDONLY)


@pytest.mark.parametrize(
    ("recursive", "options"), [(True, ()), (False, ("rbind",)), (False, ("noexec,rbind",))]
)
async def test_recursive_by_field_or_word(
    bench: SourceBench,
    place: Path,
    recursive: bool,
    options: tuple[str, ...],
) -> None:
    source = BindSource(path=str(place), recursive=recursive)
    call = await bench.attach("b", source, options=options, read_only=True)
    assert isinstance(call, BindMount)
    assert call.recursive
    assert MountFlag.RDONLY in call.flags


async def test_a_file_is_bound_on_a_file(bench: SourceBench, place: Path) -> None:
    await bench.attach("b", BindSource(path=str(place / "file")))
    assert bench.point("b").is_file()
    await bench.storages.detach("b")
    assert not bench.point("b").exists()


async def test_a_directory_of_a_storage(bench: SourceBench) -> None:
    await bench.attach("base", TmpfsSource())
    (bench.point("base") / "dir").mkdir()
    directory = StorageDirectory(storage_id="base", path="dir")
    call = await bench.attach("b", BindSource(directory=directory))
    assert isinstance(call, BindMount)
    assert call.source == Location(root=str(bench.point("base")), path="dir")
    with pytest.raises(AgentError) as caught:
        await bench.storages.detach("base")
    assert caught.value.reason is Reason.STILL_IN_USE


async def test_links_are_refused(bench: SourceBench, place: Path) -> None:
    (place / "link").symlink_to(place)
    error = await refused(bench, BindSource(path=str(place / "link/file")))
    assert (error.code, error.reason) == (Code.PERMISSION_DENIED, Reason.LEADS_OUTSIDE)


@pytest.mark.parametrize("path", ["relative", "/a/../b", "//a", "/a/", "/a/./b", ""])
async def test_paths_that_are_not_plain(bench: SourceBench, path: str) -> None:
    error = await refused(bench, BindSource(path=path))
    assert error.reason is Reason.BAD_FIELD


async def test_what_is_not_there(bench: SourceBench, place: Path) -> None:
    error = await refused(bench, BindSource(path=str(place / "no")))
    assert (error.reason, error.fields["errno"]) == (Reason.MOUNT_REFUSED, "ENOENT")


async def test_options_of_a_file_system_are_refused(bench: SourceBench, place: Path) -> None:
    error = await refused(bench, BindSource(path=str(place)), options=("size=1m",))
    assert error.reason is Reason.BAD_FIELD


async def test_pipes_and_sockets_are_files(bench: SourceBench, place: Path) -> None:
    os.mkfifo(place / "pipe")
    await bench.attach("b", BindSource(path=str(place / "pipe")))
    assert bench.point("b").is_file()


@pytest.mark.parametrize("where", ["", "state", "storages", "storages/x", "bundles/c/rootfs"])
async def test_the_agents_own_is_not_to_be_had(bench: SourceBench, where: str) -> None:
    path = bench.roots.run / where
    path.mkdir(parents=True, exist_ok=True)
    error = await refused(bench, BindSource(path=str(path)))
    assert (error.code, error.reason) == (Code.PERMISSION_DENIED, Reason.LEADS_OUTSIDE)


async def test_what_holds_the_agents_own(bench: SourceBench) -> None:
    """Alone it does not show what is mounted below it; with that it does."""
    run = bench.roots.run
    above = str(run.parent)
    for recursive in (False, True):
        error = await refused(bench, BindSource(path=above, recursive=recursive))
        assert error.reason is Reason.LEADS_OUTSIDE
    mountinfo = bench.roots.proc / "self/mountinfo"
    mountinfo.write_text(f"21 20 0:5 / {run} rw - tmpfs tmpfs rw\n")
    assert guest_location(bench.roots, above, "f").path == above[1:]
    with pytest.raises(AgentError):
        guest_location(bench.roots, above, "f", recursive=True)


@pytest.mark.parametrize("path", ["/dev/shm", "/sys/fs", "/proc", "/etc"])
async def test_the_guests_own_is(bench: SourceBench, path: str) -> None:
    assert guest_location(bench.roots, path, "f") == Location(root="/", path=path[1:], links=False)


@pytest.mark.parametrize("late", [False, True])
async def test_every_call_may_fail(bench: SourceBench, place: Path, late: bool) -> None:
    for name in ("dir", "file"):
        path = place if name == "dir" else place / "file"
        source = BindSource(path=str(path))
        assert await every_call_fails(bench, name, source, errno=errno.EIO, late=late) == 3
