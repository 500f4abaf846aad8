"""Messages of any size over a SOCK_SEQPACKET socket, for two sides that trust each other.

A socket's buffer bounds its packets (212,992 bytes unless the system was set otherwise), and
an overlay of 500 long paths is more. A message over `fdpass.MESSAGE_LIMIT` goes into a memfd,
and the packet carries its descriptor.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from agent.linux import fdpass

if TYPE_CHECKING:
    import socket

# More than 500 paths of PATH_MAX bytes: what is over it is a mistake.
LIMIT = 4 << 20

_KEY = "in memfd"


def send(sock: socket.socket, message: fdpass.Message) -> None:
    """Raises like `fdpass.send`; ValueError is for a message over `LIMIT`."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) <= fdpass.MESSAGE_LIMIT:
        fdpass.send(sock, message)
        return
    if len(data) > LIMIT:
        raise ValueError(f"a message of {len(data)} bytes is over the limit of {LIMIT}")
    with os.fdopen(os.memfd_create("message"), "w+b") as file:
        file.write(data)
        file.flush()
        fdpass.send(sock, {_KEY: len(data)}, [file.fileno()])


def receive(sock: socket.socket) -> fdpass.Message:
    """Raises like `fdpass.receive`."""
    message, fds = fdpass.receive(sock)
    if message.keys() != {_KEY} or len(fds) != 1:
        _close(fds)
        return message
    with os.fdopen(fds[0], "rb") as file:
        # The sender's offset is at the end, and the descriptors share it.
        file.seek(0)
        whole: fdpass.Message = json.loads(file.read(LIMIT))
    return whole


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
