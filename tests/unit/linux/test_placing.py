"""Single steps in a tree that others may write to."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from agent.linux.placing import kind_of, make_directory, remove_directory

pytestmark = [pytest.mark.unit, pytest.mark.storage]


def at(base: Path, path: str = "", *, links: bool = False) -> dict[str, Any]:
    return {"root": str(base), "path": path, "links": links}


def kind(base: Path, path: str, *, links: bool = False) -> object:
    return kind_of(location=at(base, path, links=links))["kind"]


def test_kinds(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "out").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    assert kind(tmp_path, "") == "directory"
    assert kind(tmp_path, "file") == "file"
    assert kind(tmp_path, "pipe") == "pipe"
    assert kind(tmp_path, "link", links=True) == "file"
    assert kind(Path("/dev"), "null") == "device"
    assert kind_of(location=at(tmp_path))["read_only"] is False
    assert kind_of(location=at(Path("/proc/sys")))["kind"] == "directory"
    for path, links, number in (
        ("link", False, errno.ELOOP),
        ("no", False, errno.ENOENT),
        ("out", True, errno.ENOENT),
        ("file/x", False, errno.ENOTDIR),
    ):
        with pytest.raises(OSError, match="openat2") as caught:
            kind(tmp_path, path, links=links)
        assert caught.value.errno == number, path


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777, 0o2770])
def test_a_directory_has_the_mode_whatever_the_mask(tmp_path: Path, mode: int) -> None:
    mask = os.umask(0o077)
    try:
        make_directory(location=at(tmp_path, "new"), mode=mode)
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == mode
    with pytest.raises(FileExistsError):
        make_directory(location=at(tmp_path, "new"), mode=mode)
    remove_directory(location=at(tmp_path, "new"))
    assert os.listdir(tmp_path) == []


def test_nothing_is_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "dangling").symlink_to(tmp_path / "outside/new")
    with pytest.raises(OSError, match="openat2"):
        make_directory(location=at(root, "link/new"), mode=0o755)
    with pytest.raises(FileExistsError):
        make_directory(location=at(root, "dangling"), mode=0o755)
    assert os.listdir(tmp_path / "outside") == []


def test_only_empty_directories_are_removed(tmp_path: Path) -> None:
    (tmp_path / "full/x").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("full/x")
    for path, number in (
        ("full", errno.ENOTEMPTY),
        ("file", errno.ENOTDIR),
        ("link", errno.ENOTDIR),
        ("no", errno.ENOENT),
    ):
        with pytest.raises(OSError, match=r".") as caught:
            remove_directory(location=at(tmp_path, path))
        assert caught.value.errno == number, path
