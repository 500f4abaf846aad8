"""Writing into a streaming call without losing how it ended.

A server may end a call while its client still writes: it refuses the first
message, or the disk is full in the middle of a copy. `grpc.aio`'s own `write`
then fails, and in failing overwrites the status that has just come with
INTERNAL "Internal error from Core" (grpcio up to 1.85 at least,
`_StreamRequestMixin._write`): more often than not when messages are big. The
layer below it does not do that, so messages go there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from grpc import aio

if TYPE_CHECKING:
    Request = TypeVar("Request")
    Response = TypeVar("Response")
    Call = aio.StreamStreamCall[Request, Response] | aio.StreamUnaryCall[Request, Response]


async def write(call: Call[Request, Response], message: Request) -> bool:
    """Sends a message; False, and the message is lost, when the call is over.

    Why it is over is then for the call's reader, or `call.code()`, to say.
    """
    try:
        await call.wait_for_connection()
    except aio.AioRpcError:
        return False
    if call.done():
        return False
    return await _send(call, message)


async def finish(call: Call[Request, Response]) -> None:
    """No more messages; fine when the call is over."""
    try:
        await call.done_writing()
    except aio.InternalError:
        return


async def _send(call: Any, message: object) -> bool:
    serialize = call._request_serializer
    try:
        await call._cython_call.send_serialized_message(
            serialize(message) if serialize is not None else message
        )
    except aio.InternalError:
        return False
    return True
