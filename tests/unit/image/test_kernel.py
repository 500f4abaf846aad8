"""A kernel from a file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from innkeeper.image.kernel import Kernel, version_of
from innkeeper.image.model import ImageError
from tests.fakes.elf import module_file

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def bzimage(version: str) -> bytes:
    """boot.rst: "HdrS" at 0x202; at 0x20e the offset, less 0x200, of the version's text."""
    image = bytearray(0x400)
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", image, 0x20E, 0x100)
    text = f"{version} (builder@host) #1 SMP".encode()
    image[0x300 : 0x300 + len(text)] = text
    return bytes(image)


def test_a_bare_vmlinuz_tells_its_version_and_has_no_modules(tmp_path: Path) -> None:
    path = tmp_path / "vmlinuz"
    path.write_bytes(bzimage("6.12.9-vendor"))
    kernel = Kernel.read(path)
    assert kernel.version == "6.12.9-vendor"
    assert kernel.close(["virtio_blk"]).absent == ("virtio_blk",)


def test_what_is_no_kernel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="not an x86 kernel"):
        version_of(b"\0" * 0x400, tmp_path / "vmlinuz")


def test_modules_of_a_package_are_closed_over_what_is_built_in() -> None:
    kernel = Kernel(
        version="6.12",
        vmlinuz=b"",
        modules={
            "virtio_blk": ("kernel/drivers/block/virtio_blk.ko", module_file(depends="virtio")),
            "ext4": ("kernel/fs/ext4/ext4.ko", module_file(depends="jbd2,crc16")),
            "jbd2": ("kernel/fs/jbd2/jbd2.ko", module_file(depends="crc16")),
        },
        indexes={"modules.builtin": b"kernel/drivers/virtio/virtio.ko\nkernel/lib/crc16.ko\n"},
    )
    closure = kernel.close(["virtio_blk", "ext4"])
    assert closure.loaded == ("virtio_blk", "jbd2", "ext4")
    assert closure.built_in == ("virtio", "crc16")
