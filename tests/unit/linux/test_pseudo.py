"""Files of proc and sysfs: errors with call and object, and one write for one value."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agent.linux import pseudo

pytestmark = [pytest.mark.unit, pytest.mark.devices]


def test_text_is_whole_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a\xff b\n" + b"x" * 200_000)
    text = pseudo.read_text(path)
    assert text.encode(errors="surrogateescape") == path.read_bytes()


def test_a_missing_file_is_an_error_with_call_and_object(tmp_path: Path) -> None:
    path = str(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="open") as caught:
        pseudo.read_text(path)
    assert caught.value.filename == path
    assert pseudo.read_optional(path) is None
    assert pseudo.read_optional(f"{__file__}/below/a/file") is None


def test_a_process_that_is_gone_reads_as_none() -> None:
    # Above any pid the kernel gives (PID_MAX_LIMIT).
    assert pseudo.read_optional("/proc/4194305/comm") is None


def test_what_is_there_but_cannot_be_read_stays_an_error(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="read"):
        pseudo.read_optional(tmp_path)


def test_write_goes_to_an_existing_file_only(tmp_path: Path) -> None:
    path = tmp_path / "value"
    with pytest.raises(FileNotFoundError):
        pseudo.write(path, "1")
    path.touch()
    pseudo.write(path, "1")
    assert path.read_text() == "1"


def test_a_write_that_fails_names_the_call() -> None:
    with pytest.raises(OSError, match="write") as caught:
        pseudo.write("/dev/full", "1")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")
