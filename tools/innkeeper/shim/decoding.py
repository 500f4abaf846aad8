"""Requests to the daemon's own service that are no messages: refused with a reason.

The generated code decodes before a service sees anything, and gRPC turns its
failure into a bare UNKNOWN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from innkeeper.shim.errors import Reason, ShimError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = aio.ServicerContext[Any, Any]


class TypedDecoding(aio.ServerInterceptor):
    """For services whose methods take one request and give one answer; others pass by."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        # The stubs don't tell what a handler is made of.
        made: Any = handler
        if handler is None or made.request_streaming or made.response_streaming:
            return handler
        return _decoding(made, made.request_deserializer, str(handler_call_details.method))


def _decoding(handler: Any, decode: Callable[[bytes], Any], method: str) -> Handler:
    async def behaviour(raw: bytes, context: Context) -> Any:
        try:
            request = decode(raw)
        except DecodeError as error:
            told = ShimError(
                Reason.BAD_FIELD,
                f"{method}: the message cannot be decoded: {error}",
                hint="a string field must be UTF-8; is the caller's protocol newer?",
            )
            await context.abort(told.code, str(told), told.trailers())
        return await handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(
        behaviour, response_serializer=handler.response_serializer
    )
