"""Disks are made once for one content, kept, and cleared away; by the file systems' own bytes."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NoReturn

import pytest

from innkeeper.shim.filling import making, mkfs
from innkeeper.shim.filling.cache import VARIABLE, DiskCache
from innkeeper.shim.filling.mkfs import FsType
from innkeeper.shim.guest_disk import DiskError
from tests.fakes.oci_layout import FakeLayout, member, tar_of

pytestmark = [pytest.mark.unit, pytest.mark.storage]

MIB = 1 << 20


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache.default({VARIABLE: str(tmp_path / "cache")})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a").write_text("one")
    return tmp_path / "src"


@pytest.fixture(params=list(FsType))
def fs_type(request: pytest.FixtureRequest) -> FsType:
    """One that can be made here."""
    kind = FsType(request.param)
    try:
        (mkfs.mke2fs if kind is FsType.EXT4 else mkfs.mkfs_erofs)(0)
    except DiskError as error:
        pytest.skip(str(error))
    return kind


def disks(cache: DiskCache) -> list[str]:
    return sorted(os.listdir(cache.root))


def test_the_same_content_is_made_once(cache: DiskCache, source: Path, fs_type: FsType) -> None:
    first = making.make(making.plan(str(source), fs_type=fs_type), cache)
    assert making.make(making.plan(str(source), fs_type=fs_type), cache) == first
    assert disks(cache) == [first.name]
    assert first.stat().st_mode & 0o777 == 0o444
    (source / "a").write_text("two")
    assert making.make(making.plan(str(source), fs_type=fs_type), cache) != first
    assert len(disks(cache)) == 2


def test_it_is_the_file_system_that_was_asked_for_and_always_the_same_bytes(
    source: Path, tmp_path: Path, fs_type: FsType
) -> None:
    """include/uapi/linux/magic.h: 0xef53 and 0xe0f5e1e2."""
    made = []
    for name in ("one", "two"):
        cache = DiskCache(root=tmp_path / name)
        made.append(making.make(making.plan(str(source), fs_type=fs_type), cache))
    assert made[0].read_bytes() == made[1].read_bytes()
    head = made[0].read_bytes()[1024:2048]
    if fs_type is FsType.EXT4:
        assert struct.unpack_from("<H", head, 0x38) == (0xEF53,)
    else:
        assert struct.unpack_from("<I", head) == (0xE0F5E1E2,)


def test_a_tar_and_a_layout_are_known_without_being_taken_apart(
    cache: DiskCache, tmp_path: Path, fs_type: FsType
) -> None:
    archive = tmp_path / "app.tar"
    archive.write_bytes(tar_of(member("a", b"1")))
    layout = FakeLayout(tmp_path / "layout")
    layout.add(archive.read_bytes(), name="v1")
    for text in (str(archive), f"{layout.write()}:v1"):
        plan = making.plan(text, fs_type=fs_type)
        first = making.make(plan, cache)
        seen = disks(cache)
        assert making.make(plan, cache) == first
        assert disks(cache) == seen


def test_a_disk_to_write_to_has_the_size_asked_for(cache: DiskCache, source: Path) -> None:
    try:
        mkfs.mke2fs(0)
    except DiskError as error:
        pytest.skip(str(error))
    plan = making.plan(str(source), fs_type=FsType.EXT4, size=32 * MIB, writable=True)
    assert making.make(plan, cache).stat().st_size == 32 * MIB
    roomy = making.make(making.plan(str(source), fs_type=FsType.EXT4, writable=True), cache)
    assert roomy.stat().st_size >= 64 * MIB


@pytest.mark.parametrize("old", [False, True])
def test_a_size_that_is_too_small_is_told_with_one_that_is_not(
    cache: DiskCache, source: Path, monkeypatch: pytest.MonkeyPatch, *, old: bool
) -> None:
    """Also where mke2fs is too old to fill a file system from a tar."""
    if old:
        monkeypatch.setattr(mkfs, "mke2fs", _too_old)
    (source / "large").write_bytes(os.urandom(4 * MIB))
    plan = making.plan(str(source), fs_type=FsType.EXT4, size=2 * MIB)
    with pytest.raises(DiskError, match=r"2 MiB is too small .* gets [5-9] MiB"):
        making.make(plan, cache)


def _too_old(newest: int) -> NoReturn:
    raise DiskError("no mke2fs here that fills a file system from a tar")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nowhere", {"fs_type": FsType.EXT4}),
        ("src:v1", {"fs_type": FsType.EXT4}),
        ("src", {"fs_type": FsType.EROFS, "size": MIB}),
        ("src", {"fs_type": FsType.EXT4, "size": 1000}),
        ("src/a", {"fs_type": FsType.EXT4}),
    ],
)
def test_what_no_disk_is_made_of(
    source: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: dict[str, int]
) -> None:
    monkeypatch.chdir(source.parent)
    with pytest.raises(DiskError):
        making.plan(text, **words)  # type: ignore[arg-type]


def test_nothing_is_left_of_one_that_failed(
    cache: DiskCache, tmp_path: Path, fs_type: FsType
) -> None:
    hostile = tmp_path / "hostile.tar"
    hostile.write_bytes(tar_of(member("ok", b"1"), member("../../etc/passwd", b"2")))
    with pytest.raises(DiskError, match="leads out"):
        making.make(making.plan(str(hostile), fs_type=fs_type), cache)
    assert disks(cache) == []


def test_what_was_used_least_lately_goes_first(cache: DiskCache) -> None:
    cache.root.mkdir(parents=True)
    for number, name in enumerate(("old", "used", "new")):
        (cache.root / f"{name}.img").write_bytes(bytes(MIB))
        os.utime(cache.root / f"{name}.img", (number, number))
    assert cache.get("old") is not None
    done = cache.clear(2 * MIB)
    assert (done.count, done.freed, done.left) == (1, MIB, 2 * MIB)
    assert disks(cache) == ["new.img", "old.img"]
    assert cache.clear(0).count == 2
    assert disks(cache) == []


def test_one_that_was_left_half_made_goes_after_a_day(cache: DiskCache) -> None:
    with cache.scratch() as fresh:
        old = cache.root / ".half-made-old"
        old.mkdir()
        (old / "tree.tar").touch()
        os.utime(old, (0, 0))
        cache.clear(1 << 40)
        assert disks(cache) == [fresh.name]


def test_the_cache_is_the_users_own_unless_named() -> None:
    assert DiskCache.default({"XDG_CACHE_HOME": "/c"}).root == Path("/c/innkeeper/disks")
    assert DiskCache.default({VARIABLE: "/own"}).root == Path("/own/disks")


def test_any_mke2fs_will_do_by_way_of_a_directory(
    cache: DiskCache, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes no tar: e2fsprogs before 1.47.1, or without libarchive."""

    def lacking(_newest: int) -> mkfs.Program:
        raise DiskError("too old")

    monkeypatch.setattr(mkfs, "mke2fs", lacking)
    made = making.make(making.plan(str(source), fs_type=FsType.EXT4), cache)
    assert struct.unpack_from("<H", made.read_bytes()[1024:2048], 0x38) == (0xEF53,)
