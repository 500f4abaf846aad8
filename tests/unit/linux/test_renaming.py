"""A rename that replaces nothing, also where the file system has no flag for it."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.linux import renaming
from agent.linux.renaming import rename_new

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture(params=["flag", "no flag"])
def folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[int]:
    """The second as renameat2(2) has it of NFS: EINVAL."""

    class WithoutFlag:
        def renameat2(self, *_: object) -> int:
            ctypes.set_errno(errno.EINVAL)
            return -1

    if request.param == "no flag":
        monkeypatch.setattr(renaming, "libc", WithoutFlag())
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_name_that_is_free_is_taken(tmp_path: Path, folder: int) -> None:
    (tmp_path / "l").symlink_to("nowhere")
    rename_new("l", "m", folder)
    assert [(path.name, os.readlink(path)) for path in tmp_path.iterdir()] == [("m", "nowhere")]


@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_a_name_that_is_there_stays(tmp_path: Path, folder: int, kind: str) -> None:
    (tmp_path / "new").write_bytes(b"new")
    match kind:
        case "file":
            (tmp_path / "old").write_bytes(b"old")
        case "link":
            (tmp_path / "old").symlink_to("new")
        case _:
            (tmp_path / "old").mkdir()
    before = (tmp_path / "old").lstat().st_ino
    with pytest.raises(FileExistsError):
        rename_new("new", "old", folder)
    assert (tmp_path / "old").lstat().st_ino == before
    assert (tmp_path / "new").read_bytes() == b"new"
