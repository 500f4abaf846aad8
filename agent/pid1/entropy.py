"""Randomness from the host's virtio-rng, credited before anything needs it."""

from __future__ import annotations

import fcntl
import os
import struct

# _IOW('R', 0x03, int[2]) of <linux/random.h>.
_RNDADDENTROPY = 0x40085203
_BYTES = 64


def credit(dev: str) -> int:
    """Move some bytes from `dev`/hwrng to the kernel's pool; the number of bits credited.

    Zero where there is no such device or it has nothing ready: this never waits.
    """
    try:
        data = _read_ready(f"{dev}/hwrng")
    except OSError:
        return 0
    if not data:
        return 0
    bits = len(data) * 8
    # struct rand_pool_info: entropy count in bits, size of the buffer in bytes, the buffer.
    request = struct.pack(f"ii{len(data)}s", bits, len(data), data)
    fd = os.open(f"{dev}/urandom", os.O_WRONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _RNDADDENTROPY, request)
    finally:
        os.close(fd)
    return bits


def _read_ready(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(fd, _BYTES)
    finally:
        os.close(fd)
