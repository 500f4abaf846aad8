"""Messages with descriptors over a unix socket of type SOCK_SEQPACKET.

One packet is one JSON object of at most `MESSAGE_LIMIT` bytes, with up to
`FDS_LIMIT` descriptors (SCM_RIGHTS). Received descriptors are close-on-exec.
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any

MESSAGE_LIMIT = 64 * 1024
FDS_LIMIT = 16

Message = dict[str, Any]


class MessageError(ValueError):
    """The packet is not one of ours; whatever descriptors came with it are closed."""


def send(sock: socket.socket, message: Message, fds: tuple[int, ...] | list[int] = ()) -> None:
    """Send one packet, whole or not at all.

    Raises ValueError when it is over a limit, BlockingIOError when the socket
    is non-blocking and its buffer full, OSError as sendmsg(2) does.
    """
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MESSAGE_LIMIT:
        raise ValueError(f"a message of {len(data)} bytes is over the limit of {MESSAGE_LIMIT}")
    if len(fds) > FDS_LIMIT:
        raise ValueError(f"{len(fds)} descriptors are over the limit of {FDS_LIMIT} a message")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    # MSG_NOSIGNAL: a peer that is gone is an error here, never a signal.
    sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[Message, list[int]]:
    """Receive one packet; the caller owns the descriptors.

    Raises EOFError when the peer has closed, MessageError when the packet is
    too long, carries too many descriptors or is no JSON object, BlockingIOError
    when the socket is non-blocking and nothing is there.
    """
    space = socket.CMSG_SPACE(FDS_LIMIT * array.array("i").itemsize)
    data, ancillary, flags, _ = sock.recvmsg(MESSAGE_LIMIT, space, socket.MSG_CMSG_CLOEXEC)
    fds = _descriptors(ancillary)
    if not data and not fds:
        raise EOFError("the peer has closed the connection")
    try:
        return _decode(data, flags), fds
    except MessageError:
        for fd in fds:
            os.close(fd)
        raise


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def _decode(data: bytes, flags: int) -> Message:
    if flags & socket.MSG_TRUNC:
        raise MessageError(f"the message is longer than {MESSAGE_LIMIT} bytes")
    if flags & socket.MSG_CTRUNC:
        raise MessageError(f"the message carries more than {FDS_LIMIT} descriptors")
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise MessageError("the message is not a JSON object")
    return message
