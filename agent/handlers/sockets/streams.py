"""A connected socket as a stream whose halves end each by itself.

Nothing is kept: a read gives what is there, a write returns when the kernel has taken all,
so a slow side slows the other down.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Final

from agent.core.errors import AgentError, Code, Reason
from agent.linux import tcpsockets

READ_BYTES: Final = 64 << 10
"""The most that one read gives: what a stream whose host is slow holds at most."""


class SocketStream:
    """One connection; `what` names it in errors."""

    def __init__(self, sock: socket.socket, what: str) -> None:
        self._sock = sock
        self._what = what
        self._loop = asyncio.get_running_loop()
        tcpsockets.prepare(sock)

    async def read(self) -> bytes:
        """Some bytes; none at the end. Raises CONNECTION_RESET."""
        try:
            return await self._loop.sock_recv(self._sock, READ_BYTES)
        except OSError as error:
            raise _broken(self._what, error) from error

    async def write(self, data: bytes) -> None:
        """Raises CONNECTION_RESET, also when the other end takes no more."""
        try:
            await self._loop.sock_sendall(self._sock, data)
        except OSError as error:
            raise _broken(self._what, error) from error

    def finish(self) -> None:
        """No more writes; reading goes on. Raises CONNECTION_RESET."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise _broken(self._what, error) from error

    def close(self, *, in_order: bool) -> None:
        """At once; out of order the other end sees a reset where its kind of socket has one."""
        if not in_order:
            tcpsockets.reset_at_close(self._sock)
        self._sock.close()


def _broken(what: str, error: OSError) -> AgentError:
    number = error.errno or errno.EIO
    return AgentError(
        f"the connection {what} was reset: {os.strerror(number)}",
        code=Code.ABORTED,
        reason=Reason.CONNECTION_RESET,
        fields={"errno": errno.errorcode.get(number, str(number))},
    )
