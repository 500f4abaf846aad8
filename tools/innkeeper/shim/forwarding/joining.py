"""One connection: a socket of this host and a stream of the guest, joined.

Either half ends by itself. Nothing is kept: this host's socket is read when the guest's
window has room, a frame is asked for when the last one is written. A side that broke
resets the other one, so that nobody takes half of something for the whole.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from grpc import aio

from innkeeper.shim import writing

if TYPE_CHECKING:
    from innkeeper.shim.forwarding.local import LocalStream
    from innkeeper.v1 import sockets_pb2 as pb

    Request: TypeAlias = type[pb.ForwardRequest | pb.AcceptRequest]

READ_BYTES: Final = 64 << 10
FRAME_BYTES: Final = 256 << 10

# A guest may be hostile: it must not have us hold what it likes for each connection.
_METHODS = {
    "name": [{"service": "innkeeper.v1.Sockets"}],
    "maxRequestMessageBytes": 2 * FRAME_BYTES,
    "maxResponseMessageBytes": 2 * FRAME_BYTES,
}
CHANNEL_OPTIONS: Final = (("grpc.service_config", json.dumps({"methodConfig": [_METHODS]})),)
"""For a channel to the guest."""


class BadStreamError(Exception):
    """The guest does not keep to the protocol."""


async def opened(call: Any, first: Any) -> None:
    """Says what a call is for, and returns when its connection stands.

    Raises AioRpcError, BadStreamError.
    """
    await writing.write(call, first)
    answer = await call.read()
    if answer is aio.EOF or answer.WhichOneof("frame") != "connected":
        raise BadStreamError("its first answer is not `connected`")


async def carry(local: LocalStream, call: Any, request: Request) -> None:
    """Bytes both ways until both halves have ended.

    Closes both sides. Raises a group of OSError (of this host's socket), AioRpcError and
    BadStreamError.
    """
    all_read = asyncio.Event()
    in_order = False
    try:
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(_send(local, call, request, all_read))
            await _receive(local, call)
            # The call is over: nobody takes what else this host's socket may have.
            in_order = all_read.is_set()
            sending.cancel()
    finally:
        call.cancel()
        if in_order:
            local.close()
        else:
            local.reset()


async def _send(local: LocalStream, call: Any, request: Request, all_read: asyncio.Event) -> None:
    while data := await local.read(READ_BYTES):
        if not await writing.write(call, request(data=data)):
            # Why is for the call's reader to say.
            return
    all_read.set()
    await writing.write(call, request(end=True))


async def _receive(local: LocalStream, call: Any) -> None:
    ended = False
    # Not `async for`: gRPC does not let the two be mixed. An error of the call is raised here.
    while (answer := await call.read()) is not aio.EOF:
        match answer.WhichOneof("frame"):
            case "data" if not ended and 1 <= len(answer.data) <= FRAME_BYTES:
                await local.write(answer.data)
            case "end" if not ended:
                ended = True
                await local.finish()
            case frame:
                raise BadStreamError(f"a frame that can't come now: {frame}")
    if not ended:
        raise BadStreamError("the call ended without `end`")
