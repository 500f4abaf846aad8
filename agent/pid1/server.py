"""The socket: connections, and what happens when one of them does not read.

Nothing here waits for a client. An answer that does not fit into the socket's
buffer is kept and no further request is read from that client; a subscriber has
a place in the journal, not a queue, and is dropped when the journal's memory
no longer reaches back to it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, NamedTuple

from agent.linux import fdpass
from agent.pid1.loop import HANGUP, READ, WRITE
from agent.pid1.requests import Answer, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.linux.fdpass import Message
    from agent.pid1.console import Voice
    from agent.pid1.journal import Journal
    from agent.pid1.layout import PowerAction
    from agent.pid1.loop import Loop
    from agent.pid1.requests import Requests

_CLIENTS_LIMIT = 64


class _Unsent(NamedTuple):
    """An answer that waits for room; its descriptors are duplicates of our own."""

    message: Message
    fds: tuple[int, ...]


class Connection:
    """One client. `sent` is the number of the last entry it was sent, None without subscription."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.unsent: _Unsent | None = None
        self.sent: int | None = None


class Server:
    """Answers requests and pushes journal entries."""

    def __init__(
        self,
        loop: Loop,
        requests: Requests,
        journal: Journal,
        say: Voice,
        on_power: Callable[[PowerAction], None],
    ) -> None:
        self._loop = loop
        self._requests = requests
        self._journal = journal
        self._say = say
        self.on_power = on_power
        self._connections: dict[int, Connection] = {}
        self._listener: socket.socket | None = None

    @property
    def connections(self) -> tuple[Connection, ...]:
        return tuple(self._connections.values())

    def listen(self, path: str) -> None:
        """Serve on a socket that only root can reach. Raises OSError."""
        listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        old_mask = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(old_mask)
        listener.listen(_CLIENTS_LIMIT)
        self._listener = listener
        self._loop.watch(listener.fileno(), READ, lambda _events: self._accept(listener))

    def close(self) -> None:
        """Take no more clients."""
        if self._listener is not None:
            self._loop.forget(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def add(self, sock: socket.socket) -> None:
        """Serve a connected socket."""
        sock.settimeout(0)
        connection = Connection(sock)
        self._connections[sock.fileno()] = connection
        self._loop.watch(sock.fileno(), READ, lambda events: self._ready(connection, events))

    def publish(self) -> None:
        """Push new entries to all subscribers."""
        for connection in self.connections:
            if connection.sent is not None and connection.unsent is None:
                self._guarded(connection, self._push)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        if len(self._connections) < _CLIENTS_LIMIT:
            self.add(sock)
            return
        with sock, contextlib.suppress(OSError):
            sock.settimeout(0)
            text = f"already {_CLIENTS_LIMIT} clients: close one first"
            fdpass.send(sock, Refused(text, "EMFILE").answer())

    def _ready(self, connection: Connection, events: int) -> None:
        if events & WRITE:
            self._guarded(connection, self._flush)
        elif events & READ:
            self._guarded(connection, self._serve)
        elif events & HANGUP:
            self._close(connection)

    def _guarded(self, connection: Connection, action: Callable[[Connection], None]) -> None:
        """A client that is gone, or finds a fault of ours, costs only its connection.

        Such a fault can be asked for again and again, so it must not count among
        those that tell PID 1 that it can't go on.
        """
        try:
            action(connection)
        except BlockingIOError:
            self._await_room(connection)
        except (EOFError, OSError):
            self._close(connection)
        except Exception as error:  # noqa: BLE001 - see above
            self._close(connection)
            self._say(f"error in a client's request, connection closed: {error!r}")

    def _serve(self, connection: Connection) -> None:
        try:
            message, fds = fdpass.receive(connection.sock)
        except fdpass.MessageError as error:
            self._send(connection, Answer(Refused(str(error), "EINVAL").answer()))
            return
        except BlockingIOError:
            return
        try:
            answer = self._requests.handle(message, fds)
        except Refused as refused:
            answer = Answer(refused.answer())
        finally:
            for fd in fds:
                os.close(fd)
        try:
            self._send(connection, answer)
        finally:
            # Even for a client that left: what it asked for was accepted.
            if answer.power is not None:
                self.on_power(answer.power)
        if answer.follow is not None:
            # What is gone from memory is told by "oldest" in the answer.
            connection.sent = max(answer.follow, self._journal.oldest - 1)
            self._push(connection)

    def _send(self, connection: Connection, answer: Answer) -> None:
        try:
            fdpass.send(connection.sock, answer.message, answer.fds)
        except BlockingIOError:
            # The store may close its own before there is room.
            copies = tuple(os.dup(fd) for fd in answer.fds)
            connection.unsent = _Unsent(answer.message, copies)
            self._await_room(connection)

    def _flush(self, connection: Connection) -> None:
        if connection.unsent is not None:
            fdpass.send(connection.sock, connection.unsent.message, connection.unsent.fds)
            _discard(connection)
        if connection.sent is not None:
            self._push(connection)
        self._loop.watch(
            connection.sock.fileno(), READ, lambda events: self._ready(connection, events)
        )

    def _push(self, connection: Connection) -> None:
        """Send what the subscriber has not had; BlockingIOError leaves its place where it is."""
        while connection.unsent is None and connection.sent is not None:
            if connection.sent + 1 < self._journal.oldest:
                self._say(f"a subscriber of exits did not read on from {connection.sent}: dropped")
                raise EOFError
            entries = self._journal.after(connection.sent, 1)
            if not entries:
                return
            fdpass.send(connection.sock, {"entry": entries[0]._asdict()})
            connection.sent = entries[0].seq

    def _await_room(self, connection: Connection) -> None:
        self._loop.watch(
            connection.sock.fileno(), WRITE, lambda events: self._ready(connection, events)
        )

    def _close(self, connection: Connection) -> None:
        fd = connection.sock.fileno()
        if self._connections.pop(fd, None) is None:
            return
        self._loop.forget(fd)
        _discard(connection)
        connection.sock.close()


def _discard(connection: Connection) -> None:
    if connection.unsent is not None:
        for fd in connection.unsent.fds:
            os.close(fd)
        connection.unsent = None
