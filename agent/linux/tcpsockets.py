"""TCP sockets of any network namespace.

A socket belongs for ever to the network namespace of the thread that made it
(net/core/sock.c), so one of another namespace is made by a thread that goes there and ends.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from agent.linux import netns

BACKLOG = 128

_RESET = struct.pack("ii", 1, 0)


def make(family: int, namespace: int | None) -> socket.socket:
    """A non-blocking TCP socket of the namespace with that descriptor, or of our own.

    Raises OSError, EAFNOSUPPORT in a kernel without that family.
    """
    return _make(family) if namespace is None else _elsewhere(family, namespace)


def listen(sock: socket.socket, address: tuple[str, int], *, both_families: bool) -> int:
    """Bind and listen; the port that it has then. Raises OSError."""
    # Else a port of connections that are still in TIME_WAIT could not be had (socket(7)).
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both_families else 1)
    sock.bind(address)
    sock.listen(BACKLOG)
    port: int = sock.getsockname()[1]
    return port


def prepare(sock: socket.socket) -> None:
    """For a stream whose bytes come in pieces already, and whose peer may just go."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def reset_at_close(sock: socket.socket) -> None:
    """The peer is to see a reset and not an orderly end (SO_LINGER with 0 s, socket(7)).

    Unix sockets have no such thing.
    """
    if sock.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def peer(sock: socket.socket) -> str:
    """Address of the other end as text; empty for a unix socket."""
    if sock.family == socket.AF_UNIX:
        return ""
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        # It was reset already.
        return ""
    host = host.removeprefix("::ffff:")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _make(family: int) -> socket.socket:
    return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def _elsewhere(family: int, namespace: int) -> socket.socket:
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def work() -> None:
        try:
            with netns.entered(namespace):
                made.append(_make(family))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="socket in a namespace")
    thread.start()
    thread.join()
    if failed:
        for sock in made:
            sock.close()
        raise failed[0]
    return made[0]
