"""Storages that need no device, with the real kernel and real workers."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import stat
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.model import FsGroup
from agent.core.sources import (
    BindSource,
    HugetlbSource,
    LocalSource,
    OverlaySource,
    Source,
    StorageDirectory,
    TmpfsSource,
    WatchedSource,
)
from agent.handlers.storage.watched import WatchedCopy
from agent.linux import mounting
from agent.linux.mounting import MountFlag, UnmountFlag
from tests.privileged.counts import often
from tests.privileged.sourcelab import POOLS, SourceLab, source_lab

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.storage,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts"),
]

PAGE = 2 << 20
POOL = POOLS / "hugepages-2048kB"
ERRNOS = (errno.EIO, errno.ENOSPC, errno.EBUSY)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[SourceLab]:
    async with source_lab(tmp_path) as made:
        yield made


def at(storage_id: str, path: str = "") -> StorageDirectory:
    return StorageDirectory(storage_id=storage_id, path=path)


async def refused(awaitable: Awaitable[object], reason: Reason) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await awaitable
    assert caught.value.reason is reason, caught.value
    return caught.value


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal_of_a_write(path: Path) -> int | None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is what is asked for
        path.write_text("changed")
    return caught.value.errno


# tmpfs


async def test_tmpfs_has_the_size_and_mode_that_were_asked_for(lab: SourceLab) -> None:
    mounted = await lab.mounted("t", TmpfsSource(size=1 << 20, mode=0o2750), options=("noexec",))
    point = Path(mounted.mount_point)
    found = os.statvfs(point)
    assert found.f_blocks * found.f_frsize == 1 << 20
    assert mode_of(point) == 0o2750
    assert (mounted.fs_type, mounted.origin) == ("tmpfs", "tmpfs")
    (entry,) = lab.mounts()
    assert "noexec" in entry.options.split(",")
    with pytest.raises(OSError, match="space"):
        (point / "big").write_bytes(bytes(2 << 20))
    (point / "big").unlink()


async def test_tmpfs_says_which_option_it_does_not_know(lab: SourceLab) -> None:
    """Case 40: an unknown option is the kernel's EINVAL, with the list of options."""
    before = lab.traces()
    error = await refused(
        lab.attach("t", TmpfsSource(size=1 << 20), options=("no_such=1",)), Reason.MOUNT_REFUSED
    )
    assert error.fields["errno"] == "EINVAL"
    assert "size=1048576,no_such=1" in error.message
    assert lab.traces() == before


# hugetlb


@pytest.fixture
def pool() -> int:
    """Pages in the pool before."""
    if not (POOL / "nr_hugepages").exists():
        pytest.skip("this kernel has no huge pages of 2 MiB")
    return int((POOL / "nr_hugepages").read_text())


def pages() -> int:
    return int((POOL / "nr_hugepages").read_text())


@pytest.mark.parametrize(
    "options",
    [
        ("pagesize=2M", "size=8M"),
        ("size=8388608", "pagesize=2097152"),
        ("pageSize=2Mi", "size=8Mi"),
    ],
)
async def test_huge_pages_are_added_used_and_given_back(
    lab: SourceLab, pool: int, options: tuple[str, ...]
) -> None:
    """Case 42; a mapping of a file shows that the pages are real."""
    point = await lab.attach("h", HugetlbSource(), options=options)
    assert pages() == pool + 4
    found = os.statvfs(point)
    assert (found.f_bsize, found.f_blocks) == (PAGE, 4)
    fd = os.open(point / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, 4 * PAGE)
        with mmap.mmap(fd, 4 * PAGE) as memory:
            for number in range(4):
                memory[number * PAGE] = 1
    finally:
        os.close(fd)
    (point / "file").unlink()
    await lab.storages.detach("h")
    assert pages() == pool
    assert not list((lab.roots.run / "hugepages").glob("*"))


