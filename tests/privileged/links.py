"""Network interfaces made and moved by rtnetlink, as the guest has no ip(8)."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# <linux/rtnetlink.h>, <linux/netlink.h>, <linux/if_link.h>
_RTM_NEWLINK = 16
_RTM_DELLINK = 17
_REQUEST_AND_ACK = 0x1 | 0x4
_CREATE = 0x200 | 0x400
_IFLA_IFNAME = 3
_IFLA_LINKINFO = 18
_IFLA_NET_NS_PID = 19
_IFLA_INFO_KIND = 1
_HEADER = struct.Struct("=IHHII")
_IFINFO = struct.Struct("=BxHiII")

KINDS = ("dummy", "veth", "ifb")


@contextlib.contextmanager
def made(name: str) -> Iterator[str]:
    """An interface of whatever kind this kernel has. Raises OSError where it has none."""
    error = OSError("no kind was tried")
    for kind in KINDS:
        try:
            _ask(_RTM_NEWLINK, _CREATE, (_IFLA_IFNAME, _text(name)), (_IFLA_LINKINFO, _info(kind)))
            break
        except OSError as caught:
            error = caught
    else:
        raise error
    try:
        yield name
    finally:
        # Where it has moved away it goes with its namespace.
        with contextlib.suppress(OSError):
            _ask(_RTM_DELLINK, 0, (_IFLA_IFNAME, _text(name)))


def move(name: str, pid: int) -> None:
    """Into the network namespace of a process."""
    number = struct.pack("=I", pid)
    _ask(_RTM_NEWLINK, 0, (_IFLA_IFNAME, _text(name)), (_IFLA_NET_NS_PID, number))


def _ask(kind: int, flags: int, *attributes: tuple[int, bytes]) -> None:
    body = _IFINFO.pack(0, 0, 0, 0, 0) + b"".join(_attribute(*each) for each in attributes)
    size = _HEADER.size + len(body)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.settimeout(20)
        sock.send(_HEADER.pack(size, kind, _REQUEST_AND_ACK | flags, 1, 0) + body)
        answer = sock.recv(65536)
    (number,) = struct.unpack_from("=i", answer, _HEADER.size)
    if number:
        raise OSError(-number, os.strerror(-number))


def _info(kind: str) -> bytes:
    return _attribute(_IFLA_INFO_KIND, _text(kind))


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def _attribute(kind: int, data: bytes) -> bytes:
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + b"\0" * (-size % 4)
