"""ioctl numbers as C's headers make them, and what is refused before any ioctl."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent.linux import fsctl

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.mark.parametrize(
    ("number", "printed"),
    [
        # printf("%#x") of the macros of <linux/fs.h>, <linux/btrfs.h>, <xfs/xfs_fs.h> on x86-64.
        (fsctl.FIFREEZE, 0xC0045877),
        (fsctl.FITHAW, 0xC0045878),
        (fsctl.FITRIM, 0xC0185879),
        (fsctl.EXT4_IOC_RESIZE_FS, 0x40086610),
        (fsctl.XFS_IOC_FSGEOMETRY_V1, 0x80705864),
        (fsctl.XFS_IOC_FSGROWFSDATA, 0x4010586E),
        (fsctl.BTRFS_IOC_RESIZE, 0x50009403),
        (fsctl.BTRFS_IOC_DEV_INFO, 0xD000941E),
    ],
)
def test_numbers(number: int, printed: int) -> None:
    assert number == printed


def mount_id(path: Path) -> int:
    fd = os.open(path, os.O_PATH)
    try:
        text = Path(f"/proc/self/fdinfo/{fd}").read_text()
    finally:
        os.close(fd)
    return int(text.split("mnt_id:")[1].split()[0])


def test_another_mount_than_the_one_that_is_meant_gets_no_ioctl(tmp_path: Path) -> None:
    for call in (fsctl.trim, fsctl.freeze, fsctl.thaw):
        with pytest.raises(OSError, match=str(tmp_path)) as caught:
            call(path=str(tmp_path), mount_id=mount_id(tmp_path) + 1_000_000)
        assert caught.value.errno == errno.ESTALE


def test_a_file_that_is_mounted_is_no_file_system_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NotADirectoryError):
        fsctl.freeze(path=str(file), mount_id=mount_id(file))


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(OSError, match="link") as caught:
        fsctl.freeze(path=str(tmp_path / "link"), mount_id=mount_id(Path("/")))
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)


def test_a_type_that_cannot_grow(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="grow") as caught:
        fsctl.grow(path=str(tmp_path), mount_id=1, fs_type="erofs", device_size=1)
    assert caught.value.errno == errno.EOPNOTSUPP


def test_an_ioctl_that_a_file_system_does_not_know() -> None:
    """proc trims nothing: ENOTTY, named with the call and the path."""
    proc = Path("/proc/self")
    with pytest.raises(OSError, match="FITRIM") as caught:
        fsctl.trim(path=str(proc.resolve()), mount_id=mount_id(proc))
    assert caught.value.errno in (errno.ENOTTY, errno.EPERM)
    assert caught.value.filename == str(proc.resolve())
