"""A guest that does not keep to the protocol of Sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from innkeeper.v1 import sockets_pb2 as pb
from innkeeper.v1 import sockets_pb2_grpc


@dataclass(slots=True, kw_only=True)
class HostileGuest:
    """Forward gives `answers` and ends; Listen tells of so many connections, and Accept
    keeps whoever takes one waiting."""

    answers: list[pb.ForwardResponse]
    connections: int = 0
    accepting: int = 0
    accepted: asyncio.Event = field(default_factory=asyncio.Event)

    async def ping(self, channel: Any) -> None:
        """One more round trip on the same connection."""
        call = sockets_pb2_grpc.SocketsStub(channel).Forward()
        await call.write(pb.ForwardRequest())
        await call.read()
        call.cancel()


class _Service(sockets_pb2_grpc.SocketsServicer):
    def __init__(self, guest: HostileGuest) -> None:
        self._guest = guest

    async def Forward(self, requests: Any, context: Any) -> AsyncIterator[pb.ForwardResponse]:  # noqa: N802
        await context.read()
        for answer in self._guest.answers:
            yield answer

    async def Listen(self, request: Any, context: Any) -> AsyncIterator[pb.ListenResponse]:  # noqa: N802
        yield pb.ListenResponse(listening=request.address)
        for number in range(self._guest.connections):
            yield pb.ListenResponse(connection=pb.Connection(id=number))
        await asyncio.Event().wait()

    async def Accept(self, requests: Any, context: Any) -> AsyncIterator[pb.AcceptResponse]:  # noqa: N802
        self._guest.accepting += 1
        self._guest.accepted.set()
        await asyncio.Event().wait()
        yield pb.AcceptResponse()


@contextlib.asynccontextmanager
async def hostile(
    guest: HostileGuest, path: Path, options: tuple[tuple[str, str], ...]
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to such a guest, with the daemon's options."""
    large = (("grpc.max_send_message_length", -1),)
    server = grpc.aio.server(options=large)
    sockets_pb2_grpc.add_SocketsServicer_to_server(_Service(guest), server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    receive = (("grpc.max_receive_message_length", 32 << 20), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(f"unix:{path}", options=(*receive, *options)) as channel:
        yield channel
    await server.stop(0)
