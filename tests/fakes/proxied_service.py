"""A guest's service for tests of what a proxy keeps: what it was sent, and how it was left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc

MESSAGE_LIMIT = 16 << 20
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
)
DETAILS = b"\x00\xffdetails"

Context = grpc.aio.ServicerContext[bytes, bytes]


@dataclass(slots=True)
class ProxiedService:
    """Methods of `test.Proxied`, all in raw bytes."""

    metadata: dict[str, str | bytes] = field(default_factory=dict)
    """Of the last call."""
    time_left: float | None = None
    began: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def echo(self, request: bytes, context: Context) -> bytes:
        self._note(context)
        await context.send_initial_metadata((("header", "h"), ("header-bin", b"\x00\x01")))
        context.set_trailing_metadata((("trailer", "t"), ("trailer-bin", b"\xfe")))
        return request

    async def count(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        """How many messages came before the client's half-close."""
        return str(len([request async for request in requests])).encode()

    async def repeat(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield str(number).encode()

    async def talk(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Each message back before the next is sent."""
        async for request in requests:
            yield request

    async def leave(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Ends after the first message, though the client may have more."""
        async for request in requests:
            yield request
            return

    async def fail(self, request: bytes, context: Context) -> bytes:
        trailers = (("grpc-status-details-bin", DETAILS),)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "because é\n", trailers)

    async def refuse(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        """Ends with an error while the client is still writing."""
        async for _ in requests:
            trailers = (("grpc-status-details-bin", DETAILS),)
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such path", trailers)
        yield b""

    async def refuse_unread(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Ends with an error before it has read anything, as a relay without its agent does."""
        trailers = (("grpc-status-details-bin", DETAILS),)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "away", trailers)

    async def fail_late(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        yield b"one"
        await context.abort(grpc.StatusCode.DATA_LOSS, "lost")

    async def hang(self, request: bytes, context: Context) -> bytes:
        self._note(context)
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return b""

    def _note(self, context: Context) -> None:
        self.metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
        self.time_left = context.time_remaining()

    def handlers(self) -> grpc.GenericRpcHandler:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        both = grpc.stream_stream_rpc_method_handler
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Echo": unary(self.echo),
            "Count": grpc.stream_unary_rpc_method_handler(self.count),
            "Repeat": stream(self.repeat),
            "Talk": both(self.talk),
            "Leave": both(self.leave),
            "Refuse": both(self.refuse),
            "RefuseUnread": both(self.refuse_unread),
            "Fail": unary(self.fail),
            "FailLate": stream(self.fail_late),
            "Hang": unary(self.hang),
        }
        return grpc.method_handlers_generic_handler("test.Proxied", methods)


@contextlib.asynccontextmanager
async def serving(handlers: grpc.GenericRpcHandler, path: Path) -> AsyncIterator[grpc.aio.Server]:
    """A server of these handlers at a unix socket."""
    server = grpc.aio.server(handlers=(handlers,), options=OPTIONS)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield server
    finally:
        await server.stop(None)
