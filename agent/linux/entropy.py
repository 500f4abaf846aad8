"""Giving the kernel's random number generator bytes and credit for them (random(4))."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Final

from agent.linux.libc import failure

# <linux/random.h>: _IOW('R', 0x03, int[2]) and _IO('R', 0x07).
_RNDADDENTROPY: Final = 0x40085203
_RNDRESEEDCRNG: Final = 0x5207


def add_entropy(device: str | os.PathLike[str], data: bytes) -> None:
    """Mix `data` in, credit all its bits, and reseed from it at once.

    `device` is /dev/random. Raises OSError with the call and the device; EPERM
    without CAP_SYS_ADMIN.
    """
    fd = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
    try:
        # struct rand_pool_info: bits credited, bytes that follow, the bytes.
        info = struct.pack("ii", 8 * len(data), len(data)) + data
        _ioctl(fd, _RNDADDENTROPY, info, device)
        _ioctl(fd, _RNDRESEEDCRNG, b"", device)
    finally:
        os.close(fd)


def _ioctl(fd: int, request: int, argument: bytes, device: str | os.PathLike[str]) -> None:
    try:
        fcntl.ioctl(fd, request, argument or 0)
    except OSError as error:
        raise failure(error.errno or errno.EIO, f"ioctl {request:#x}", device) from error
