"""Bytes of a device; files stand for devices."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agent.linux.rawdisk import clear_disk, read_disk, written_sector

pytestmark = [pytest.mark.unit, pytest.mark.storage]


def test_bytes_from_an_offset(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(range(256)) * 4)
    assert read_disk(path=str(disk), offset=255, size=3) == "ff0001"
    with pytest.raises(OSError, match="read") as caught:
        read_disk(path=str(disk), offset=1023, size=2)
    assert (caught.value.errno, caught.value.filename) == (errno.ENXIO, str(disk))
    with pytest.raises(FileNotFoundError, match="open"):
        read_disk(path=str(tmp_path / "none"), offset=0, size=1)


@pytest.mark.parametrize(
    ("clear", "raw", "found"),
    [
        # Never written: what is decrypted is noise, what lies there is zeros.
        (b"noise" * 103, bytes(512), -1),
        # Zeros were written by somebody with this key.
        (bytes(512), b"noise" * 103, -1),
        # Data, or any data under another key.
        (b"data!" * 103, b"noise" * 103, 0),
    ],
)
def test_what_counts_as_written(tmp_path: Path, clear: bytes, raw: bytes, found: int) -> None:
    path, below = tmp_path / "clear", tmp_path / "raw"
    path.write_bytes(clear[:512])
    below.write_bytes(b"x" * 1024 + raw[:512])
    assert written_sector(path=str(path), size=512, below=str(below), offset=1024) == found


def test_the_sector_is_told(tmp_path: Path) -> None:
    path, below = tmp_path / "clear", tmp_path / "raw"
    size = 600 * 1024
    path.write_bytes(b"n" * size)
    below.write_bytes(bytes(513 * 1024 + 100) + b"x" + bytes(size))
    assert written_sector(path=str(path), size=size, below=str(below), offset=0) == 513 * 1024


@pytest.mark.parametrize("size", [0, 512, 600 * 1024])
def test_zeros_for_the_first_bytes(tmp_path: Path, size: int) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(b"x" * (1 << 20))
    clear_disk(path=str(disk), size=size, unless=[(1080, "53ef")])
    assert disk.read_bytes() == bytes(size) + b"x" * ((1 << 20) - size)


def test_a_disk_that_is_gone_is_not_cleared(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="open"):
        clear_disk(path=str(tmp_path / "none"), size=512, unless=[])


def test_a_disk_that_holds_something_by_now_is_not_cleared(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    data = bytes(1080) + b"\x53\xef" + bytes(4096)
    disk.write_bytes(data)
    with pytest.raises(FileExistsError):
        clear_disk(path=str(disk), size=4096, unless=[(0, "58465342"), (1080, "53ef")])
    assert disk.read_bytes() == data
