"""A gRPC service that sends back what it gets: bytes, no messages of a protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

SIZE_LIMIT = 32 * 1024 * 1024
OPTIONS = [
    ("grpc.max_receive_message_length", SIZE_LIMIT),
    ("grpc.max_send_message_length", SIZE_LIMIT),
]
UNARY = "/test.Echo/Unary"
STREAM = "/test.Echo/Stream"

Context = grpc.aio.ServicerContext[bytes, bytes]


async def _unary(request: bytes, _context: Context) -> bytes:
    return request


async def _stream(requests: AsyncIterator[bytes], _context: Context) -> AsyncIterator[bytes]:
    """Each message back; after the client's half-close, the number of messages."""
    count = 0
    async for request in requests:
        count += 1
        yield request
    yield str(count).encode()


@asynccontextmanager
async def echo_server(path: Path) -> AsyncIterator[grpc.aio.Server]:
    """Serve at this unix socket; leaving ends every connection at once."""
    server = grpc.aio.server(options=OPTIONS)
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", methods),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield server
    finally:
        await server.stop(grace=None)
        await asyncio.to_thread(path.unlink, missing_ok=True)
