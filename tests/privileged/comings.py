"""Devices that come and go as a test asks: loop devices (<linux/loop.h>) and pairs of
network interfaces (rtnetlink), without programs, which the guest does not have."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import time
from typing import TYPE_CHECKING

from tests.privileged.loops import CONTROL

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOOP_CTL_ADD = 0x4C80
_LOOP_CTL_REMOVE = 0x4C81

# Far from those that LOOP_CTL_GET_FREE gives to others, which are the lowest.
_FIRST_LOOP = 5000
_PATIENCE = 20.0

_HEADER = struct.Struct("=LHHLL")
_INTERFACE = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
_NLMSG_ERROR = 2
_RTM_NEWLINK = 16
_RTM_DELLINK = 17
_REQUEST_ACK = 0x1 | 0x4
_CREATE_NEW = 0x200 | 0x400
_IFLA_IFNAME = 3
_IFLA_LINKINFO = 18
_INFO_KIND = 1
_INFO_DATA = 2
_VETH_INFO_PEER = 1


def add_loop(number: int) -> None:
    """A new loop device without a file. Raises OSError."""
    with CONTROL.open("rb") as control:
        fcntl.ioctl(control, _LOOP_CTL_ADD, number)


def remove_loop(number: int) -> None:
    """Raises OSError. Where udevd runs, it has a new device open for a moment."""
    until = time.monotonic() + _PATIENCE
    with CONTROL.open("rb") as control:
        while True:
            try:
                fcntl.ioctl(control, _LOOP_CTL_REMOVE, number)
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > until:
                    raise
                os.sched_yield()
            else:
                return


@contextlib.contextmanager
def loop() -> Iterator[int]:
    """A loop device while the block runs; the block may remove it itself."""
    number = _FIRST_LOOP + os.getpid() % 10000
    add_loop(number)
    try:
        yield number
    finally:
        with contextlib.suppress(OSError):
            remove_loop(number)


def add_pair(name: str, peer: str) -> None:
    """Two interfaces that are each other's other end. Raises OSError."""
    message = _INTERFACE.pack(0, 0, 0, 0, 0) + _text(_IFLA_IFNAME, name)
    other = _INTERFACE.pack(0, 0, 0, 0, 0) + _text(_IFLA_IFNAME, peer)
    data = _attribute(_INFO_DATA, _attribute(_VETH_INFO_PEER, other))
    message += _attribute(_IFLA_LINKINFO, _text(_INFO_KIND, "veth") + data)
    _request(_RTM_NEWLINK, _CREATE_NEW, message, name)


def remove_pair(name: str) -> None:
    """Either name takes both. Raises OSError."""
    message = _INTERFACE.pack(0, 0, 0, 0, 0) + _text(_IFLA_IFNAME, name)
    _request(_RTM_DELLINK, 0, message, name)


@contextlib.contextmanager
def pair() -> Iterator[tuple[str, str]]:
    """A pair while the block runs; the block may remove it itself."""
    names = (f"ik{os.getpid()}a", f"ik{os.getpid()}b")
    add_pair(*names)
    try:
        yield names
    finally:
        with contextlib.suppress(OSError):
            remove_pair(names[0])


def _request(kind: int, flags: int, message: bytes, name: str) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        length = _HEADER.size + len(message)
        sock.send(_HEADER.pack(length, kind, _REQUEST_ACK | flags, 1, 0) + message)
        answer = sock.recv(1 << 16)
    _, answered, _, _, _ = _HEADER.unpack_from(answer)
    (code,) = struct.unpack_from("=i", answer, _HEADER.size)
    if answered != _NLMSG_ERROR:
        raise OSError(errno.EPROTO, f"rtnetlink answered with message {answered}", name)
    if code:
        raise OSError(-code, os.strerror(-code), name)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _attribute(kind: int, data: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(data)
    return _ATTRIBUTE.pack(length, kind) + data + bytes(-length % 4)
