"""Disk images with a partition table, without sfdisk, which the guest does not have.

Facts: UEFI specification 2.10, chapter 5 (MBR of 5.2.1, GPT of 5.3); a loop device looks for
partitions when its LO_FLAGS_PARTSCAN is set (<linux/loop.h>).
"""

from __future__ import annotations

import fcntl
import struct
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path

SECTOR = 512
_LINUX_DATA = uuid.UUID("0FC63DAF-8483-4772-8E79-3D69D8477DE4")
_ENTRIES, _ENTRY_SIZE = 128, 128
_LOOP_SET_STATUS64 = 0x4C04
_PARTSCAN = 8
# struct loop_info64: lo_flags is at byte 52 of 232.
_INFO = struct.Struct("=52xI176x")


@dataclass(frozen=True, kw_only=True)
class Part:
    """`first` and `count` in sectors."""

    first: int
    count: int
    label: str = ""


def scan(device: str) -> None:
    """Have the kernel look for partitions on a loop device."""
    with open(device, "rb") as loop:
        fcntl.ioctl(loop, _LOOP_SET_STATUS64, _INFO.pack(_PARTSCAN))


def write_mbr(image: Path, parts: tuple[Part, ...]) -> None:
    entries = b"".join(struct.pack("<4xB3xII", 0x83, part.first, part.count) for part in parts)
    with image.open("r+b") as file:
        file.write(bytes(446) + entries.ljust(64, b"\0") + b"\x55\xaa")


def write_gpt(image: Path, parts: tuple[Part, ...]) -> None:
    """The table and its copy at the disk's end, with a protective MBR."""
    sectors = image.stat().st_size // SECTOR
    entries = b"".join(map(_entry, parts)).ljust(_ENTRIES * _ENTRY_SIZE, b"\0")
    table = len(entries) // SECTOR
    first = _header(1, sectors - 1, 2, sectors, entries)
    second = _header(sectors - 1, 1, sectors - 1 - table, sectors, entries)
    mbr = struct.pack("<4xB3xII", 0xEE, 1, sectors - 1)
    with image.open("r+b") as file:
        file.write(bytes(446) + mbr.ljust(64, b"\0") + b"\x55\xaa" + first + entries)
        file.seek((sectors - 1 - table) * SECTOR)
        file.write(entries + second)


def _entry(part: Part) -> bytes:
    name = part.label.encode("utf-16-le").ljust(72, b"\0")
    last = part.first + part.count - 1
    return struct.pack(
        "<16s16sQQQ72s", _LINUX_DATA.bytes_le, uuid.uuid4().bytes_le, part.first, last, 0, name
    )


def _header(here: int, other: int, table: int, sectors: int, entries: bytes) -> bytes:
    def packed(checksum: int) -> bytes:
        return struct.pack(
            "<8sIIIIQQQQ16sQIII",
            *(b"EFI PART", 0x00010000, 92, checksum, 0),
            *(here, other, 34, sectors - 34),
            *(bytes(range(16)), table, _ENTRIES, _ENTRY_SIZE, zlib.crc32(entries)),
        )

    return packed(zlib.crc32(packed(0))).ljust(SECTOR, b"\0")
