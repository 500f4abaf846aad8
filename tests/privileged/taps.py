"""A tap interface without any program: made, renamed and removed by ioctls (netdevice(7))."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTROL = Path("/dev/net/tun")
# <linux/if_tun.h>, <linux/sockios.h>.
_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_SIOCGIFMTU = 0x8921
_SIOCSIFNAME = 0x8923
_SIOCGIFHWADDR = 0x8927
_NAME = 16


@contextlib.contextmanager
def tap(name: str) -> Iterator[None]:
    """The interface is there, and down, while the block runs. Raises OSError."""
    descriptor = os.open(CONTROL, os.O_RDWR)
    try:
        fcntl.ioctl(
            descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI)
        )
        yield
    finally:
        os.close(descriptor)


def rename(old: str, new: str) -> None:
    _ask(_SIOCSIFNAME, struct.pack("16s16s", old.encode(), new.encode()))


def address_of(name: str) -> str:
    answer = _ask(_SIOCGIFHWADDR, struct.pack("16s24x", name.encode()))
    return answer[_NAME + 2 : _NAME + 8].hex(":")


def mtu_of(name: str) -> int:
    answer = _ask(_SIOCGIFMTU, struct.pack("16s24x", name.encode()))
    return int(struct.unpack_from("i", answer, _NAME)[0])


def _ask(request: int, argument: bytes) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock, request, argument)
