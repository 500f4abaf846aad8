"""Lines and files of an output log: nothing repeated, nothing lost, whatever cuts them short."""

from __future__ import annotations

import itertools
import json
import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.life import LogOptions
from agent.core.model import Stream
from agent.handlers.runtime.logs.files import LogFiles, LogSpace, forget, numbers, path_of
from agent.handlers.runtime.logs.reading import LogCursor, LogQuery, Position
from agent.handlers.runtime.logs.records import LogPiece, cut, from_line, to_line

pytestmark = [pytest.mark.unit, pytest.mark.containers]

OUT, ERR = Stream.STDOUT, Stream.STDERR
BOTH = (OUT, ERR)
SMALLEST = 4096

written = st.one_of(
    st.binary(max_size=3000),
    st.text(max_size=2000).map(str.encode),
    st.integers(1, 5000).map(lambda count: b"\0" * count),
)


def piece(data: bytes, *, stream: Stream = OUT, offset: int = 0, at: float = 1.5) -> LogPiece:
    return LogPiece(stream=stream, offset=offset, at=at, data=data)


def read(directory: Path, query: LogQuery | None = None) -> list[LogPiece]:
    cursor = LogCursor(directory, query or LogQuery(), Position())
    found: list[LogPiece] = []
    while (more := cursor.more()) is not None:
        found += more
    return found


def joined(pieces: list[LogPiece], stream: Stream, start: int = 0) -> bytes:
    """The stream's bytes; each piece must begin where the one before ended."""
    data = b""
    for each in pieces:
        if each.stream is stream:
            assert each.offset == start + len(data)
            data += each.data
    return data


def test_text_lies_there_as_text() -> None:
    line = to_line(piece("grüße\n\x1b[0m".encode(), offset=7, at=0.25))
    assert line.endswith(b"\n")
    assert "grüße" in line.decode()
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.250000Z",
        "stream": "stdout",
        "offset": 7,
        "log": "grüße\n\x1b[0m",
    }


def test_what_is_no_text_lies_there_in_base64() -> None:
    assert json.loads(to_line(piece(b"\xff\n", stream=ERR)))["base64"] == "/wo="


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"{}\n", b"[]\n", b'{"time": 1}\n', b"\xff\n", to_line(piece(b"whole"))[:-1]],
)
def test_what_is_no_line_of_a_log(line: bytes) -> None:
    assert from_line(line) is None


@given(data=written, size=st.sampled_from([SMALLEST, 1 << 20]))
def test_every_part_fits_and_comes_back(data: bytes, size: int) -> None:
    parts = list(cut(data, size))
    assert b"".join(parts) == data
    for part in parts:
        line = to_line(piece(part, offset=2**60))
        # A new file begins with an empty line of each stream.
        assert len(line) + 2 * len(to_line(piece(b"", offset=2**60))) <= size
        found = from_line(line)
        assert found is not None
        assert (found.data, found.offset, found.stream, found.at) == (part, 2**60, OUT, 1.5)


@given(text=st.text(min_size=1, max_size=400), cuts=st.lists(st.integers(0, 1600), max_size=4))
def test_text_stays_text_but_for_characters_that_chunks_cut(text: str, cuts: list[int]) -> None:
    data = text.encode()
    at = sorted({0, len(data), *(each for each in cuts if each < len(data))})
    chunks = [data[start:end] for start, end in itertools.pairwise(at)]
    parts = [part for chunk in chunks for part in cut(chunk, SMALLEST)]
    cut_off = [part for part in parts if b"base64" in to_line(piece(part))]
    assert all(len(part) <= 3 for part in cut_off)
    assert len(cut_off) <= 2 * len(cuts)


@given(
    chunks=st.lists(st.tuples(st.sampled_from(BOTH), written), max_size=12),
    seed=st.integers(0, 2**32),
    size=st.sampled_from([SMALLEST, 16 << 10]),
)
def test_killed_anywhere_it_goes_on_exactly(
    chunks: list[tuple[Stream, bytes]], seed: int, size: int
) -> None:
    """A killed writer leaves a line that is cut at any byte; the next goes on from its files."""
    dice = random.Random(seed)
    options = LogOptions(max_bytes=size, files=10_000)
    source = dict.fromkeys(BOTH, b"")
    with tempfile.TemporaryDirectory() as top:
        directory = Path(top) / "log"
        files = LogFiles(directory, options, BOTH, LogSpace())
        for stream, data in chunks:
            source[stream] += data
            if dice.random() < 0.4:
                files.close()
                _cut_somewhere(directory, dice)
                files = LogFiles(directory, options, BOTH, LogSpace())
            _catch_up(files, source)
        files.close()
        pieces = read(directory)
        assert {stream: joined(pieces, stream) for stream in BOTH} == source
        assert all(path_of(directory, n).stat().st_size <= size for n in numbers(directory))


