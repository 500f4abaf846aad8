"""A device-mapper device without dmsetup (ioctls of <linux/dm-ioctl.h>)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTROL = Path("/dev/mapper/control")
_IOCTL = struct.Struct("=3I2IIiIII Q128s129s7x")
_TARGET = struct.Struct("=QQiI16s")
_CREATE, _REMOVE, _SUSPEND, _TABLE_LOAD = 3, 4, 6, 9


@contextlib.contextmanager
def linear(device: str, sectors: int) -> Iterator[str]:
    """A device that is the same as another one; its name in /sys/class/block."""
    name = f"innkeeper-test-{os.getpid()}"
    number = _ask(_CREATE, name)
    try:
        parameters = f"{device} 0".encode() + b"\0"
        parameters += b"\0" * (-len(parameters) % 8)
        size = _TARGET.size + len(parameters)
        _ask(_TABLE_LOAD, name, _TARGET.pack(0, sectors, 0, size, b"linear") + parameters)
        _ask(_SUSPEND, name)  # without a flag: it resumes
        yield Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
    finally:
        _ask(_REMOVE, name)


def _ask(command: int, name: str, data: bytes = b"") -> int:
    """One ioctl; the number of the device that it is about."""
    size = _IOCTL.size + len(data)
    head = (4, 0, 0, size, _IOCTL.size, bool(data), 0, 0, 0, 0, 0)
    buffer = bytearray(_IOCTL.pack(*head, name.encode(), b"") + data)
    request = 3 << 30 | _IOCTL.size << 16 | 0xFD << 8 | command
    with CONTROL.open("r+b", buffering=0) as control:
        fcntl.ioctl(control, request, buffer)
    return int(_IOCTL.unpack_from(buffer)[10])
