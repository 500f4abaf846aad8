"""A disk grows while it is plugged in: QEMU makes its file larger, and tells the guest.

QEMU also resizes a file that was made larger before, by whoever: it then only looks
again. It never shrinks one here, as the guest may have its data at the end.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from innkeeper.shim.disks import DiskFormat
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware.base import bad_field
from innkeeper.shim.plugged import DeviceState
from innkeeper.shim.qmp import QemuRefusedError
from innkeeper.shim.sizes import in_words

if TYPE_CHECKING:
    from pathlib import Path

    from innkeeper.shim.disks import DiskFile
    from innkeeper.shim.plugged import Function, Plug
    from innkeeper.shim.qmp import Monitor
    from innkeeper.shim.table import Table

_SECTOR = 512
# QEMU's sizes are signed.
_LARGEST = 1 << 62


async def resize_disk(table: Table, monitor: Monitor, device_id: str, size: int) -> int:
    """Bytes of the disk afterwards; `size` 0 is what its raw file has now.

    Raises UNKNOWN_DEVICE, BUSY, BAD_FIELD, FILE_NOT_FOUND, and RESIZE_REFUSED, for what
    would be smaller than it is too.
    """
    plug = table.find(device_id)
    function = next(each for each in plug.functions if each.id == device_id)
    file = _growable(plug, function)
    wanted = size or _size_of(device_id, file)
    if wanted % _SECTOR or wanted > _LARGEST:
        raise bad_field("size", f"size {wanted}: not possible", f"a whole number of {_SECTOR}")
    now = await _size_in_qemu(monitor, function)
    if wanted < now:
        why = f"it has {_told(now)}, and a disk only grows; asked for were {_told(wanted)}"
        raise _refused(device_id, why)
    try:
        arguments = {"node-name": function.names.backend, "size": wanted}
        await monitor.execute("block_resize", arguments)
    except QemuRefusedError as error:
        why = f"QEMU refuses it for {function.hardware.model}: {error.text}"
        raise _refused(device_id, why) from error
    return wanted


def _growable(plug: Plug, function: Function) -> DiskFile:
    file = function.hardware.disk_file
    if file is None:
        raise _refused(function.id, f"{function.hardware.model} is no disk with a file")
    if plug.state is not DeviceState.PLUGGED:
        message = f"device {function.id}: is {plug.state}"
        raise ShimError(Reason.BUSY, message, fields={"id": function.id})
    if file.read_only:
        raise _refused(function.id, "it was plugged read-only")
    return file


def _size_of(device_id: str, file: DiskFile) -> int:
    if file.format is not DiskFormat.RAW:
        hint = "say the new size; the file's own is not the disk's"
        raise bad_field("size", f"device {device_id}: its file is {file.format}", hint)
    return _end_of(file.path)


def _end_of(path: Path) -> int:
    """A block device tells its size as its end only."""
    try:
        with path.open("rb") as opened:
            return opened.seek(0, os.SEEK_END) // _SECTOR * _SECTOR
    except OSError as error:
        message = f"disk file {path}: {error.strerror}"
        raise ShimError(Reason.FILE_NOT_FOUND, message, fields={"file": path}) from error


async def _size_in_qemu(monitor: Monitor, function: Function) -> int:
    nodes = await monitor.execute("query-named-block-nodes", {"flat": True})
    sizes = {node["node-name"]: node["image"]["virtual-size"] for node in nodes}
    return int(sizes.get(function.names.backend, 0))


def _told(size: int) -> str:
    words = in_words(size)
    return words if words.endswith("bytes") else f"{words} ({size} bytes)"


def _refused(device_id: str, why: str) -> ShimError:
    message = f"disk {device_id}: can't be resized: {why}"
    return ShimError(Reason.RESIZE_REFUSED, message, fields={"id": device_id})
