"""The unix socket on which a runtime hands over a terminal's master side."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Code, Reason, timed_out

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.core.deadlines import Deadline

_numbers = itertools.count(1)

_MASTER = os.makedev(5, 2)
"""/dev/ptmx (admin-guide/devices.txt); every master side has this number."""


class ConsoleSocket:
    """Listens at `path` for one connection that brings one terminal."""

    def __init__(self, listener: socket.socket, path: Path) -> None:
        self._listener = listener
        self.path = path

    async def receive(self, deadline: Deadline) -> int:
        """The master side, not blocking; the caller owns it.

        Raises RUNTIME_REFUSED when something else comes, OPERATION_TIMED_OUT.
        """
        loop = asyncio.get_running_loop()
        try:
            async with deadline.limit():
                connection, _ = await loop.sock_accept(self._listener)
                with connection:
                    await _readable(connection)
                    _, fds, _, _ = socket.recv_fds(connection, 4096, 4)
        except TimeoutError:
            raise timed_out("the runtime sent no terminal in time") from None
        return _only_a_master(fds)


@contextmanager
def console_socket(directory: Path) -> Iterator[ConsoleSocket]:
    """A socket with a short name: the kernel takes 107 bytes for the whole path."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / str(next(_numbers))
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listener:
        listener.bind(str(path))
        try:
            listener.listen(1)
            yield ConsoleSocket(listener, path)
        finally:
            path.unlink(missing_ok=True)


def _only_a_master(fds: list[int]) -> int:
    """It was made inside the container's file system: trust what it is, not where it comes from."""
    master, *others = fds or [-1]
    for fd in others:
        os.close(fd)
    if master >= 0 and os.fstat(master).st_rdev == _MASTER:
        # Not by a flag of recv_fds, which ignores its flags.
        fcntl.fcntl(master, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        os.set_blocking(master, False)
        return master
    if master >= 0:
        os.close(master)
    raise AgentError(
        "the runtime sent something that is not a terminal",
        code=Code.FAILED_PRECONDITION,
        reason=Reason.RUNTIME_REFUSED,
    )


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(sock.fileno(), arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(sock.fileno())
