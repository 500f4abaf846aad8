"""Arrivals in a directory."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path

import pytest

from agent.linux import inotify

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def _readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_a_bound_socket_and_a_renamed_file_arrive(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    fd = inotify.watch_arrivals(str(tmp_path))
    try:
        assert not _readable(fd)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(tmp_path / "agent.sock"))
        assert _readable(fd)
        inotify.drain(fd)
        assert not _readable(fd)
        (other / "file").write_text("")
        (other / "file").rename(tmp_path / "file")
        assert _readable(fd)
    finally:
        os.close(fd)


def test_what_goes_is_no_arrival(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fd = inotify.watch_arrivals(str(tmp_path))
    try:
        (tmp_path / "file").unlink()
        assert not _readable(fd)
    finally:
        os.close(fd)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="inotify_add_watch") as failure:
        inotify.watch_arrivals(str(tmp_path / "gone"))
    assert failure.value.filename == str(tmp_path / "gone")
