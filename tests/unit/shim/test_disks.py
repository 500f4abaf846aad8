"""A disk's file, before QEMU sees it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from innkeeper.shim.disks import DiskFile, DiskFormat, serial_for
from innkeeper.shim.errors import Reason, ShimError

pytestmark = [pytest.mark.unit, pytest.mark.devices]


def qcow2(path: Path, *, backing: bytes = b"", backing_format: bytes = b"") -> str:
    """A header as docs/interop/qcow2.rst has it, version 3, and nothing behind it."""
    extensions = b""
    if backing_format:
        padded = backing_format.ljust(-(-len(backing_format) // 8) * 8, b"\0")
        extensions = struct.pack(">II", 0xE2792ACA, len(backing_format)) + padded
    extensions += struct.pack(">II", 0, 0)
    backing_at = 104 + len(extensions) if backing else 0
    head = struct.pack(">4sIQI", b"QFI\xfb", 3, backing_at, len(backing)).ljust(100, b"\0")
    path.write_bytes(head + struct.pack(">I", 104) + extensions + backing)
    return str(path)


def reason(file: str, kind: str = "raw", *, read_only: bool = False) -> Reason:
    with pytest.raises(ShimError) as caught:
        DiskFile.check(file, kind, read_only=read_only)
    return caught.value.reason


def test_a_file_without_a_format_is_raw(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(b"QFI\xfb")
    disk = DiskFile.check(str(tmp_path / "disk"), "", read_only=False)
    assert disk.format is DiskFormat.RAW


def test_qemu_is_told_the_format_and_to_lock_the_file(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(bytes(512))
    told = DiskFile.check(str(tmp_path / "disk"), "raw", read_only=True).blockdev("node")
    assert told["driver"] == "raw"
    assert told["read-only"] is True
    assert told["file"] == {
        "driver": "file",
        "filename": str(tmp_path / "disk"),
        "locking": "on",
    }


@pytest.mark.parametrize("file", ["disk.img", "", "./disk"])
def test_a_relative_path_is_a_bad_field(file: str) -> None:
    assert reason(file) is Reason.BAD_FIELD


@pytest.mark.parametrize("kind", ["vmdk", "RAW", "qcow"])
def test_an_unknown_format_is_a_bad_field(tmp_path: Path, kind: str) -> None:
    (tmp_path / "disk").touch()
    assert reason(str(tmp_path / "disk"), kind) is Reason.BAD_FIELD


def test_an_empty_file_is_no_disk(tmp_path: Path) -> None:
    """The guest's driver waits for a disk to have a size."""
    (tmp_path / "disk").touch()
    with pytest.raises(ShimError, match=r"is empty .*truncate --size") as caught:
        DiskFile.check(str(tmp_path / "disk"), "raw", read_only=False)
    assert caught.value.reason is Reason.BAD_FIELD


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    assert reason(str(tmp_path / "none")) is Reason.FILE_NOT_FOUND


def test_a_directory_or_character_device_is_no_disk(tmp_path: Path) -> None:
    assert reason(str(tmp_path)) is Reason.BAD_FIELD
    assert reason("/dev/null") is Reason.BAD_FIELD


def test_a_qcow2_image_without_backing_file_passes(tmp_path: Path) -> None:
    file = qcow2(tmp_path / "disk")
    assert DiskFile.check(file, "qcow2", read_only=False).format is DiskFormat.QCOW2


@pytest.mark.parametrize("content", [b"", b"QFI", bytes(512)])
def test_what_is_no_qcow2_image_is_a_bad_field(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "disk").write_bytes(content)
    assert reason(str(tmp_path / "disk"), "qcow2") is Reason.BAD_FIELD


def test_a_backing_file_needs_its_format_in_the_header(tmp_path: Path) -> None:
    """Otherwise QEMU looks at its content and guesses."""
    file = qcow2(tmp_path / "bad", backing=b"/base.img")
    with pytest.raises(ShimError, match="qemu-img rebase") as caught:
        DiskFile.check(file, "qcow2", read_only=False)
    assert caught.value.reason is Reason.BAD_FIELD
    good = qcow2(tmp_path / "good", backing=b"/base.img", backing_format=b"raw")
    DiskFile.check(good, "qcow2", read_only=False)


def test_a_serial_is_the_id_while_that_fits_virtio_blk() -> None:
    """VIRTIO_BLK_ID_BYTES is 20."""
    assert serial_for("x" * 20) == "x" * 20
    assert len(serial_for("x" * 21)) == 20
    assert serial_for("x" * 21) != serial_for("x" * 22)


def test_a_file_name_with_a_nul_is_refused_by_name() -> None:
    """No path has one; the kernel's wrapper would raise something untyped."""
    with pytest.raises(ShimError) as caught:
        DiskFile.check("/tmp/a\0b", "raw", read_only=False)
    assert caught.value.reason is Reason.BAD_FIELD
