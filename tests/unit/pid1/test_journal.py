"""The exit journal: nothing lost on a full disk, numbers that go on, a file that stays small."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.linux.pidfd import ChildExit
from agent.pid1.journal import Entry, Journal

pytestmark = [pytest.mark.unit, pytest.mark.boot]


class Disk:
    """os.write for a disk with so many bytes left, as a full tmpfs behaves: short, then ENOSPC."""

    def __init__(self, left: int = 10**9) -> None:
        self.left = left

    def __call__(self, fd: int, data: memoryview) -> int:
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(fd, data[: self.left])
        self.left -= written
        return written


@contextlib.contextmanager
def opened(path: Path, limit: int = 8, disk: Disk | None = None) -> Iterator[Journal]:
    journal = Journal(str(path), limit=limit, write=disk or os.write)
    try:
        yield journal
    finally:
        journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "exits.jsonl"


def append(journal: Journal, count: int = 1) -> list[Entry]:
    return [
        journal.append(ChildExit(100 + i, i % 256, 0), cgroup="/pods/s/c", at=1.5, comm="sh")
        for i in range(count)
    ]


def trouble(journal: Journal) -> int | None:
    return journal.trouble.errno if journal.trouble else None


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_numbers_start_at_1_and_an_entry_is_one_line(path: Path) -> None:
    with opened(path) as journal:
        assert (journal.last, journal.oldest) == (0, 1)
        journal.append(ChildExit(7, 137, 9), cgroup="/pods/s/c", at=12.25, comm='a "b"')
    assert lines(path) == [
        {
            "seq": 1,
            "pid": 7,
            "cgroup": "/pods/s/c",
            "code": 137,
            "signal": 9,
            "at": 12.25,
            "comm": 'a "b"',
            "core_dumped": False,
        }
    ]


def test_a_core_dump_is_kept(path: Path) -> None:
    dumped = ChildExit(7, 128 + 11, 11, core_dumped=True)
    with opened(path) as journal:
        journal.append(dumped, cgroup="/pods/s/c", at=1.5, comm="sh")
    with opened(path) as again:
        assert again.after(0, 10)[0].core_dumped


def test_a_journal_of_before_core_dumps_were_told_is_read(path: Path) -> None:
    """Entries without the member are those of processes that dumped nothing."""
    old = {"seq": 4, "pid": 7, "cgroup": "/x", "code": 0, "signal": 0, "at": 1.5, "comm": "sh"}
    path.write_text(json.dumps(old) + "\n")
    with opened(path) as journal:
        assert journal.after(0, 10) == [Entry(4, 7, "/x", 0, 0, 1.5, "sh", core_dumped=False)]
        append(journal)
    assert [(line["seq"], line["core_dumped"]) for line in lines(path)] == [(4, False), (5, False)]


def test_after_gives_the_next_ones_in_order(path: Path) -> None:
    with opened(path) as journal:
        append(journal, 5)
        assert [entry.seq for entry in journal.after(2, 2)] == [3, 4]
        assert [entry.seq for entry in journal.after(0, 100)] == [1, 2, 3, 4, 5]
        assert journal.after(5, 10) == []
        assert journal.after(10**18, 10) == []


def test_memory_keeps_the_last_ones(path: Path) -> None:
    with opened(path, limit=8) as journal:
        append(journal, 20)
        assert (journal.oldest, journal.last) == (13, 20)
        assert [entry.seq for entry in journal.after(0, 100)] == list(range(13, 21))


def test_the_file_is_compacted(path: Path) -> None:
    with opened(path, limit=8) as journal:
        append(journal, 1000)
    numbers = [line["seq"] for line in lines(path)]
    assert len(numbers) <= 16
    assert numbers == list(range(1001 - len(numbers), 1001))
    assert os.listdir(path.parent) == [path.name]


def test_numbers_go_on_after_a_reload(path: Path) -> None:
    with opened(path) as journal:
        before = append(journal, 3)
    with opened(path) as again:
        assert again.after(0, 10) == before
        assert append(again)[0].seq == 4
    assert [line["seq"] for line in lines(path)] == [1, 2, 3, 4]


def test_damage_in_the_file_costs_only_what_is_damaged(path: Path) -> None:
    with opened(path) as journal:
        append(journal, 2)
    damaged = path.read_bytes() + b'not json\n{"seq":3}\n[]\n{"seq":9,"pid"'
    path.write_bytes(damaged)
    with opened(path) as again:
        assert [entry.seq for entry in again.after(0, 10)] == [1, 2]
        append(again)
    with opened(path) as third:
        assert [entry.seq for entry in third.after(0, 10)] == [1, 2, 3]


@pytest.mark.parametrize("left", [0, 1, 100, 150])
def test_a_full_disk_loses_nothing(path: Path, left: int) -> None:
    """Memory keeps all, no line is torn, and the file is complete again when there is room."""
    disk = Disk(left)
    with opened(path, limit=8, disk=disk) as journal:
        append(journal, 6)
        assert trouble(journal) == errno.ENOSPC
        assert [entry.seq for entry in journal.after(0, 10)] == [1, 2, 3, 4, 5, 6]
        assert all(line["seq"] for line in lines(path))
        disk.left = 10**9
        append(journal)
        assert trouble(journal) is None
    assert [line["seq"] for line in lines(path)] == [1, 2, 3, 4, 5, 6, 7]


def test_without_its_directory_the_journal_lives_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "later" / "exits.jsonl"
    with opened(path) as journal:
        append(journal, 2)
        assert trouble(journal) == errno.ENOENT
        path.parent.mkdir()
        append(journal)
        assert trouble(journal) is None
    assert [line["seq"] for line in lines(path)] == [1, 2, 3]


@given(st.lists(st.booleans(), max_size=80))
def test_any_order_of_full_and_free_disk(
    tmp_path_factory: pytest.TempPathFactory, free: list[bool]
) -> None:
    """Whatever happens, memory has the last eight and the file never a wrong or doubled line."""
    path = tmp_path_factory.mktemp("journal") / "exits.jsonl"
    disk = Disk()
    with opened(path, limit=8, disk=disk) as journal:
        for has_room in free:
            disk.left = 10**9 if has_room else 0
            append(journal)
        count = len(free)
        kept = [entry.seq for entry in journal.after(0, 100)]
        assert kept == list(range(max(1, count - 7), count + 1))
        numbers = [line["seq"] for line in lines(path)] if path.exists() else []
        assert numbers == sorted(set(numbers))
        if free and free[-1]:
            assert numbers[-len(kept) :] == kept
