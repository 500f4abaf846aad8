"""Disks made of files, read back with e2fsprogs' own tools."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from innkeeper.shim import guest_disk
from innkeeper.shim.commands import CommandError

pytestmark = [
    pytest.mark.unit,
    pytest.mark.storage,
    pytest.mark.skipif(shutil.which("mke2fs") is None, reason="needs e2fsprogs (mke2fs, debugfs)"),
]


def debugfs(image: Path, request: str) -> str:
    done = subprocess.run(
        ["debugfs", "-R", request, image], capture_output=True, check=True, timeout=30
    )
    return done.stdout.decode()


def is_clean(image: Path) -> bool:
    """e2fsck's exit status 0: no errors found, none corrected."""
    return subprocess.run(["e2fsck", "-fn", image], capture_output=True).returncode == 0


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "motd").write_bytes(b"hello\n")
    (root / "etc" / "motd").chmod(0o640)
    (root / "link").symlink_to("etc/motd")
    return root


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A tar with owners that are nobody's here, a setuid file and a device node."""
    path = tmp_path / "root.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        members = (("./bin/su", 0o4755, 0), ("./home/with space", 0o600, 1234), ("./key", 0, 0))
        for name, mode, uid in members:
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.uid, member.gid = 3, mode, uid, 99
            tar.addfile(member, io.BytesIO(b"abc"))
        node = tarfile.TarInfo("./dev/null")
        node.type, node.devmajor, node.devminor = tarfile.CHRTYPE, 1, 3
        tar.addfile(node)
    return path


def test_a_directory_becomes_an_ext4_file_system_with_its_files(tree: Path, tmp_path: Path) -> None:
    disk = guest_disk.make_disk(tree, tmp_path / "disk.img", size=64 << 20, label="data")
    assert disk.file.stat().st_size == disk.size == 64 << 20
    assert debugfs(disk.file, "cat /etc/motd") == "hello\n"
    assert "Mode:  0640" in debugfs(disk.file, "stat /etc/motd")
    assert 'Fast link dest: "etc/motd"' in debugfs(disk.file, "stat /link")
    assert is_clean(disk.file)


def test_the_label_is_the_one_asked_for(tree: Path, tmp_path: Path) -> None:
    disk = guest_disk.make_disk(tree, tmp_path / "disk.img", label="data")
    assert "Filesystem volume name:   data" in debugfs(disk.file, "show_super_stats -h")


def test_without_a_size_the_tree_fits_and_leaves_the_room_asked_for(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "big").write_bytes(os.urandom(20 << 20))
    for number in range(3000):
        (root / f"small{number}").write_bytes(b"x")
    disk = guest_disk.make_disk(root, tmp_path / "disk.img", free=10 << 20)
    stats = debugfs(disk.file, "show_super_stats -h")
    free = next(line.split()[-1] for line in stats.splitlines() if line.startswith("Free blocks"))
    assert int(free) * 4096 >= 10 << 20
    assert is_clean(disk.file)


def test_a_file_of_two_names_counts_once(tree: Path) -> None:
    before = guest_disk.measure(tree)
    os.link(tree / "etc" / "motd", tree / "again")
    assert guest_disk.measure(tree) == before


def test_a_tree_that_does_not_fit_leaves_no_file(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "big").write_bytes(os.urandom(9 << 20))
    with pytest.raises(CommandError, match="mke2fs"):
        guest_disk.make_disk(root, tmp_path / "disk.img", size=8 << 20)
    assert not (tmp_path / "disk.img").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to unpack with owners")
def test_a_tar_unpacked_by_root_keeps_owners_modes_and_nodes(archive: Path, tmp_path: Path) -> None:
    disk = guest_disk.make_disk(archive, tmp_path / "disk.img")
    assert disk.left_out == 0
    assert "User:  1234   Group:    99" in debugfs(disk.file, 'stat "/home/with space"')
    assert "Mode:  04755" in debugfs(disk.file, "stat /bin/su")
    assert "Type: character special" in debugfs(disk.file, "stat /dev/null")


def test_a_tar_unpacked_by_an_ordinary_user_keeps_owners_too(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    disk = guest_disk.make_disk(archive, tmp_path / "disk.img")
    assert disk.left_out == 1
    assert "User:  1234   Group:    99" in debugfs(disk.file, 'stat "/home/with space"')
    assert "Mode:  04755" in debugfs(disk.file, "stat /bin/su")
    assert "User:     0   Group:     0" in debugfs(disk.file, "stat /home")
    assert "Mode:  0000" in debugfs(disk.file, "stat /key")
    assert "null" not in debugfs(disk.file, "ls /dev")
    assert is_clean(disk.file)
    assert not list(tmp_path.glob(".unpack-*"))


def test_a_file_system_is_no_archive_though_it_begins_with_zeros(
    tree: Path, tmp_path: Path
) -> None:
    """To tarfile, blocks of zeros are an archive's end."""
    image = guest_disk.make_disk(tree, tmp_path / "image.img").file
    with pytest.raises(guest_disk.DiskError, match=r"is an ext4 file system.*--disk .*:/MOUNT"):
        guest_disk.check_source(image)
    (tmp_path / "zeros.tar").write_bytes(bytes(10240))
    with pytest.raises(guest_disk.DiskError, match="without members"):
        guest_disk.make_disk(tmp_path / "zeros.tar", tmp_path / "disk.img")


@pytest.mark.parametrize(
    ("name", "text"), [("none", "does not exist"), ("file", "neither a directory nor a tar")]
)
def test_what_is_no_tree_is_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "file").write_text("not a tar")
    with pytest.raises(guest_disk.DiskError, match=text):
        guest_disk.make_disk(tmp_path / name, tmp_path / "disk.img")
