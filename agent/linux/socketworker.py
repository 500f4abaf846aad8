"""A process that walks paths to unix sockets for the agent, and can be given up.

The path may lead through a file system whose server does not answer, and a thread in such
a call could not be ended. It reads one request at a time from the SOCK_SEQPACKET socket on
descriptor 0, answers, and ends when the agent closes its side.

    request  {"call": "connect", "root": "/proc/7/root", "path": "/run/app.sock", ...}
             with the pidfd of the process whose root that is meant to be, if any
    answer   {"ok": RESULT}, with the socket | {"errno": N, "call": TEXT, "object": PATH}
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
from typing import TYPE_CHECKING

from agent.linux import fdpass, pidfd, unixsockets
from agent.linux.libc import failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.linux.fdpass import Message

# struct ucred of unix(7): pid, uid, gid.
_UCRED = struct.Struct("3i")


def main() -> None:
    with socket.socket(fileno=0) as channel:
        if _ends_with_agent(channel):
            serve(channel)


def _ends_with_agent(channel: socket.socket) -> bool:
    """False when it is dead already, which sends no signal any more: it made the socket."""
    pidfd.set_parent_death_signal(signal.SIGKILL)
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    agent, _, _ = _UCRED.unpack(credentials)
    return os.getppid() == int(agent)


def serve(channel: socket.socket) -> None:
    """Answer requests until the other side closes."""
    while True:
        try:
            request, fds = fdpass.receive(channel)
        except EOFError:
            return
        try:
            _answer(channel, request, fds)
        finally:
            for fd in fds:
                os.close(fd)


def _answer(channel: socket.socket, request: Message, fds: list[int]) -> None:
    try:
        root = os.open(request["root"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for process in fds:
                _check_alive(process)
            result, made = _CALLS[request["call"]](root, request)
        finally:
            os.close(root)
    except OSError as error:
        fdpass.send(channel, _refusal(error, request))
        return
    try:
        fdpass.send(channel, {"ok": result}, [] if made is None else [made.fileno()])
    finally:
        if made is not None:
            made.close()


def _check_alive(process: int) -> None:
    """A process keeps its number until it is reaped: so what was opened by the number was
    this one's root. Raises ESRCH."""
    try:
        signal.pidfd_send_signal(process, 0)
    except ProcessLookupError as error:
        raise failure(errno.ESRCH, "open", "the container's root") from error


def _refusal(error: OSError, request: Message) -> Message:
    call = (error.strerror or "").partition(":")[0]
    return {
        "errno": error.errno or errno.EIO,
        "call": call,
        "object": str(error.filename or request["path"]),
    }


def _connect(root: int, request: Message) -> tuple[object, socket.socket | None]:
    return None, unixsockets.connect(root, request["path"], request["seconds"])


def _listen(root: int, request: Message) -> tuple[object, socket.socket | None]:
    sock, identity = unixsockets.listen(root, request["path"])
    return list(identity), sock


def _remove(root: int, request: Message) -> tuple[object, socket.socket | None]:
    identity = unixsockets.Identity(*request["identity"])
    unixsockets.remove(root, request["path"], identity)
    return None, None


_CALLS: dict[str, Callable[[int, Message], tuple[object, socket.socket | None]]] = {
    "connect": _connect,
    "listen": _listen,
    "remove": _remove,
}