async def test_a_page_larger_than_the_memory(lab: SourceLab) -> None:
    """Where there is a gigabyte, asking for too many would take it all from everyone else."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if memory >= 1 << 30 or not (POOLS / "hugepages-1048576kB").exists():
        pytest.skip("this machine has more than 1 GiB of memory, or no pages of that size")
    before = lab.traces()
    source = HugetlbSource(page_size=1 << 30, size=1 << 30)
    error = await refused(lab.attach("h", source), Reason.NO_HUGE_PAGES)
    assert error.code is Code.RESOURCE_EXHAUSTED
    assert (error.fields["wanted"], error.fields["got"]) == ("1", "0")
    assert lab.traces() == before


async def test_two_at_once_lose_no_pages(lab: SourceLab, pool: int) -> None:
    for _ in range(often(5)):
        names = [f"h{number}" for number in range(4)]
        await asyncio.gather(*(lab.attach(name, HugetlbSource(size=2 * PAGE)) for name in names))
        assert pages() == pool + 8
        await asyncio.gather(*(lab.storages.detach(name) for name in names))
        assert pages() == pool


# bind


async def test_a_read_only_bind_is_read_only_for_real(lab: SourceLab) -> None:
    """Case 62: the write gives EROFS there, and goes where it is mounted for writing."""
    base = await lab.attach("base", TmpfsSource(), options=("nosuid,nodev,noexec",))
    (base / "dir").mkdir()
    (base / "dir/file").write_text("x")
    point = await lab.attach("b", BindSource(directory=at("base", "dir")), options=("bind", "ro"))
    assert refusal_of_a_write(point / "file") == errno.EROFS
    entry = next(each for each in lab.mounts() if each.mount_point == str(point))
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(entry.options.split(","))
    (base / "dir/file").write_text("changed")
    assert (point / "file").read_text() == "changed"


async def test_a_read_only_source_stays_so(lab: SourceLab) -> None:
    base = await lab.attach("base", TmpfsSource(), read_only=True)
    assert list(base.iterdir()) == []
    point = await lab.attach("b", BindSource(directory=at("base")), options=("rw",))
    assert refusal_of_a_write(point / "file") == errno.EROFS


@pytest.mark.parametrize("read_only", [True, False])
async def test_what_is_mounted_below_comes_along(
    lab: SourceLab,
    tmp_path: Path,
    read_only: bool,
) -> None:
    """And goes along, from there alone."""
    place = tmp_path / "place"
    (place / "below").mkdir(parents=True)
    mounting.mount("tmpfs", str(place / "below"), "tmpfs")
    try:
        (place / "below/file").write_text("x")
        source = BindSource(path=str(place), recursive=True)
        deep = await lab.attach("deep", source, read_only=read_only)
        assert (deep / "below/file").read_text() == "x"
        if read_only:
            assert refusal_of_a_write(deep / "below/file") == errno.EROFS
        flat = await lab.attach("flat", BindSource(path=str(place)))
        assert list((flat / "below").iterdir()) == []
        await lab.storages.detach("flat")
        with (deep / "below/file").open():
            error = await refused(lab.storages.detach("deep"), Reason.UNMOUNT_REFUSED)
            assert f"process {os.getpid()}" in error.message
        await lab.storages.detach("deep")
        assert (place / "below/file").read_text() == "x"
        (place / "below/file").write_text("still writable")
    finally:
        mounting.unmount(str(place / "below"))


async def test_a_file_and_a_link_that_leads_out(lab: SourceLab) -> None:
    base = await lab.attach("base", TmpfsSource())
    (base / "file").write_text("x")
    (base / "secret").symlink_to("/etc/hostname")
    (base / "inside").symlink_to("/file")
    point = await lab.attach("b", BindSource(directory=at("base", "inside")))
    assert point.read_text() == "x", "an absolute link leads to where it would with the root there"
    await lab.storages.detach("b")
    assert not point.exists()
    await refused(lab.attach("b", BindSource(directory=at("base", "secret"))), Reason.MOUNT_REFUSED)


# overlay


@pytest.mark.parametrize("layers", [1, 2, 60, 400])
async def test_an_overlay_shows_all_layers_and_keeps_writes_apart(
    lab: SourceLab, layers: int
) -> None:
    """Case 45: option strings far over a page."""
    base = await lab.attach("base", TmpfsSource())
    name = "layer,with:signs and a long name " + "x" * 60
    for number in range(layers):
        (base / f"{name}{number}").mkdir()
        (base / f"{name}{number}/{number}").write_text(str(number))
        (base / f"{name}{number}/same").write_text(str(number))
    lower = tuple(at("base", f"{name}{number}") for number in range(layers))
    point = await lab.attach("o", OverlaySource(lower=lower, upper=at("base", "up")))
    assert len(os.listdir(point)) == layers + 1
    assert (point / "same").read_text() == "0", "the topmost comes first"
    (point / "same").write_text("changed")
    (point / "0").unlink()
    assert (base / f"{name}0/same").read_text() == "0"
    assert (base / "up/same").read_text() == "changed"
    await refused(lab.storages.detach("base"), Reason.STILL_IN_USE)
    await lab.storages.detach("o")
    bare = await lab.attach("o", OverlaySource(lower=lower))
    assert len(os.listdir(bare)) == layers + 1
    assert refusal_of_a_write(bare / "same") == errno.EROFS


async def test_an_overlay_of_which_something_is_wrong(lab: SourceLab) -> None:
    base = await lab.attach("base", TmpfsSource())
    other = await lab.attach("other", TmpfsSource())
    (base / "low").mkdir()
    (base / "low/sub").mkdir()
    before = lab.traces()
    lower = (at("base", "low"),)
    for source, number in (
        (OverlaySource(lower=lower, upper=at("base", "u"), work=at("other", "w")), "EINVAL"),
        (OverlaySource(lower=(*lower, at("base", "low"))), "ELOOP"),
        (OverlaySource(lower=(at("base", "no"),)), "ENOENT"),
    ):
        error = await refused(lab.attach("o", source), Reason.MOUNT_REFUSED)
        assert error.fields["errno"] == number
        assert lab.traces() == before
    assert os.listdir(other) == []


async def test_an_upper_in_a_read_only_storage(lab: SourceLab) -> None:
    base = await lab.attach("base", TmpfsSource())
    (base / "low").mkdir()
    (base / "up").mkdir()
    await lab.attach("ro", BindSource(directory=at("base")), read_only=True)
    before = lab.traces()
    for path in ("up", "new"):
        source = OverlaySource(lower=(at("base", "low"),), upper=at("ro", path))
        await refused(lab.attach("o", source), Reason.MOUNT_REFUSED)
        assert lab.traces() == before


# local


@pytest.mark.parametrize("base", ["", "base"])
async def test_a_local_directory_goes_with_what_is_in_it(lab: SourceLab, base: str) -> None:
    await lab.attach("base", TmpfsSource())
    before = lab.traces()
    point = await lab.attach("l", LocalSource(mode=0o1770, storage_id=base))
    assert mode_of(point) == 0o1770
    (point / "a/b/c").mkdir(parents=True)
    (point / "a/link").symlink_to("/etc")
    (point / "a/file").write_text("x")
    detached = await lab.storages.detach("l")
    assert detached.left == ()
    after = lab.traces()
    assert after == before
    assert mode_of(Path("/etc"))


async def test_what_is_mounted_in_a_local_directory_stays(lab: SourceLab) -> None:
    base = await lab.attach("base", TmpfsSource())
    point = await lab.attach("l", LocalSource(storage_id="base"))
    (point / "in").mkdir()
    (point / "gone").write_text("x")
    (made,) = base.iterdir()
    mounting.mount("tmpfs", str(made / "in"), "tmpfs")
    try:
        (made / "in/kept").write_text("x")
        detached = await lab.storages.detach("l")
        assert f"{made.name}/in: something is mounted on it" in detached.left[0]
        assert (made / "in/kept").read_text() == "x"
        assert os.listdir(made) == ["in"]
    finally:
        mounting.unmount(str(made / "in"))
    (made / "in").rmdir()
    made.rmdir()


async def test_very_many_files_go(lab: SourceLab) -> None:
    base = await lab.attach("base", TmpfsSource())
    point = await lab.attach("l", LocalSource(storage_id="base"))
    for folder in range(10):
        (point / str(folder)).mkdir()
        fd = os.open(point / str(folder), os.O_RDONLY)
        for number in range(often(10_000)):
            os.mknod(str(number), 0o600, dir_fd=fd)
        os.close(fd)
    detached = await lab.storages.detach("l")
    assert detached.left == ()
    assert os.listdir(base) == []


# watched


def config_map(base: Path, version: str, **files: str) -> None:
    """As kubelet writes one: the new version beside the old one, then a switch."""
    folder = base / f"..{version}"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    (base / "..tmp").symlink_to(folder.name)
    os.replace(base / "..tmp", base / "..data")
    for name in files:
        if not (base / name).is_symlink():
            (base / name).symlink_to(f"..data/{name}")


def shown(point: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in point.iterdir() if path.name[:2] != ".."}


async def test_a_watched_copy_switches_and_forgets_what_went(
    lab: SourceLab, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    config_map(source, "1", a="one", b="one")
    point = await lab.attach("w", WatchedSource(path=str(source), interval=0))
    assert shown(point) == {"a": "one", "b": "one"}
    assert os.readlink(point / "a") == "..data/a"
    first = os.readlink(point / "..data")
    assert not await lab.storages.refresh("w")
    config_map(source, "2", a="two", c="two")
    (source / "b").unlink()
    assert shown(point) == {"a": "one", "b": "one"}
    assert await lab.storages.refresh("w")
    last = [event for event in lab.events._ring if event.kind == "storage-refreshed"][-1]
    assert (last.subject, last.details) == ("w", {"entries": "3", "left_out": ""})
    assert shown(point) == {"a": "two", "c": "two"}
    hidden = sorted(name for name in os.listdir(point) if name.startswith(".."))
    assert hidden == sorted(["..data", "..signature", os.readlink(point / "..data")])
    assert os.readlink(point / "..data") != first


async def test_nobody_else_writes_to_it(lab: SourceLab, tmp_path: Path) -> None:
    source = tmp_path / "source"
    config_map(source, "1", a="one")
    point = await lab.attach("w", WatchedSource(path=str(source), interval=0))
    assert refusal_of_a_write(point / "a") == errno.EROFS
    # A container's view is a bind mount, made before the switch.
    view = tmp_path / "view"
    view.mkdir()
    mounting.mount(str(point), str(view), flags=MountFlag.BIND)
    try:
        assert refusal_of_a_write(view / "a") == errno.EROFS
        config_map(source, "2", a="two")
        await lab.storages.refresh("w")
        assert (view / "a").read_text() == "two"
        assert refusal_of_a_write(view / "new") == errno.EROFS
    finally:
        mounting.unmount(str(view), UnmountFlag.DETACH)


async def test_owners_modes_times_and_deep_directories(lab: SourceLab, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    (source / "deep/er/file").write_text("x")
    (source / "deep").chmod(0o750)
    file = source / "deep/er/file"
    os.chown(file, 1001, 1002)
    file.chmod(0o640)
    os.utime(file, ns=(1_000_000_007, 1_000_000_007))
    point = await lab.attach("w", WatchedSource(path=str(source), interval=0))
    found = (point / "deep/er/file").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1001, 1002, 0o640)
    assert found.st_mtime_ns == 1_000_000_007
    assert mode_of(point / "deep") == 0o750
    await lab.storages.detach("w")
    group = FsGroup(gid=4321)
    point = await lab.attach("w", WatchedSource(path=str(source), interval=0), fs_group=group)
    found = (point / "deep/er/file").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1001, 4321, 0o640)
    assert mode_of(point / "deep") == 0o2750


async def test_a_single_file(lab: SourceLab, tmp_path: Path) -> None:
    source = tmp_path / "source"
    config_map(source, "1", a="one", b="one")
    await lab.attach("base", BindSource(path=str(source)))
    wanted = WatchedSource(directory=at("base", "a"), interval=0)
    point = await lab.attach("w", wanted)
    assert shown(point) == {"a": "one"}
    config_map(source, "2", a="two")
    assert await lab.storages.refresh("w")
    assert shown(point) == {"a": "two"}


async def test_a_link_that_leads_out_is_left_out(lab: SourceLab, tmp_path: Path) -> None:
    source = tmp_path / "source"
    config_map(source, "1", a="one")
    (source / "secret").symlink_to("/etc/hostname")
    (source / "up").symlink_to("../local")
    point = await lab.attach("w", WatchedSource(path=str(source), interval=0))
    assert shown(point) == {"a": "one"}


async def test_no_size_cliff(lab: SourceLab, tmp_path: Path) -> None:
    """More than the 1 MiB of a config map, and more names than one page of a directory holds."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(often(3000)):
        (source / f"file{number}").write_text(str(number))
    (source / "big").write_bytes(bytes(range(256)) * 4096 * 20)
    point = await lab.attach("w", WatchedSource(path=str(source), interval=0))
    assert len(shown_names(point)) == often(3000) + 1
    assert (point / "big").read_bytes() == bytes(range(256)) * 4096 * 20


