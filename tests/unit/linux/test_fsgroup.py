"""Modes as Kubernetes' fsGroup sets them, without root: the group is our own.

With other groups, other owners and mounts: tests/privileged/test_storage_operations.py.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from agent.linux.fsgroup import apply_fs_group

pytestmark = [pytest.mark.unit, pytest.mark.storage]

GROUP = os.getegid()


def apply(tree: Path, *, read_only: bool = False, on_mismatch_only: bool = False) -> int:
    return apply_fs_group(
        path=str(tree), gid=GROUP, read_only=read_only, on_mismatch_only=on_mismatch_only
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def make(path: Path, bits: int) -> Path:
    path.touch()
    path.chmod(bits)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Directories and files that a group could not use."""
    made = tmp_path / "tree"
    (made / "inner/deep").mkdir(parents=True)
    for directory in (made, made / "inner", made / "inner/deep"):
        directory.chmod(0o700)
    make(made / "file", 0o600)
    make(made / "inner/program", 0o700)
    make(made / "inner/deep/secret", 0o400)
    return made


def test_files_can_be_read_and_written_and_directories_hand_the_group_on(tree: Path) -> None:
    apply(tree)
    assert [mode(path) for path in (tree, tree / "inner", tree / "inner/deep")] == [0o2770] * 3
    assert mode(tree / "file") == 0o660
    assert mode(tree / "inner/program") == 0o760
    assert mode(tree / "inner/deep/secret") == 0o660


def test_what_is_there_stays(tree: Path) -> None:
    make(tree / "open", 0o666)
    (tree / "inner").chmod(0o1777)
    apply(tree)
    assert mode(tree / "open") == 0o666
    assert mode(tree / "inner") == 0o3777


def test_a_read_only_storage_is_only_read(tree: Path) -> None:
    apply(tree, read_only=True)
    assert mode(tree) == 0o2750
    assert mode(tree / "file") == 0o640
    assert mode(tree / "inner/deep/secret") == 0o440


def test_a_second_time_changes_nothing(tree: Path) -> None:
    assert apply(tree) == 6
    assert apply(tree) == 0


def test_with_a_right_root_the_tree_is_left_alone(tree: Path) -> None:
    """Kubernetes' fsGroupChangePolicy OnRootMismatch."""
    assert apply(tree, on_mismatch_only=True) == 6
    (tree / "file").chmod(0o600)
    assert apply(tree, on_mismatch_only=True) == 0
    assert mode(tree / "file") == 0o600
    tree.chmod(0o750)
    assert apply(tree, on_mismatch_only=True) == 2
    assert mode(tree / "file") == 0o660


def test_a_root_that_lacks_only_set_group_id_is_not_right(tree: Path) -> None:
    apply(tree)
    tree.chmod(0o770)
    (tree / "file").chmod(0o600)
    apply(tree, on_mismatch_only=True)
    assert mode(tree / "file") == 0o660


def test_no_link_is_followed(tree: Path, tmp_path: Path) -> None:
    outside = make(tmp_path / "outside", 0o600)
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    make(folder / "inside", 0o600)
    (tree / "to-file").symlink_to(outside)
    (tree / "to-folder").symlink_to(folder)
    (tree / "inner/up").symlink_to("../..")
    (tree / "nowhere").symlink_to("missing")
    apply(tree)
    assert [mode(path) for path in (outside, folder, folder / "inside")] == [0o600, 0o700, 0o600]
    assert mode(tmp_path) & stat.S_ISGID == 0


def test_the_root_itself_may_not_be_reached_through_a_link(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tree)
    with pytest.raises(OSError, match="alias"):
        apply(tmp_path / "alias")
    assert mode(tree) == 0o700


def test_a_hard_link_is_the_same_file(tree: Path) -> None:
    os.link(tree / "file", tree / "inner/again")
    assert apply(tree) == 6
    assert mode(tree / "inner/again") == 0o660


def test_fifos_and_sockets_are_files_nobody_opens(tree: Path) -> None:
    os.mkfifo(tree / "fifo", 0o600)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tree / "socket"))
        (tree / "socket").chmod(0o700)
        apply(tree)
    assert mode(tree / "fifo") == 0o660
    assert mode(tree / "socket") == 0o760


def test_a_single_file(tmp_path: Path) -> None:
    assert apply(make(tmp_path / "config", 0o600)) == 1
    assert mode(tmp_path / "config") == 0o660


def test_a_tree_deeper_than_a_path_may_be_long(tmp_path: Path) -> None:
    """PATH_MAX is 4096 bytes, the limit of open files 1024: neither is in the way."""
    top = tmp_path / "deep"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("down", 0o700, dir_fd=fd)
        below = os.open("down", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    try:
        assert apply(top) == 1501
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o2770
    finally:
        _take_down(fd, top)


def _take_down(fd: int, top: Path) -> None:
    """shutil.rmtree would open one descriptor a level."""
    end = os.stat(top).st_ino
    while os.fstat(fd).st_ino != end:
        above = os.open("..", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        os.rmdir("down", dir_fd=above)
        fd = above
    os.close(fd)


def test_descriptors_are_given_back(tree: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    apply(tree)
    assert len(os.listdir("/proc/self/fd")) == before
