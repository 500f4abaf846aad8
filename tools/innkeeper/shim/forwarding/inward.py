"""Forwards from the guest to this host: the guest's agent listens, we connect.

The Listen call is made again when it is lost: the agent may restart, a container may come
later than its forward.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from innkeeper.shim.errors import printable
from innkeeper.shim.forwarding import joining, local
from innkeeper.shim.forwarding.outward import CONNECTIONS, first_words
from innkeeper.shim.forwarding.waiting import Pauses, is_away
from innkeeper.shim.forwarding.words import ForwardState
from innkeeper.v1 import sockets_pb2 as pb
from innkeeper.v1 import sockets_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpc import aio

    from innkeeper.shim.forwarding.words import Forward

_NOT_YET = "the guest has not answered yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Who is told: `note` of each failure, `changed` when the state is another."""

    note: Callable[[str], None]
    changed: Callable[[], None]


class GuestListener:
    """One forward whose listener is in the guest.

    `patient`: a refusal of the guest is waited out, as is an agent that is away.
    """

    def __init__(self, forward: Forward, *, patient: bool) -> None:
        self._forward = forward
        self._patient = patient
        self._address = forward.listen.to_address()
        self._told = str(forward.listen)
        self._trouble = _NOT_YET
        self._room = asyncio.Semaphore(CONNECTIONS)
        self.first_answer = asyncio.Event()
        """Set when the guest listens, or has refused to."""

    @property
    def state(self) -> ForwardState:
        target = str(self._forward.target)
        return ForwardState(listen=self._told, target=target, reverse=True, trouble=self._trouble)

    def close(self) -> None:
        """Nothing of it is on this host."""

    async def serve(self, channel: aio.Channel, watcher: Watcher) -> None:
        """Listen in the guest until cancelled. Impatient, it raises what the guest refuses."""
        pauses = Pauses(channel)
        async with asyncio.TaskGroup() as connections:
            while True:
                try:
                    await self._listen(channel, watcher, pauses, connections)
                    trouble = "the guest ended it"
                except grpc.aio.AioRpcError as error:
                    if not (self._patient or is_away(error)):
                        raise
                    trouble = first_words(error)
                except joining.BadStreamError as error:
                    trouble = str(error)
                self._set(trouble, watcher)
                await pauses.one()

    async def _listen(
        self,
        channel: aio.Channel,
        watcher: Watcher,
        pauses: Pauses,
        connections: asyncio.TaskGroup,
    ) -> None:
        call = sockets_pb2_grpc.SocketsStub(channel).Listen(pb.ListenRequest(address=self._address))
        try:
            async for news in call:
                match news.WhichOneof("news"):
                    case "listening":
                        self._note_address(news.listening)
                        pauses.renew()
                        self._set("", watcher)
                    case "connection":
                        # What it tells is read only when there is room for it.
                        await self._room.acquire()
                        task = connections.create_task(
                            self._take(channel, news.connection, watcher.note)
                        )
                        task.add_done_callback(lambda _: self._room.release())
                    case other:
                        raise joining.BadStreamError(f"news that there are not: {other}")
        finally:
            call.cancel()

    def _note_address(self, found: pb.SocketAddress) -> None:
        """The port that was chosen stays when it listens again."""
        if found.tcp and self._address.tcp:
            self._address.tcp = found.tcp
            where = f"{self._address.container_id}@" if self._address.container_id else ""
            self._told = f"{where}{printable(found.tcp)}"

    def _set(self, trouble: str, watcher: Watcher) -> None:
        if trouble != self._trouble:
            if trouble:
                watcher.note(f"{self._told} in the guest: does not listen: {trouble}")
            self._trouble = trouble
            watcher.changed()
        self.first_answer.set()

    async def _take(
        self, channel: aio.Channel, connection: pb.Connection, note: Callable[[str], None]
    ) -> None:
        """One connection; its failures are its own."""
        call: Any = sockets_pb2_grpc.SocketsStub(channel).Accept()
        try:
            # Taken first: what has nobody here to go to is reset at once.
            await joining.opened(call, pb.AcceptRequest(connection=connection.id))
            stream = await self._connected(note)
            if stream is not None:
                await joining.carry(stream, call, pb.AcceptRequest)
        except* OSError:
            # The client here went away; the guest sees a reset.
            pass
        except* (grpc.RpcError, joining.BadStreamError) as errors:
            note(f"{self._told} in the guest: {first_words(errors)}")
        finally:
            with contextlib.suppress(asyncio.InvalidStateError):
                call.cancel()

    async def _connected(self, note: Callable[[str], None]) -> local.LocalStream | None:
        target = self._forward.target
        try:
            return await local.connect(target)
        except (OSError, TimeoutError) as error:
            note(f"{target} on this host: {_why(error)}")
        return None


def _why(error: OSError | TimeoutError) -> str:
    """asyncio puts the address in the place of the kernel's words."""
    return os.strerror(error.errno) if error.errno else "no answer"
