"""What lands here from a guest that may send anything."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from innkeeper.shim import landing as module
from innkeeper.shim.errors import ShimError
from innkeeper.shim.landing import Landing, Place
from innkeeper.v1 import files_pb2 as pb
from tests.fakes.copying import file_part, folder_part, header, link_part, mode_of, tree
from tests.fakes.copyworkers import refuse_unnamed_files
from tests.fakes.exchanging import exchanging

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture(params=["unnamed", "named"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "named":
        monkeypatch.setattr(os, "open", os.open)
        refuse_unnamed_files()
    return str(request.param)


def land(place: Place, *parts: pb.FilePart) -> None:
    with Landing(place) as landing:
        landing.parts(parts)
        landing.finish()


def here(folder: Path, name: str = "copy", **more: bool) -> Place:
    return Place(folder=folder, name=name, **more)


def test_a_tree_lands_with_modes_times_and_holes(tmp_path: Path, kind: str) -> None:
    size = 1 << 30
    land(
        here(tmp_path),
        folder_part("", 0o555, modified=pb.FileTime(seconds=5)),
        file_part("f", b"x", mode=0o640, modified=pb.FileTime(seconds=-1, nanoseconds=3)),
        folder_part("d", 0o500),
        link_part("d/l", "../../../etc"),
        pb.FilePart(header=header("d/sparse", size=size), hole=size - 1, data=b"e"),
        file_part("z", b""),
    )
    top = tmp_path / "copy"
    assert sorted(os.listdir(top)) == ["d", "f", "z"]
    assert (mode_of(top), mode_of(top / "d"), mode_of(top / "f")) == (0o555, 0o500, 0o640)
    assert top.stat().st_mtime == 5
    assert (top / "f").stat().st_mtime_ns == -(10**9) + 3
    assert os.readlink(top / "d/l") == "../../../etc"
    found = (top / "d/sparse").stat()
    assert (found.st_size, found.st_blocks * 512 < 1 << 20) == (size, True)


def test_set_id_bits_and_a_wide_mode_are_not_taken_unasked(tmp_path: Path, kind: str) -> None:
    """What a guest calls set-user-id would be ours here; the umask is the user's word."""
    before = os.umask(0o027)
    try:
        land(here(tmp_path), file_part("", b"x", mode=0o6777))
        assert mode_of(tmp_path / "copy") == 0o750
        land(here(tmp_path, keep_owner=True), file_part("", b"x", mode=0o6777))
        assert mode_of(tmp_path / "copy") == 0o6777
    finally:
        os.umask(before)


def test_a_file_replaces_a_name_and_follows_no_link(tmp_path: Path, kind: str) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "copy").symlink_to("target")
    land(here(tmp_path), file_part("", b"new"))
    assert tree(tmp_path) == {"copy": b"new", "target": b"old"}


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [file_part("f", b"x")],
        [folder_part(""), folder_part("")],
        [folder_part(""), file_part("../f", b"x")],
        [folder_part(""), file_part("/f", b"x")],
        [folder_part(""), file_part("a//f", b"x")],
        [folder_part(""), file_part("./f", b"x")],
        [folder_part(""), file_part("..", b"x")],
        [folder_part(""), file_part("a\0b", b"x")],
        [folder_part(""), file_part("a" * 5000, b"x")],
        [folder_part(""), link_part("l", "/"), file_part("l/f", b"x")],
        [folder_part(""), link_part("l", ".."), folder_part("l")],
        [folder_part(""), file_part("f", b"x"), file_part("f/g", b"x")],
        [file_part("", b"x"), file_part("g", b"x")],
        [link_part("", "/"), file_part("g", b"x")],
        [folder_part(""), link_part("l", "")],
        [folder_part(""), pb.FilePart(header=header("p", type=7))],
        [folder_part(""), pb.FilePart(header=header("p", size=2**63))],
        [folder_part(""), pb.FilePart(header=header("p", mode=0o10000))],
        [folder_part(""), file_part("f", b"x"), pb.FilePart(data=b"more")],
        [folder_part(""), pb.FilePart(header=header("f", size=1), data=b"xx")],
        [folder_part(""), pb.FilePart(header=header("f", size=2), data=b"x")],
        [folder_part(""), pb.FilePart(header=header("f", size=2)), file_part("g", b"")],
    ],
)
def test_what_no_honest_guest_sends_is_refused(
    tmp_path: Path, kind: str, parts: list[pb.FilePart]
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    with pytest.raises(ShimError):
        land(here(base), *parts)
    assert sorted(os.listdir(tmp_path)) == ["base"]
    assert not list(base.rglob(".innkeeper-*"))
    assert {"g", "p"}.isdisjoint(os.listdir(base))


def test_a_link_of_this_host_in_the_tree_is_not_followed(tmp_path: Path) -> None:
    """The user's own, but where it leads was not asked for."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/d").symlink_to("../elsewhere")
    with pytest.raises(ShimError, match="no directory, or a link"):
        land(here(tmp_path), folder_part(""), folder_part("d"), file_part("d/f", b"x"))
    assert os.listdir(tmp_path / "elsewhere") == []


def test_into_a_directory_leaves_that_directory_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir(mode=0o700)
    (tmp_path / "copy/mine").write_bytes(b"mine")
    land(here(tmp_path, into=True), folder_part("", 0o755), file_part("f", b"x"))
    assert tree(tmp_path) == {"copy": 0o700, "copy/f": b"x", "copy/mine": b"mine"}


def test_a_directory_in_the_way_of_a_file_stays(tmp_path: Path, kind: str) -> None:
    (tmp_path / "copy").mkdir()
    with pytest.raises(IsADirectoryError):
        land(here(tmp_path), file_part("", b"x"))
    assert list(tmp_path.iterdir()) == [tmp_path / "copy"]


def test_a_directory_swapped_for_a_link_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "copy/d").mkdir(parents=True)
    (tmp_path / "link").symlink_to(outside)
    parts = [folder_part(""), folder_part("d"), file_part("d/f", b"x"), folder_part("e")]
    with exchanging(tmp_path / "copy/d", tmp_path / "link"):
        for _ in range(300):
            with contextlib.suppress(OSError, ShimError):
                land(here(tmp_path), *parts, file_part("d/g", b"x"))
    assert list(outside.iterdir()) == []


NAMES = st.sampled_from(["", "..", ".", "a", "b", "l", "/"])
PATHS = st.lists(NAMES, max_size=4).map("/".join)
PARTS = st.one_of(
    st.builds(file_part, PATHS, st.just(b"x")),
    st.builds(folder_part, PATHS),
    st.builds(link_part, PATHS, st.sampled_from(["/", "..", "../outside", "a", ""])),
)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(parts=st.lists(PARTS, max_size=10))
def test_nothing_lands_outside_whatever_comes(
    tmp_path_factory: pytest.TempPathFactory, parts: Iterable[pb.FilePart]
) -> None:
    base = tmp_path_factory.mktemp("any")
    (base / "outside").mkdir()
    (base / "top").mkdir()
    with contextlib.suppress(ShimError, OSError):
        land(here(base / "top"), folder_part(""), *parts)
    assert os.listdir(base / "outside") == []
    assert sorted(os.listdir(base)) == ["outside", "top"]
    assert set(os.listdir(base / "top")) <= {"copy"}
    assert not list(base.rglob(".innkeeper-*"))


def test_the_longest_path_is_the_kernels() -> None:
    """PATH_MAX of linux/limits.h, with its NUL."""
    assert module._LONGEST_PATH == 4096 - 1
