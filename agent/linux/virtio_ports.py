"""Virtio-serial ports: finding them by name, without udev (drivers/char/virtio_console.c).

What such a port does is unlike a socket:

- only one process can have it open (EBUSY);
- while the host's side is closed, poll shows EPOLLHUP for ever, read returns
  nothing and write says EAGAIN; so only edge-triggered epoll can wait for the
  host, and the kernel wakes the port's queue when the host opens or closes;
- there is no splice_read.
"""

from __future__ import annotations

import os
import socket

from agent.linux.libc import failure
from agent.linux.pseudo import read_optional

_NETLINK_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
_OURS = b"\0SUBSYSTEM=virtio-ports\0"


def find(prefix: str, *, sys_root: str = "/sys", dev_root: str = "/dev") -> list[tuple[str, str]]:
    """The (name, node) of each port whose name starts with `prefix`, sorted by name.

    A port without a name yet is left out: its name comes in a message of its
    own after the port, and the kernel announces it with a `change` uevent.
    """
    folder = f"{sys_root}/class/virtio-ports"
    found = []
    for device in _entries(folder):
        name = (read_optional(f"{folder}/{device}/name") or "").rstrip("\n")
        if name.startswith(prefix):
            found.append((name, f"{dev_root}/{device}"))
    return sorted(found)


def open_port(node: str) -> int:
    """A non-blocking descriptor for reading and writing.

    Raises OSError: EBUSY when another process has the port, ENXIO or ENODEV
    when it went away.
    """
    try:
        return os.open(node, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise failure(error.errno or 0, "open", node) from error


def announcements() -> socket.socket:
    """A non-blocking socket that becomes readable when the kernel announces any device.

    Bind it before the first `find`, so that no port falls between the two.
    """
    kinds = socket.SOCK_RAW | socket.SOCK_NONBLOCK
    listener = socket.socket(socket.AF_NETLINK, kinds, _NETLINK_KOBJECT_UEVENT)
    listener.bind((0, _KERNEL_GROUP))
    return listener


def ports_changed(listener: socket.socket) -> bool:
    """Empty the socket; true when a port came, changed or went, or when messages were lost."""
    changed = False
    while True:
        try:
            message, (sender, _groups) = listener.recvfrom(16 * 1024)
        except BlockingIOError:
            return changed
        except OSError:  # ENOBUFS: the kernel dropped some, so only a look can tell
            changed = True
            continue
        # Only the kernel (port id 0) is believed.
        changed |= sender == 0 and _OURS in message


def _entries(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except FileNotFoundError:  # no virtio-serial driver
        return []
