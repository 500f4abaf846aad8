"""A disk's file on the host: checked before QEMU sees it, and told to QEMU whole.

The format is what the caller says, never what the content looks like: a guest
that writes a qcow2 header into its raw disk would otherwise be given any file
of the host as its backing file the next time.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from innkeeper.shim.errors import Reason, ShimError

# VIRTIO_BLK_ID_BYTES; QEMU cuts a longer serial without a word.
SERIAL_LIMIT = 20

# docs/interop/qcow2.rst: magic, version, offset and length of the backing file's
# name; where version 2 ends; and the header extension that names its format.
_QCOW2_HEADER = struct.Struct(">4sIQI")
_QCOW2_MAGIC = b"QFI\xfb"
_QCOW2_V2_LENGTH = 72
_QCOW2_LENGTH_AT = 100
_BACKING_FORMAT = 0xE2792ACA
_MOST_EXTENSIONS = 16


class DiskFormat(StrEnum):
    """Image formats that a guest may be given."""

    RAW = "raw"
    QCOW2 = "qcow2"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFile:
    """An image file, or block device, that was there when it was looked at."""

    path: Path
    format: DiskFormat
    read_only: bool
    is_device: bool

    @classmethod
    def check(cls, file: str, format: str, *, read_only: bool) -> DiskFile:  # noqa: A002
        """Raises BAD_FIELD or FILE_NOT_FOUND; an empty format is raw."""
        known = _format(format)
        path = Path(file)
        if not path.is_absolute() or "\0" in file:
            raise _bad("file", f"disk file {file!r}: not an absolute path")
        status = _status(path)
        mode = status.st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            raise _bad("file", f"disk file {file}: neither a file nor a block device")
        if stat.S_ISREG(mode) and not status.st_size:
            raise _bad(
                "file",
                f"disk file {file}: is empty",
                hint=f"give it a size, as in: truncate --size 1G {file}",
            )
        _check_access(path, read_only=read_only)
        if known is DiskFormat.QCOW2:
            _check_qcow2(path)
        return cls(path=path, format=known, read_only=read_only, is_device=stat.S_ISBLK(mode))

    def blockdev(self, node: str) -> dict[str, object]:
        """`blockdev-add`'s arguments. QEMU locks the file: two writers, or a
        writer and a reader, are refused."""
        return {
            "driver": self.format.value,
            "node-name": node,
            "read-only": self.read_only,
            "discard": "unmap",
            "file": {
                "driver": "host_device" if self.is_device else "file",
                "filename": str(self.path),
                "locking": "on",
            },
        }


def serial_for(device_id: str) -> str:
    """The serial number by which the guest knows a device: its id, or, where
    that is longer than virtio-blk can tell, its beginning and a digest."""
    if len(device_id) <= SERIAL_LIMIT:
        return device_id
    return f"{device_id[:9]}-{hashlib.sha256(device_id.encode()).hexdigest()[:10]}"


def _format(text: str) -> DiskFormat:
    try:
        return DiskFormat(text or "raw")
    except ValueError:
        raise _bad("format", f"disk format {text!r}: unknown; one of raw, qcow2") from None


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise _missing(path, error.strerror or str(error)) from None


def _check_access(path: Path, *, read_only: bool) -> None:
    if not os.access(path, os.R_OK if read_only else os.R_OK | os.W_OK):
        raise _missing(path, "may not be read" if read_only else "may not be written")


def _check_qcow2(path: Path) -> None:
    """A backing file without a format would have its format guessed by QEMU."""
    with path.open("rb") as file:
        head = file.read(_QCOW2_LENGTH_AT + 4)
        if len(head) < len(head[: _QCOW2_HEADER.size]) or head[:4] != _QCOW2_MAGIC:
            raise _bad("format", f"disk file {path}: no qcow2 image")
        _, version, backing_at, _ = _QCOW2_HEADER.unpack_from(head)
        if backing_at and _BACKING_FORMAT not in _extensions(file, head, version):
            raise _bad(
                "file",
                f"disk file {path}: names a backing file without its format",
                hint=f"say it with: qemu-img rebase -u -F FORMAT -b BACKING {path}",
            )


def _extensions(file: BinaryIO, head: bytes, version: int) -> set[int]:
    """The types of the header extensions, up to the end mark (0)."""
    at = _QCOW2_V2_LENGTH
    if version >= 3:
        at = int.from_bytes(head[_QCOW2_LENGTH_AT : _QCOW2_LENGTH_AT + 4], "big")
    found: set[int] = set()
    for _ in range(_MOST_EXTENSIONS):
        file.seek(at)
        entry = file.read(8)
        kind, length = struct.unpack(">II", entry) if len(entry) == 8 else (0, 0)
        if not kind:
            break
        found.add(kind)
        at += 8 + (length + 7) // 8 * 8
    return found


def _missing(path: Path, why: str) -> ShimError:
    return ShimError(Reason.FILE_NOT_FOUND, f"disk file {path}: {why}", fields={"file": path})


def _bad(field: str, message: str, hint: str = "") -> ShimError:
    return ShimError(Reason.BAD_FIELD, message, hint=hint, fields={"field": field})
