"""The kernel's event socket, stood in for by a socket pair: messages are real bytes."""

from __future__ import annotations

import errno
import os
import socket
import struct

from agent.linux.uevents import Datagram

_HEADER = struct.Struct("=IBB")
_LOST = 1


def message(action: str, devpath: str, subsystem: str, **properties: str) -> bytes:
    """One event as lib/kobject_uevent.c writes it."""
    pairs = {"ACTION": action, "DEVPATH": devpath, "SUBSYSTEM": subsystem, **properties}
    texts = [f"{action}@{devpath}", *(f"{key}={value}" for key, value in pairs.items())]
    return b"".join(text.encode() + b"\0" for text in [*texts, "SEQNUM=1000"])


class FakeUevents:
    """A `UeventSource`, and the other end of it."""

    def __init__(self) -> None:
        self._kernel, self._agent = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._agent.setblocking(False)

    def fileno(self) -> int:
        return self._agent.fileno()

    def receive(self) -> Datagram:
        data = self._agent.recv(1 << 16)
        port, lost, truncated = _HEADER.unpack_from(data)
        if lost:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        return Datagram(data[_HEADER.size :], port, bool(truncated))

    def close(self) -> None:
        self._agent.close()
        self._kernel.close()

    def send(self, action: str, devpath: str, subsystem: str, **properties: str) -> None:
        self.send_bytes(message(action, devpath, subsystem, **properties))

    def send_bytes(self, data: bytes, *, port: int = 0, truncated: bool = False) -> None:
        self._kernel.send(_HEADER.pack(port, 0, truncated) + data)

    def overflow(self) -> None:
        """The kernel had to drop events: the next receive says so."""
        self._kernel.send(_HEADER.pack(0, _LOST, 0))
