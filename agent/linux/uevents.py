"""The kernel's device events: NETLINK_KOBJECT_UEVENT (lib/kobject_uevent.c).

A message is `ACTION@DEVPATH` and `KEY=VALUE` texts, each ended by a NUL. Any root
process of the network namespace can send to the same multicast group, so only
what comes from port 0, the kernel, counts. Events are hints that something
changed: what is there now is in sysfs.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import NamedTuple, Protocol

KERNEL_PORT = 0
KERNEL_GROUP = 1

# UEVENT_BUFFER_SIZE is 2 KiB for the environment; the header's path adds at most one page.
MESSAGE_SIZE = 16 * 1024
RECEIVE_BUFFER = 4 * 1024 * 1024

_SO_RCVBUFFORCE = 33
_NETLINK_KOBJECT_UEVENT = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Uevent:
    """One event. `devpath` is the path below /sys, with a leading slash."""

    action: str
    devpath: str
    subsystem: str
    sequence: int
    properties: dict[str, str]

    @property
    def components(self) -> tuple[str, ...]:
        """The devpath's parts: a match is on whole parts, never on text inside one."""
        return tuple(self.devpath.strip("/").split("/"))

    @property
    def node(self) -> str | None:
        """The node in /dev that belongs to the device, e.g. "vfio/12"; None without one."""
        return self.properties.get("DEVNAME") or None

    def __str__(self) -> str:
        node = f" ({self.node})" if self.node else ""
        return f"{self.action} {self.subsystem} {self.devpath}{node}"


class Datagram(NamedTuple):
    """What one receive gave; a truncated message is worth nothing but a rescan."""

    data: bytes
    sender_port: int
    truncated: bool


class UeventSource(Protocol):
    """Where datagrams come from; tests stand a socket pair in for the kernel."""

    def fileno(self) -> int: ...
    def receive(self) -> Datagram: ...
    def close(self) -> None: ...


class KernelUevents:
    """The kernel's multicast group, bound from the moment it is made."""

    def __init__(self, *, receive_buffer: int = RECEIVE_BUFFER) -> None:
        self._socket = open_socket(receive_buffer=receive_buffer)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> Datagram:
        """The next message. Raises BlockingIOError when there is none, OSError ENOBUFS
        when the kernel had to drop some (the socket stays usable)."""
        return receive(self._socket)

    def close(self) -> None:
        self._socket.close()


def open_socket(*, receive_buffer: int = RECEIVE_BUFFER) -> socket.socket:
    """A non-blocking socket bound to the kernel's group.

    The buffer is forced past net.core.rmem_max (CAP_NET_ADMIN); without that right
    it is as large as the limit allows.
    """
    sock = socket.socket(
        socket.AF_NETLINK,
        socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
        _NETLINK_KOBJECT_UEVENT,
    )
    try:
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive_buffer)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.bind((0, KERNEL_GROUP))
    except OSError:
        sock.close()
        raise
    return sock


def receive(sock: socket.socket) -> Datagram:
    """One message of a socket from `open_socket`."""
    data, _, flags, address = sock.recvmsg(MESSAGE_SIZE)
    return Datagram(data, address[0], bool(flags & socket.MSG_TRUNC))


def parse(data: bytes, sender_port: int) -> Uevent | None:
    """The event in a message; None when it is not the kernel's or not an event."""
    if sender_port != KERNEL_PORT:
        return None
    header, _, rest = data.decode(errors="surrogateescape").partition("\0")
    action, separator, devpath = header.partition("@")
    if not (action and separator and devpath.startswith("/")):
        return None
    pairs = (text.partition("=") for text in rest.split("\0") if "=" in text)
    properties = {key: value for key, _, value in pairs}
    number = properties.get("SEQNUM", "")
    return Uevent(
        action=action,
        devpath=devpath,
        subsystem=properties.get("SUBSYSTEM", ""),
        sequence=int(number) if number.isascii() and number.isdigit() else 0,
        properties=properties,
    )
