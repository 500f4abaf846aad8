"""The kernel's side of a netlink socket, by a script.

Layouts: Documentation/userspace-api/netlink/intro.rst (headers, acknowledgements, extended
acknowledgements, dumps).
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from agent.core.netlink import HEADER, Message, messages
from agent.linux.netlinksocket import Datagram

Answer: TypeAlias = bytes | Datagram | OSError
Script: TypeAlias = Callable[[Message], Iterable[Answer]]

NLMSG_ERROR = 2
NLMSG_DONE = 3
NLM_F_MULTI = 2
NLM_F_DUMP_INTR = 0x10
NLM_F_CAPPED = 0x100
NLM_F_ACK_TLVS = 0x200


class FakeWire:
    """A `Wire` whose kernel answers each message by the script, inside `send`.

    `held`: cleared, `send` lasts until it is set, as while the kernel's lock is taken.
    """

    port = 4711

    def __init__(self, script: Script) -> None:
        self.script = script
        self.sent: list[Message] = []
        self.datagrams: list[list[Message]] = []
        self.held = threading.Event()
        self.held.set()
        self.closed = False
        self._queue: deque[Datagram | OSError] = deque()
        self._ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._ready

    def send(self, data: bytes) -> None:
        self.held.wait()
        received = list(messages(data))
        self.datagrams.append(received)
        for message in received:
            self.sent.append(message)
            for answer in self.script(message):
                self.put(answer)

    def put(self, answer: Answer) -> None:
        """Something arrives, from port 0 where nothing else is said."""
        self._queue.append(Datagram(answer, 0, False) if isinstance(answer, bytes) else answer)
        os.eventfd_write(self._ready, 1)

    def receive(self) -> Datagram:
        if not self._queue:
            self._quiet()
            raise BlockingIOError
        item = self._queue.popleft()
        if isinstance(item, OSError):
            raise item
        return item

    def close(self) -> None:
        self.closed = True
        os.close(self._ready)

    def _quiet(self) -> None:
        try:
            os.eventfd_read(self._ready)
        except BlockingIOError:
            return


def frame(kind: int, payload: bytes, *, sequence: int, flags: int = 0, port: int = 0) -> bytes:
    padding = b"\0" * (-len(payload) % 4)
    return HEADER.pack(16 + len(payload), kind, flags, sequence, port) + payload + padding


def ack(
    message: Message,
    error: int = 0,
    *,
    text: str = "",
    offset: int | None = None,
    capped: bool = True,
) -> bytes:
    """NLMSG_ERROR for a request, 0 for success."""
    flags = NLM_F_CAPPED if capped else 0
    repeated = message[:16] if capped else message
    attributes = b""
    if text:
        attributes += attribute(1, text.encode() + b"\0")
    if offset is not None:
        attributes += attribute(2, struct.pack("=I", offset))
    flags |= NLM_F_ACK_TLVS if attributes else 0
    payload = struct.pack("=i", -error) + repeated + attributes
    return frame(NLMSG_ERROR, payload, sequence=message.sequence, flags=flags)


def part(message: Message, payload: bytes, *, kind: int = 16, interrupted: bool = False) -> bytes:
    """One message of a dump."""
    flags = NLM_F_MULTI | (NLM_F_DUMP_INTR if interrupted else 0)
    return frame(kind, payload, sequence=message.sequence, flags=flags)


def done(message: Message, error: int = 0, *, text: str = "", interrupted: bool = False) -> bytes:
    """NLMSG_DONE, the end of a dump."""
    flags = NLM_F_MULTI | (NLM_F_DUMP_INTR if interrupted else 0)
    payload = struct.pack("=i", -error)
    if text:
        flags |= NLM_F_ACK_TLVS
        payload += attribute(1, text.encode() + b"\0")
    return frame(NLMSG_DONE, payload, sequence=message.sequence, flags=flags)


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def dropped() -> OSError:
    """What recv(2) says when the kernel had no room for an answer."""
    return OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))


def acknowledging(message: Message) -> list[Answer]:
    """A kernel that does everything."""
    return [ack(message)]