def _catch_up(files: LogFiles, source: dict[Stream, bytes]) -> None:
    for stream, data in source.items():
        end = files.ends[stream]
        files.append(piece(data[end:], stream=stream, offset=end))


def _cut_somewhere(directory: Path, dice: random.Random) -> None:
    found = numbers(directory)
    if found:
        path = path_of(directory, found[-1])
        os.truncate(path, dice.randint(0, path.stat().st_size))


def test_files_are_rotated_and_the_newest_kept(tmp_path: Path) -> None:
    options = LogOptions(max_bytes=SMALLEST, files=3)
    files = LogFiles(tmp_path / "log", options, BOTH, LogSpace())
    text = b"".join(b"line %d\n" % number for number in range(3000))
    files.append(piece(text))
    files.close()
    found = numbers(files.directory)
    assert len(found) == 3
    assert found[0] > 1
    assert all(path_of(files.directory, n).stat().st_size <= SMALLEST for n in found)
    pieces = read(files.directory)
    start = pieces[0].offset
    assert joined(pieces, OUT, start) == text[start:]


def test_a_single_file_is_replaced(tmp_path: Path) -> None:
    files = LogFiles(tmp_path / "log", LogOptions(max_bytes=SMALLEST, files=1), BOTH, LogSpace())
    for number in range(100):
        files.append(piece(b"x" * 100, offset=number * 100))
        assert len(numbers(files.directory)) == 1
    files.close()
    assert read(files.directory)[-1].end == 10_000


def test_a_stream_that_is_silent_for_long_is_still_known_after_rotation(tmp_path: Path) -> None:
    options = LogOptions(max_bytes=SMALLEST, files=1)
    files = LogFiles(tmp_path / "log", options, BOTH, LogSpace())
    files.append(piece(b"once\n", stream=ERR))
    for number in range(100):
        files.append(piece(b"x" * 100, offset=number * 100))
    files.close()
    again = LogFiles(tmp_path / "log", options, BOTH, LogSpace())
    again.close()
    assert again.ends == {OUT: 10_000, ERR: 5}


class SmallDisk:
    """A file system of so many bytes, as write(2) sees it: it takes what it can."""

    def __init__(self, top: Path, size: int) -> None:
        self._top, self.size = top, size
        self._write = os.write

    def write(self, fd: int, data: bytes) -> int:
        used = sum(path.stat().st_size for path in self._top.rglob("*.jsonl"))
        left = self.size - used
        if left <= 0:
            raise OSError(28, "No space left on device")
        return self._write(fd, data[:left])


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallDisk:
    disk = SmallDisk(tmp_path, 40_000)
    monkeypatch.setattr("agent.handlers.runtime.logs.files.os.write", disk.write)
    return disk


def test_when_all_is_full_the_oldest_goes(tmp_path: Path, disk: SmallDisk) -> None:
    files = LogFiles(tmp_path / "log", LogOptions(max_bytes=8192, files=16), BOTH, LogSpace())
    text = b"".join(b"%09d\n" % number for number in range(20_000))
    files.append(piece(text))
    assert files.ends[OUT] == len(text)
    files.close()
    pieces = read(files.directory)
    assert pieces[0].offset > 0, "the gap shows in the offsets"
    assert joined(pieces, OUT, pieces[0].offset) == text[pieces[0].offset :]


def test_the_log_that_has_most_gives(tmp_path: Path, disk: SmallDisk) -> None:
    space = LogSpace()
    small = LogFiles(tmp_path / "small", LogOptions(max_bytes=8192, files=16), BOTH, space)
    big = LogFiles(tmp_path / "big", LogOptions(max_bytes=1 << 20, files=2), BOTH, space)
    small.append(piece(b"kept\n" * 1000))
    big.append(piece(b"x" * 30_000))
    small.append(piece(b"more\n" * 1000, offset=5000))
    small.close()
    assert joined(read(tmp_path / "small"), OUT) == b"kept\n" * 1000 + b"more\n" * 1000
    big.append(piece(b"y" * 10, offset=30_000))
    big.close()
    assert joined(read(tmp_path / "big"), OUT, 30_000) == b"y" * 10


def test_where_there_is_no_space_at_all_nobody_waits(tmp_path: Path, disk: SmallDisk) -> None:
    files = LogFiles(tmp_path / "log", LogOptions(), BOTH, LogSpace())
    disk.size = 50
    files.append(piece(b"lost"))
    assert files.ends[OUT] == 4
    disk.size = 40_000
    files.append(piece(b"kept", offset=4))
    files.close()
    assert joined(read(files.directory), OUT, 4) == b"kept"


def test_nothing_is_left_when_it_is_forgotten(tmp_path: Path) -> None:
    space = LogSpace()
    files = LogFiles(tmp_path / "c1" / "-", LogOptions(), BOTH, space)
    files.append(piece(b"text"))
    files.close()
    forget(files.directory)
    assert (list(tmp_path.iterdir()), space.logs) == ([], set())
