"""A local tree as parts, and back: what goes in is what is there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from innkeeper.shim.landing import Landing, Place
from innkeeper.shim.localtree import BATCH_BYTES, Sending, batches
from innkeeper.v1 import files_pb2 as pb
from tests.fakes.copying import mode_of, tree

pytestmark = [pytest.mark.unit, pytest.mark.storage]


def parts(sending: Sending) -> list[pb.FilePart]:
    return [part for batch in batches(sending) for part in batch]


def paths(sending: Sending) -> list[str]:
    return [part.header.path for part in parts(sending) if part.HasField("header")]


def test_a_tree_through_both_ends_is_the_same(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "a/b").mkdir(parents=True)
    (top / "a/b").chmod(0o500)
    (top / "a/f").write_bytes(os.urandom(BATCH_BYTES * 2 + 7))
    (top / "empty").write_bytes(b"")
    (top / "l").symlink_to("a//b")
    with (top / "sparse").open("wb") as file:
        os.pwrite(file.fileno(), b"middle", 50 << 20)
        file.truncate(100 << 20)
    os.utime(top / "a", ns=(1, 123_456_789_012))
    with Landing(Place(folder=tmp_path, name="back")) as landing:
        for batch in batches(Sending(source=top)):
            landing.parts(batch)
        landing.finish()
    back = tmp_path / "back"
    assert tree(back) == tree(top)
    assert (back / "a").stat().st_mtime_ns == 123_456_789_012
    assert (back / "sparse").stat().st_blocks < 1000
    assert mode_of(back / "a/b") == 0o500


def test_depth_first_a_directory_before_what_is_in_it(tmp_path: Path) -> None:
    for name in ("b/c/d", "a/x", "b/a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert paths(Sending(source=tmp_path)) == ["", "a", "a/x", "b", "b/a", "b/c", "b/c/d"]
    content = paths(Sending(source=tmp_path, only_content=True))
    assert content == ["a", "a/x", "b", "b/a", "b/c", "b/c/d"]


def test_a_link_is_a_link_unless_it_is_the_source_and_followed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"")
    (tmp_path / "l").symlink_to("d")
    (part,) = parts(Sending(source=tmp_path / "l"))
    assert (part.header.type, part.header.link_target) == (pb.FILE_TYPE_LINK, "d")
    assert paths(Sending(source=tmp_path / "l", follow=True)) == ["", "f"]


def test_many_small_files_come_together(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"{number}").write_bytes(b"x" * 100)
    found = list(batches(Sending(source=tmp_path)))
    assert sum(len(batch) for batch in found) == 2001
    assert len(found) <= 3


def test_owners_are_roots_unless_they_are_kept(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    me = (os.getuid(), os.getgid())
    for keep, wanted in ((False, (0, 0)), (True, me)):
        for part in parts(Sending(source=tmp_path, keep_owner=keep)):
            assert (part.header.uid, part.header.gid) == wanted


def test_what_can_not_be_copied_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        os.mkfifo(tmp_path / "p")
        (tmp_path / os.fsdecode(b"\xff")).write_bytes(b"")
        (tmp_path / "l").symlink_to(os.fsdecode(b"\xfe"))
        sending = Sending(source=tmp_path)
        assert paths(sending) == [""]
    assert sorted(sending.left_out) == [
        "b'\\xff': it is not in UTF-8",
        "l: its target is not in UTF-8",
        "p: a fifo",
        "s: a socket",
    ]


@pytest.mark.parametrize("after", [b"", b"y" * 5000])
def test_a_file_that_changes_meanwhile_has_the_size_that_was_told(
    tmp_path: Path, after: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"x" * 1000)
    real = os.pread

    def changing(fd: int, count: int, at: int) -> bytes:
        (tmp_path / "f").write_bytes(after)
        return real(fd, count, at)

    monkeypatch.setattr(os, "pread", changing)
    sending = Sending(source=tmp_path / "f")
    found = parts(sending)
    assert sum(part.hole + len(part.data) for part in found) == 1000
    assert sending.left_out == [f"{tmp_path}/f: it changed while it was read"]


def test_a_file_that_vanishes_meanwhile_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"")
    (tmp_path / "g").write_bytes(b"")
    real = os.lstat

    def vanishing(path: str) -> os.stat_result:
        if path.endswith("/f"):
            (tmp_path / "f").unlink()
        return real(path)

    monkeypatch.setattr(os, "lstat", vanishing)
    sending = Sending(source=tmp_path)
    assert paths(sending) == ["", "g"]
    assert sending.left_out == ["f: it vanished meanwhile"]
