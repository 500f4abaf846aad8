"""Swap space without mkswap and swapon, which the guest does not have."""

from __future__ import annotations

import contextlib
import resource
import struct
from typing import TYPE_CHECKING

from agent.linux.libc import check, libc

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def active(device: str, size: int) -> Iterator[None]:
    """The device is swap space while the block runs."""
    _write_header(device, size)
    path = device.encode()
    check(libc.swapon(path, 0), "swapon", device)
    try:
        yield
    finally:
        check(libc.swapoff(path), "swapoff", device)


def _write_header(device: str, size: int) -> None:
    """union swap_header of <linux/swap.h>: version 1, its last page, no bad pages."""
    page = resource.getpagesize()
    header = bytearray(page)
    struct.pack_into("=III", header, 1024, 1, size // page - 1, 0)
    header[-10:] = b"SWAPSPACE2"
    with open(device, "r+b") as file:
        file.write(header)
