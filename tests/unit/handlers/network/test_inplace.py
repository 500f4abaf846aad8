"""Files that keep their inode: what a reader may see, and a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent.handlers.network import inplace

pytestmark = [pytest.mark.unit, pytest.mark.network]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hosts"


def test_the_inode_stays(file: Path) -> None:
    inplace.rewrite(file, "one\ntwo\n")
    number = file.stat().st_ino
    for text in ("one\ntwo\nthree\n", "one\n", "", "four\n"):
        inplace.rewrite(file, text)
        assert file.read_text() == text
    assert file.stat().st_ino == number


def test_everybody_may_read_it_whatever_the_umask(file: Path) -> None:
    before = os.umask(0o077)
    try:
        inplace.rewrite(file, "x\n")
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_reader_finds_whole_lines_at_every_step(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the calls: the new lines, all of them, and perhaps empty ones."""
    inplace.rewrite(file, "nameserver 192.0.2.1\nnameserver 192.0.2.2\n")
    seen = []
    real = os.ftruncate

    def look(fd: int, size: int) -> None:
        seen.append(file.read_text())
        real(fd, size)

    monkeypatch.setattr(os, "ftruncate", look)
    inplace.rewrite(file, "nameserver 192.0.2.3\n")
    assert [text.split("\n")[0] for text in seen] == ["nameserver 192.0.2.3"]
    assert [text.strip() for text in seen] == ["nameserver 192.0.2.3"]


def test_a_full_disk_leaves_it_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inplace.rewrite(file, "one\n")
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if offset + len(data) > 10:
            if offset < 10:
                return real(fd, data[: 10 - offset], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="space"):
        inplace.rewrite(file, "a much longer text\n")
    assert file.read_text() == "one\n"


def test_a_link_is_not_followed(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine\n")
    file.symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        inplace.rewrite(file, "x\n")
    assert other.read_text() == "mine\n"


def test_nothing_there_reads_as_none(file: Path) -> None:
    assert inplace.read(file) is None
