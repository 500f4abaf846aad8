"""Writing a copy: what a racing neighbour, a full disk and another file system do to it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.linux import treeremoval, treewriter
from agent.linux.copyfolders import Start
from agent.linux.copyframes import Entry, EntryType, Part, Time
from agent.linux.copyrefusal import CopyRefusal
from agent.linux.copyslate import Leftover, Slate, new_slate
from agent.linux.treewriter import TreeWriter
from tests.fakes.copying import mode_of, tree
from tests.fakes.copyworkers import refuse_unnamed_files
from tests.fakes.exchanging import exchanging

pytestmark = [pytest.mark.unit, pytest.mark.storage]

ME = (os.getuid(), os.getgid())


@pytest.fixture(params=["unnamed", "named"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to write a file that is not seen before it is whole."""
    if request.param == "named":
        monkeypatch.setattr(os, "open", os.open)
        refuse_unnamed_files()
    return str(request.param)


@pytest.fixture
def slate() -> Iterator[Slate]:
    page = new_slate()
    made = Slate(page)
    os.close(page)
    yield made
    made.close()


@contextlib.contextmanager
def writing(
    top: Path, slate: Slate, path: str = "", *, only_new: bool = False
) -> Iterator[TreeWriter]:
    root = os.open(top, os.O_PATH | os.O_DIRECTORY)
    writer = TreeWriter(Start(root=root, path=path), slate, only_new=only_new)
    try:
        yield writer
    finally:
        writer.close()
        os.close(root)


def file(path: str, size: int, mode: int = 0o644) -> Entry:
    return Entry(path, EntryType.FILE, mode, *ME, size)


def folder(path: str, mode: int = 0o755, modified: Time | None = None) -> Entry:
    return Entry(path, EntryType.DIRECTORY, mode, *ME, 0, modified)


def test_a_file_is_private_and_unseen_until_it_is_whole(
    tmp_path: Path, slate: Slate, kind: str
) -> None:
    """Also one that will be set-user-id; what is there in the meantime has mode 0600."""
    with writing(tmp_path, slate) as writer:
        writer.part(Part(file("f", 6, 0o4755), 0, b"abc"))
        assert not (tmp_path / "f").exists()
        names = list(tmp_path.iterdir())
        assert len(names) == (kind == "named")
        assert all(mode_of(name) == 0o600 and name.name[0] == "." for name in names)
        writer.part(Part(None, 0, b"def"))
        assert tree(tmp_path) == {"f": b"abcdef"}
        assert mode_of(tmp_path / "f") == 0o4755


def test_what_does_not_become_whole_leaves_nothing(tmp_path: Path, slate: Slate, kind: str) -> None:
    (tmp_path / "f").write_bytes(b"old")
    with writing(tmp_path, slate) as writer:
        writer.part(Part(file("f", 6), 0, b"abc"))
    assert tree(tmp_path) == {"f": b"old"}
    assert slate.leftover is None


def test_the_slate_knows_a_temporary_name_while_it_is_there(
    tmp_path: Path, slate: Slate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that whoever kills the writer can remove it."""
    monkeypatch.setattr(os, "open", os.open)
    refuse_unnamed_files()
    with writing(tmp_path, slate) as writer:
        writer.part(Part(file("d/f", 6), 0, b"abc"))
        (temporary,) = (tmp_path / "d").iterdir()
        assert slate.leftover == Leftover("d", temporary.name, beside=False)
        writer.part(Part(None, 0, b"def"))
        assert slate.leftover is None


def test_a_replaced_file_keeps_its_old_content_for_who_has_it_open(
    tmp_path: Path, slate: Slate, kind: str
) -> None:
    """Rename, not truncation: rename(2)."""
    (tmp_path / "f").write_bytes(b"old")
    with (tmp_path / "f").open("rb") as reader, writing(tmp_path, slate) as writer:
        writer.part(Part(file("f", 3), 0, b"new"))
        assert reader.read() == b"old"
    assert tree(tmp_path) == {"f": b"new"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, slate: Slate, kind: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"old")

    def full(*_: object) -> int:
        raise OSError(number, "pwrite")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="pwrite") as raised, writing(tmp_path, slate) as writer:
        writer.part(Part(file("f", 6), 0, b"abcdef"))
    assert raised.value.errno == number
    assert tree(tmp_path) == {"f": b"old"}


def test_a_directory_in_the_way_stays(tmp_path: Path, slate: Slate, kind: str) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(IsADirectoryError), writing(tmp_path, slate) as writer:
        writer.part(Part(file("d", 1), 0, b"x"))
    assert sorted(tree(tmp_path)) == ["d"]


def test_only_new_gives_way_to_whoever_was_first(tmp_path: Path, slate: Slate, kind: str) -> None:
    with writing(tmp_path, slate, only_new=True) as writer:
        writer.part(Part(file("f", 2), 0, b"n"))
        (tmp_path / "f").write_bytes(b"old")
        with pytest.raises(CopyRefusal):
            writer.part(Part(None, 0, b"w"))
    assert tree(tmp_path) == {"f": b"old"}


def test_set_group_id_and_sticky_of_made_directories(tmp_path: Path, slate: Slate) -> None:
    """mkdir(2) takes neither set-id bit, and hands down the group's from above."""
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o2755)
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    start = Start(root=root, path="above/made", directory_mode=0o1750)
    writer = TreeWriter(start, slate, only_new=False)
    writer.part(Part(folder("told", 0o2700), 0, b""))
    writer.close()
    os.close(root)
    made = tmp_path / "above/made"
    assert (mode_of(made), mode_of(made / "told")) == (0o1750, 0o2700)


