"""Reading a copy from a tree that somebody changes meanwhile."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.linux import copyframes
from agent.linux.copyframes import EntryType, Kind
from agent.linux.copyoutbox import LINES_MOST, Outbox
from agent.linux.copyslate import Slate, new_slate
from agent.linux.treereader import Question, TreeReader
from tests.fakes.exchanging import exchanging

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
def slate() -> Iterator[Slate]:
    page = new_slate()
    made = Slate(page)
    os.close(page)
    yield made
    made.close()


class Reading:
    """One copy through a socket, as the agent would take it."""

    def __init__(self, top: Path, slate: Slate, path: str = "", **rules: object) -> None:
        self.files: dict[str, bytes] = {}
        self.types: dict[str, EntryType] = {}
        self.left_out: list[str] = []
        self.frames = 0
        ours, theirs = socket.socketpair()
        taking = threading.Thread(target=self._take, args=(ours,))
        taking.start()
        root = os.open(top, os.O_PATH | os.O_DIRECTORY)
        try:
            question = Question(root=root, path=path, recursive=True, **rules)  # type: ignore[arg-type]
            outbox = Outbox(theirs, slate)
            TreeReader(question, outbox).read()
            outbox.close()
        finally:
            os.close(root)
            theirs.close()
            taking.join()

    def _take(self, channel: socket.socket) -> None:
        with channel, channel.makefile("rb") as stream:
            path = ""
            while prefix := stream.read(copyframes.PREFIX.size):
                length, kind = copyframes.PREFIX.unpack(prefix)
                payload = stream.read(length)
                self.frames += 1
                if kind == Kind.LEFT_OUT:
                    self.left_out += json.loads(payload)
                    continue
                for part in copyframes.unpack_parts(payload):
                    if part.entry is not None:
                        path = part.entry.path
                        self.types[path] = part.entry.type
                        self.files[path] = b""
                    self.files[path] += bytes(part.hole) + bytes(part.data)


def test_depth_first_and_a_directory_before_what_is_in_it(tmp_path: Path, slate: Slate) -> None:
    for name in ("b/c/d", "a/x", "b/a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    reading = Reading(tmp_path, slate)
    assert list(reading.files) == ["", "a", "a/x", "b", "b/a", "b/c", "b/c/d"]
    assert reading.files["b/c/d"] == b"b/c/d"
    assert reading.left_out == []


def test_no_descriptor_is_left_open_however_deep(tmp_path: Path, slate: Slate) -> None:
    folder = tmp_path / "/".join("d" * 200)
    folder.mkdir(parents=True)
    (folder / "f").write_bytes(b"deep")
    before = len(os.listdir("/proc/self/fd"))
    reading = Reading(tmp_path, slate)
    assert len(reading.types) == 202
    assert b"deep" in reading.files.values()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_path_that_is_too_long_for_the_protocol_is_told(tmp_path: Path, slate: Slate) -> None:
    """PATH_MAX is 4096 with its NUL; deeper trees are made with relative paths."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(17):
        os.mkdir("x" * 250, dir_fd=here)
        below = os.open("x" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    reading = Reading(tmp_path, slate)
    assert len(reading.types) == 17
    (line,) = reading.left_out
    assert line.endswith(": its path is too long")


def test_a_sparse_file_is_told_by_its_holes(tmp_path: Path, slate: Slate) -> None:
    with (tmp_path / "f").open("wb") as file:
        os.pwrite(file.fileno(), b"end", 10 << 20)
        file.truncate(20 << 20)
    reading = Reading(tmp_path, slate, "f")
    assert len(reading.files[""]) == 20 << 20
    assert reading.files[""].rstrip(b"\0")[-3:] == b"end"
    assert reading.frames == 1


def test_a_file_that_shrinks_is_filled_up_and_told(
    tmp_path: Path, slate: Slate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is told first and must be kept."""
    (tmp_path / "f").write_bytes(b"x" * 1000)
    real = os.pread

    def shrinking(fd: int, count: int, at: int) -> bytes:
        os.truncate(tmp_path / "f", 10)
        return real(fd, count, at)

    monkeypatch.setattr(os, "pread", shrinking)
    reading = Reading(tmp_path, slate)
    assert reading.files["f"] == b"x" * 10 + bytes(990)
    assert reading.left_out == ["f: it changed while it was read"]


def test_a_file_that_grows_is_cut_and_told(
    tmp_path: Path, slate: Slate, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"x" * 1000)
    real = os.pread

    def growing(fd: int, count: int, at: int) -> bytes:
        os.truncate(tmp_path / "f", 5000)
        return real(fd, count, at)

    monkeypatch.setattr(os, "pread", growing)
    reading = Reading(tmp_path, slate)
    assert reading.files["f"] == b"x" * 1000
    assert reading.left_out == ["f: it changed while it was read"]


def test_a_long_list_of_what_is_left_out_is_cut(tmp_path: Path, slate: Slate) -> None:
    for number in range(LINES_MOST + 5):
        os.mkfifo(tmp_path / f"{number}")
    reading = Reading(tmp_path, slate)
    assert len(reading.left_out) == LINES_MOST + 1
    assert reading.left_out[-1] == "... and 5 more"


def test_what_is_left_out_is_one_line_whatever_its_name(tmp_path: Path, slate: Slate) -> None:
    os.mkfifo(tmp_path / "two\nlines\x1b[31m")
    assert Reading(tmp_path, slate).left_out == ["two\\nlines\\x1b[31m: a fifo"]


def test_a_socket_and_a_fifo_are_never_opened(tmp_path: Path, slate: Slate) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        os.mkfifo(tmp_path / "p")
        reading = Reading(tmp_path, slate)
    assert reading.left_out == ["p: a fifo", "s: a socket"]


@pytest.mark.parametrize("bait", ["link", "fifo", "directory"])
def test_a_file_that_is_swapped_all_the_time_is_itself_or_left_out(
    tmp_path: Path, slate: Slate, bait: str
) -> None:
    """Never what a link leads to, and never a wait for a fifo's writer."""
    top, outside = tmp_path / "top", tmp_path / "outside"
    top.mkdir()
    outside.write_bytes(b"secret")
    (top / "f").write_bytes(b"public")
    other = tmp_path / "other"
    match bait:
        case "link":
            other.symlink_to(outside)
        case "fifo":
            os.mkfifo(other)
        case _:
            other.mkdir()
    with exchanging(top / "f", other):
        for _ in range(500):
            found = Reading(top, slate)
            assert found.files.get("f", b"") in (b"", b"public")


def test_a_directory_that_is_swapped_for_a_link_is_not_left(tmp_path: Path, slate: Slate) -> None:
    top, outside = tmp_path / "top", tmp_path / "outside"
    (top / "d").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(outside)
    with exchanging(top / "d", tmp_path / "link"):
        for _ in range(500):
            assert "d/secret" not in Reading(top, slate).files