def shown_names(point: Path) -> list[str]:
    return [name for name in os.listdir(point) if not name.startswith("..")]


async def test_a_copy_that_does_not_fit_leaves_the_last_one(lab: SourceLab, tmp_path: Path) -> None:
    source = tmp_path / "source"
    config_map(source, "1", a="one")
    wanted = WatchedSource(path=str(source), interval=0)
    point = await lab.attach("w", wanted, options=("size=1m",))
    config_map(source, "2", a="two", big="x" * (2 << 20))
    error = await refused(lab.storages.refresh("w"), Reason.MOUNT_REFUSED)
    assert error.fields["errno"] == "ENOSPC"
    assert shown(point) == {"a": "one"}
    assert len([name for name in os.listdir(point) if name.startswith("..2")]) == 1
    config_map(source, "3", a="three")
    (source / "big").unlink()
    assert await lab.storages.refresh("w")
    assert shown(point) == {"a": "three"}


async def test_it_is_looked_at_by_itself_also_by_a_new_agent(
    lab: SourceLab, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    config_map(source, "1", a="one")
    point = await lab.attach("w", WatchedSource(path=str(source), interval=0.1))
    await lab.storages.close()
    lab.storages = lab.new_manager()
    await lab.storages.restore()
    before = os.readlink(point / "..data")
    assert not await lab.storages.refresh("w"), "it knows what the old agent copied"
    assert os.readlink(point / "..data") == before
    config_map(source, "2", a="two")
    service = lab.storages._services.running("w")
    assert isinstance(service, WatchedCopy)
    async with asyncio.timeout(60):
        while shown(point) != {"a": "two"}:
            service._looked.clear()
            await service._looked.wait()


async def test_readers_never_see_some_of_each(lab: SourceLab, tmp_path: Path) -> None:
    """A reader in another process opens `..data` and reads both files, again and again."""
    source = tmp_path / "source"
    config_map(source, "0", a="0", b="0")
    point = await lab.attach("w", WatchedSource(path=str(source), interval=0))
    reader = await asyncio.create_subprocess_exec(
        "sh", "-c", READER, "reader", str(point), stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert reader.stdout is not None
    assert await reader.stdout.readline() == b"reading\n"
    for number in range(1, often(40) + 1):
        config_map(source, str(number), a=str(number), b=str(number))
        assert await lab.storages.refresh("w")
    assert reader.stdin is not None
    reader.stdin.close()
    told = await reader.stdout.read()
    assert await reader.wait() == 0
    assert told == b"", told


# Ends when its input does. `cd -P` takes one version for both files, as opening ..data does; it
# may be gone by the time they are read, which is no mixture.
READER = """
trap 'exit 0' TERM
exec 3<&0
(cat <&3 >/dev/null; kill $$) &
echo reading
while :; do
    cd -P "$1/..data" 2>/dev/null || continue
    a=$(cat a 2>/dev/null) && b=$(cat b 2>/dev/null) || continue
    [ "$a" = "$b" ] || echo "$a $b"
done
"""


# every class


SOURCES: dict[str, Source] = {
    "tmpfs": TmpfsSource(size=1 << 20),
    "hugetlb": HugetlbSource(size=2 * PAGE),
    "bind": BindSource(directory=at("base", "dir")),
    "file": BindSource(directory=at("base", "file")),
    "overlay": OverlaySource(lower=(at("base", "dir"),), upper=at("base", "new/upper")),
    "local": LocalSource(storage_id="base"),
    "memory": LocalSource(),
    "watched": WatchedSource(directory=at("base", "dir"), interval=0),
}


@pytest.mark.parametrize("late", [False, True], ids=["refused", "late"])
@pytest.mark.parametrize("number", ERRNOS, ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("name", SOURCES)
async def test_whichever_call_fails_nothing_is_left(
    lab: SourceLab,
    name: str,
    number: int,
    late: bool,
) -> None:
    if name == "hugetlb" and not POOL.exists():
        pytest.skip("this kernel has no huge pages of 2 MiB")
    base = await lab.attach("base", TmpfsSource())
    (base / "dir").mkdir()
    (base / "file").touch()
    lab.roots.local.mkdir()
    failed = await lab.every_call_fails("it", SOURCES[name], errno=number, late=late)
    assert failed >= 2
    await lab.storages.detach("it")


async def test_many_rounds_leave_nothing(lab: SourceLab) -> None:
    base = await lab.attach("base", TmpfsSource())
    (base / "dir").mkdir()
    (base / "file").touch()
    lab.roots.local.mkdir()
    await lab.files.start()
    names = [name for name in SOURCES if name != "hugetlb" or POOL.exists()]
    await _round(lab, names)
    before, descriptors = lab.traces(), len(os.listdir("/proc/self/fd"))
    for _ in range(often(20)):
        await _round(lab, names)
    assert lab.traces() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def _round(lab: SourceLab, names: list[str]) -> None:
    for name in names:
        await lab.attach(name, SOURCES[name])
    for name in names:
        assert (await lab.storages.detach(name)).left == ()