def test_times_of_directories_survive_what_is_written_into_them(
    tmp_path: Path, slate: Slate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order, and with more directories than are remembered in depth-first order."""
    monkeypatch.setattr(treewriter, "TIMES_KEPT", 3)
    with writing(tmp_path, slate, "top") as writer:
        writer.part(Part(folder("", modified=Time(1, 0)), 0, b""))
        for number in range(10):
            name = f"d{number}"
            writer.part(Part(folder(name, modified=Time(2, number)), 0, b""))
            writer.part(Part(folder(f"{name}/e", modified=Time(3, number)), 0, b""))
            writer.part(Part(file(f"{name}/e/f", 0), 0, b""))
            writer.part(Part(file(f"{name}/f", 0), 0, b""))
        writer.finish()
    top = tmp_path / "top"
    assert top.stat().st_mtime_ns == 10**9
    for number in range(10):
        assert (top / f"d{number}").stat().st_mtime_ns == 2 * 10**9 + number
        assert (top / f"d{number}/e").stat().st_mtime_ns == 3 * 10**9 + number


def test_more_directories_than_are_kept_open(tmp_path: Path, slate: Slate) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with writing(tmp_path, slate) as writer:
        for number in range(200):
            writer.part(Part(file(f"{number}/f", 0), 0, b""))
        for number in range(200):
            writer.part(Part(file(f"{number}/g", 0), 0, b""))
        assert len(os.listdir("/proc/self/fd")) - before < 100
    assert len(tree(tmp_path)) == 600
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_that_is_swapped_for_a_link_all_the_time_leads_nowhere(
    tmp_path: Path, slate: Slate, kind: str
) -> None:
    """A neighbour who may write where the copy goes: nothing ever lands outside."""
    top, outside = tmp_path / "top", tmp_path / "outside"
    (top / "real").mkdir(parents=True)
    outside.mkdir()
    (top / "link").symlink_to(outside)
    with exchanging(top / "real", top / "link"):
        for number in range(500):
            entries = [folder("real/d"), file(f"real/d/{number}", 1), file("real/f", 1)]
            for entry in entries:
                with contextlib.suppress(OSError), writing(top, slate) as writer:
                    writer.part(Part(entry, 0, b"x" * entry.size))
                    writer.finish()
    assert list(outside.iterdir()) == []
    assert stat.S_ISDIR(outside.lstat().st_mode)
    landed = [path for path in top.rglob("*") if path.is_file()]
    assert all(path.read_bytes() == b"x" for path in landed)


NAMES = st.sampled_from(["a", "b", "link", "up"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
ENTRIES = st.one_of(
    PATHS.map(lambda path: file(path, 1)),
    PATHS.map(folder),
    st.tuples(PATHS, st.sampled_from(["/", "..", "../..", "../outside", "a", "/outside"])).map(
        lambda both: Entry(both[0], EntryType.LINK, 0o777, *ME, 0, None, both[1])
    ),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(entries=st.lists(ENTRIES, max_size=12))
def test_whatever_comes_in_whatever_order_stays_inside(
    tmp_path_factory: pytest.TempPathFactory, slate: Slate, entries: list[Entry]
) -> None:
    base = tmp_path_factory.mktemp("any")
    (base / "top").mkdir()
    (base / "outside").mkdir()
    before = (base / "outside").stat()
    for entry in entries:
        with contextlib.suppress(OSError, CopyRefusal), writing(base / "top", slate) as writer:
            writer.part(Part(entry, 0, b"x" * entry.size))
            writer.finish()
    assert sorted(os.listdir(base)) == ["outside", "top"]
    assert os.listdir(base / "outside") == []
    after = (base / "outside").stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert not list((base / "top").rglob(".innkeeper-*"))
    assert slate.leftover is None


@pytest.mark.parametrize("start", ["", "s" + "/s" * 1500])
def test_a_path_of_two_thousand_names_is_made(tmp_path: Path, slate: Slate, start: str) -> None:
    """PATH_MAX allows that many; the interpreter's stack does not."""
    path = "/".join(["d"] * 2000)
    with writing(tmp_path, slate, start) as writer:
        writer.part(Part(file(f"{path}/f", 1), 0, b"x"))
        writer.finish()
    here = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    for name in [*start.split("/"), *path.split("/")]:
        below = os.open(name or ".", os.O_PATH | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    assert os.stat("f", dir_fd=here).st_size == 1
    os.close(here)
    treeremoval.remove_tree(location={"root": str(tmp_path), "path": (start or path)[:1]})
