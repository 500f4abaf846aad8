"""Forwards from this host to the guest: we listen, the guest's agent connects."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import grpc

from innkeeper.shim.errors import printable
from innkeeper.shim.forwarding import joining, local
from innkeeper.shim.forwarding.waiting import Pauses, is_away
from innkeeper.shim.forwarding.words import ForwardState
from innkeeper.shim.streams import details_of
from innkeeper.v1 import sockets_pb2 as pb
from innkeeper.v1 import sockets_pb2_grpc

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from grpc import aio

    from innkeeper.shim.forwarding.words import Forward

CONNECTIONS: Final = 256
"""Of one forward at the same time; more wait in the kernel's queue."""

_AWAY_SECONDS = 10.0
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SHORT_SECONDS = 1.0


class HostListener:
    """One forward whose listening sockets are on this host, from the moment it is made.

    Raises ADDRESS_IN_USE, BAD_FIELD, HOST_LACKS.
    """

    def __init__(self, forward: Forward) -> None:
        self._target = forward.target
        self._listening = local.listen(forward.listen)
        self._end = replace(forward.listen, port=self._listening.port)
        self._room = asyncio.Semaphore(CONNECTIONS)

    @property
    def state(self) -> ForwardState:
        return ForwardState(listen=str(self._end), target=str(self._target), reverse=False)

    def close(self) -> None:
        self._listening.close()

    async def serve(self, channel: aio.Channel, note: Callable[[str], None]) -> None:
        """Take connections until cancelled; each one's failure is its own, and noted."""
        async with asyncio.TaskGroup() as group:
            for sock in self._listening.sockets:
                group.create_task(self._accept(sock, channel, note, group))

    async def _accept(
        self,
        listener: socket.socket,
        channel: aio.Channel,
        note: Callable[[str], None],
        group: asyncio.TaskGroup,
    ) -> None:
        while True:
            await self._room.acquire()
            try:
                sock = await local.accept(listener)
            except OSError as error:
                self._room.release()
                if error.errno in _SHORT:
                    # Nothing tells when there are descriptors or memory again.
                    note(f"{self._end}: {error.strerror}; connections wait")
                    await asyncio.sleep(_SHORT_SECONDS)
                continue
            stream = local.LocalStream(sock)
            task = group.create_task(self._connection(stream, channel, note))
            task.add_done_callback(lambda _: self._room.release())

    async def _connection(
        self, stream: local.LocalStream, channel: aio.Channel, note: Callable[[str], None]
    ) -> None:
        try:
            call = await self._opened(channel)
            await joining.carry(stream, call, pb.ForwardRequest)
        except* OSError:
            # The client here went away; the guest's end was reset.
            pass
        except* (grpc.RpcError, joining.BadStreamError) as errors:
            note(f"{self._end}->{self._target}: {first_words(errors)}")
        finally:
            stream.reset()

    async def _opened(self, channel: aio.Channel) -> Any:
        """A call that stands; an agent that restarts is waited for. Raises AioRpcError."""
        pauses = Pauses(channel)
        deadline = asyncio.get_running_loop().time() + _AWAY_SECONDS
        while True:
            call = sockets_pb2_grpc.SocketsStub(channel).Forward()
            try:
                await joining.opened(call, pb.ForwardRequest(open=self._target.to_address()))
            except BaseException as error:
                call.cancel()
                late = asyncio.get_running_loop().time() > deadline
                if late or not (isinstance(error, grpc.RpcError) and is_away(error)):
                    raise
            else:
                return call
            await pauses.one()


def first_words(errors: BaseException) -> str:
    """Why a connection failed, in one line."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, grpc.RpcError):
        return printable(details_of(error))
    return printable(str(error) or type(error).__name__)
