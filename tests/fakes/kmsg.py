"""The kernel's log device, stood in for by a socket pair: records are real bytes."""

from __future__ import annotations

import errno
import os
import socket

_LOST = b"lost"
_BROKEN = b"broken"


def record(
    text: str, *, sequence: int = 1, micros: int = 0, priority: int = 6, **keys: str
) -> bytes:
    """One record as printk writes it; `keys` are SUBSYSTEM and DEVICE."""
    lines = "".join(f" {key}={value}\n" for key, value in keys.items())
    return f"{priority},{sequence},{micros},-;{text}\n{lines}".encode()


class FakeKmsg:
    """A `KmsgSource`, and the other end of it."""

    def __init__(self) -> None:
        self._kernel, self._agent = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._agent.setblocking(False)
        self._sequence = 0

    def fileno(self) -> int:
        return self._agent.fileno()

    def receive(self) -> bytes:
        data = self._agent.recv(1 << 16)
        if data in (_LOST, _BROKEN):
            number = errno.EPIPE if data == _LOST else errno.EIO
            raise OSError(number, os.strerror(number))
        return data

    def close(self) -> None:
        self._agent.close()
        self._kernel.close()

    def log(self, text: str, *, priority: int = 6, **keys: str) -> None:
        """Log a line, a second after the last one."""
        self._sequence += 1
        micros = self._sequence * 1_000_000
        self._kernel.send(
            record(text, sequence=self._sequence, micros=micros, priority=priority, **keys)
        )

    def overwrite(self) -> None:
        """Records were overwritten before they were read: the next receive says so."""
        self._kernel.send(_LOST)

    def fail(self) -> None:
        self._kernel.send(_BROKEN)
