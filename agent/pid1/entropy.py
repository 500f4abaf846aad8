"""Randomness from the host's virtio-rng, credited before anything needs it."""

from __future__ import annotations

import os

from agent.linux.entropy import add_entropy

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
    add_entropy(f"{dev}/random", data)
    return len(data) * 8


def _read_ready(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(fd, _BYTES)
    finally:
        os.close(fd)
