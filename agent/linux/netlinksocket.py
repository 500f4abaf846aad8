"""NETLINK sockets: opened in any network namespace, with a kernel that explains itself.

A socket belongs for ever to the network namespace that its thread was in when it was
made (net/netlink/af_netlink.c), so one of another namespace is made by a thread that goes
there and ends.

Extended acknowledgements carry the kernel's own words about a refusal; capped ones do not
repeat the request; strict checking makes the kernel honour the filters of a dump, which it
otherwise ignores (Documentation/userspace-api/netlink/intro.rst).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.linux.libc import check, libc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

KERNEL_PORT = 0

NETLINK_ROUTE = 0
NETLINK_GENERIC = 16

# <linux/netlink.h>
_SOL_NETLINK = 270
_NETLINK_ADD_MEMBERSHIP = 1
_NETLINK_CAP_ACK = 10
_NETLINK_EXT_ACK = 11
_NETLINK_GET_STRICT_CHK = 12
_OPTIONS = (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK, _NETLINK_GET_STRICT_CHK)

_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_CLONE_NEWNET = 0x40000000

# The kernel fills datagrams of a dump up to 32 KiB; a single answer may be as large as it
# must (a link with hundreds of virtual functions), and the buffer grows for it.
MESSAGE_SIZE = 64 * 1024
RECEIVE_BUFFER = 8 * 1024 * 1024
SEND_BUFFER = 1024 * 1024


class Datagram(NamedTuple):
    """What one receive gave. One that was truncated is worth nothing."""

    data: bytes
    sender_port: int
    truncated: bool


class NetlinkSocket:
    """A NETLINK socket of one namespace."""

    def __init__(self, sock: socket.socket, *, message_size: int = MESSAGE_SIZE) -> None:
        self._socket = sock
        self._buffer = bytearray(message_size)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def port(self) -> int:
        """The socket's own port id, which notices of what it changed carry."""
        name: tuple[int, int] = self._socket.getsockname()
        return name[0]

    def send(self, data: bytes) -> None:
        """To the kernel, which acts on it before the call returns: a call may last as long
        as somebody else holds the kernel's lock of the network. Raises OSError."""
        self._socket.sendto(data, (KERNEL_PORT, 0))

    def receive(self) -> Datagram:
        """The next datagram. Raises BlockingIOError when there is none, OSError ENOBUFS when
        the kernel had to drop some (the socket stays usable).

        After one that did not fit, the next of its size will.
        """
        size, _, flags, address = self._socket.recvmsg_into([self._buffer], 0, socket.MSG_TRUNC)
        truncated = bool(flags & socket.MSG_TRUNC)
        data = bytes(memoryview(self._buffer)[: min(size, len(self._buffer))])
        if truncated:
            self._buffer = bytearray(2 * size)
        return Datagram(data, address[0], truncated)

    def close(self) -> None:
        self._socket.close()


def open_socket(
    family: int = NETLINK_ROUTE,
    *,
    groups: Iterable[int] = (),
    namespace: int | None = None,
    receive_buffer: int = RECEIVE_BUFFER,
) -> NetlinkSocket:
    """A non-blocking socket, member of multicast groups by number (RTNLGRP_*), in the network
    namespace of a descriptor, or in our own. Raises OSError."""

    def make() -> NetlinkSocket:
        return _made(family, tuple(groups), receive_buffer)

    return make() if namespace is None else _elsewhere(make, namespace)


def _made(family: int, groups: tuple[int, ...], receive_buffer: int) -> NetlinkSocket:
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    sock = socket.socket(socket.AF_NETLINK, kind, family)
    try:
        _enlarge(sock, _SO_RCVBUFFORCE, socket.SO_RCVBUF, receive_buffer)
        _enlarge(sock, _SO_SNDBUFFORCE, socket.SO_SNDBUF, SEND_BUFFER)
        for option in _OPTIONS:
            # An older kernel explains less and filters less; the answers stay right.
            with contextlib.suppress(OSError):
                sock.setsockopt(_SOL_NETLINK, option, 1)
        sock.bind((0, 0))
        for group in groups:
            sock.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
    except OSError:
        sock.close()
        raise
    return NetlinkSocket(sock)


def _enlarge(sock: socket.socket, forced: int, limited: int, size: int) -> None:
    """Past the system's limit (CAP_NET_ADMIN); without that right up to it."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, forced, size)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, limited, size)


def _elsewhere(make: Callable[[], NetlinkSocket], namespace: int) -> NetlinkSocket:
    made: list[NetlinkSocket] = []
    failed: list[OSError] = []

    def run() -> None:
        try:
            check(libc.setns(namespace, _CLONE_NEWNET), "setns", _shown(namespace))
            made.append(make())
        except OSError as error:
            failed.append(error)

    # The thread stays in that namespace and ends with it: nothing has to come back.
    thread = threading.Thread(target=run, name="netlink-open")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _shown(namespace: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{namespace}").readlink())
    except OSError:
        return f"descriptor {namespace}"
