"""What is kept of a guest's console on the host's disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from innkeeper.shim.console_log import PART, ConsoleLog

pytestmark = [pytest.mark.unit, pytest.mark.boot]


@contextlib.contextmanager
def console_log(folder: Path, part: int = PART) -> Iterator[ConsoleLog]:
    with contextlib.closing(ConsoleLog(folder / "console.log", part)) as made:
        yield made


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_written_is_in_the_file_at_once(tmp_path: Path) -> None:
    with console_log(tmp_path) as log:
        log.write(b"Linux version 6")
        assert files(tmp_path) == {"console.log": b"Linux version 6"}


def test_a_guest_that_prints_for_ever_keeps_its_boot_and_its_end(tmp_path: Path) -> None:
    with console_log(tmp_path, part=4) as log:
        for piece in (b"boot", b"12", b"345", b"6789", b"abcd", b"ef"):
            log.write(piece)
    assert files(tmp_path) == {
        "console.log.boot": b"boot",
        "console.log.1": b"9abc",
        "console.log": b"def",
    }


def test_nothing_is_lost_between_two_parts(tmp_path: Path) -> None:
    with console_log(tmp_path, part=4) as log:
        log.write(b"0123456789a")
    assert files(tmp_path) == {
        "console.log.boot": b"0123",
        "console.log.1": b"4567",
        "console.log": b"89a",
    }


def test_a_full_disk_of_the_host_does_not_reach_the_vm(tmp_path: Path) -> None:
    """Of /dev/full every write ends with ENOSPC, full(4)."""
    (tmp_path / "console.log").symlink_to("/dev/full")
    with console_log(tmp_path) as log:
        log.write(b"x")
        log.write(b"y")
