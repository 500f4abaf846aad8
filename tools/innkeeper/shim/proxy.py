"""Every call that is not for the host goes to the guest as it is.

Methods need not be known here: a call is passed on as raw messages in both
directions, which on the wire is the same for unary and streaming methods, with
its metadata, its deadline, its cancellation, and its status with trailers (so
error details too). Any number at once, on one connection to the guest.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

import grpc
from grpc import aio

from innkeeper.shim import writing
from innkeeper.shim.errors import clip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from innkeeper.shim.errors import ShimError

    Context = aio.ServicerContext[bytes, bytes]
    Call = aio.StreamStreamCall[bytes, bytes]
    Metadata = tuple[tuple[str, str | bytes], ...]

HOST_PREFIX = "/innkeeper.v1.Host/"
# Above the guest's own limit, so that it is the guest that refuses, with a reason.
MESSAGE_LIMIT = 32 << 20

# How long a guest's early refusal is kept for a caller that has not spoken yet.
_FIRST_WORD = 1.0

# Of this connection, not of the call; the next hop has its own.
_HOP_BY_HOP = frozenset({"user-agent", "te", "content-type", "host"})

SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
)
CHANNEL_OPTIONS = (
    *SERVER_OPTIONS,
    # The proxy passes refusals on, it does not hide them by trying again.
    ("grpc.enable_retries", 0),
)


class Vm(Protocol):
    """What a proxied call needs to know of the VM when the guest fails it."""

    async def why_gone(self) -> ShimError | None:
        """The reason why the VM has ended; None while it lives."""


class GuestProxy(grpc.GenericRpcHandler):
    """Handles every method but those of `innkeeper.v1.Host`."""

    def __init__(self, guest: aio.Channel, vm: Vm) -> None:
        self._guest = guest
        self._vm = vm

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        method = str(handler_call_details.method)
        if method.startswith(HOST_PREFIX):
            return None

        async def forward(requests: AsyncIterator[bytes], context: Context) -> None:
            await self._forward(method, requests, context)

        return grpc.stream_stream_rpc_method_handler(forward)

    async def _forward(self, method: str, requests: AsyncIterator[bytes], context: Context) -> None:
        call: Call = self._guest.stream_stream(method)(
            timeout=_time_left(context), metadata=_passed_on(context.invocation_metadata())
        )
        spoken = asyncio.Event()
        sender = asyncio.create_task(_send(requests, call, spoken))
        try:
            await _receive(call, context)
            await _first_word(spoken)
            await self._finish(call, context)
        finally:
            # The guest has answered, or our caller has gone: either way nobody
            # needs the rest of the other direction.
            call.cancel()
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def _finish(self, call: Call, context: Context) -> None:
        code = await call.code()
        if code is grpc.StatusCode.UNAVAILABLE:
            gone = await self._vm.why_gone()
            if gone is not None:
                await context.abort(gone.code, clip(str(gone)), gone.trailers())
        context.set_trailing_metadata(_passed_on(await call.trailing_metadata()))
        context.set_code(code)
        context.set_details(await call.details() or "")


async def _send(requests: AsyncIterator[bytes], call: Call, spoken: asyncio.Event) -> None:
    """The caller's messages, then its end; a call that is over takes no more.

    Sets `spoken` at the first message, or at the end of a caller without any.
    """
    try:
        async for request in requests:
            spoken.set()
            if not await writing.write(call, request):
                return
        await writing.finish(call)
    finally:
        spoken.set()


async def _first_word(spoken: asyncio.Event) -> None:
    """Let the caller's first message arrive before a status that was there sooner.

    A gRPC client in Python whose write fails because the call is over forgets
    the status for INTERNAL "Internal error from Core" (see writing.py). Only a
    caller that waits for us to speak first is held up.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FIRST_WORD):
            await spoken.wait()


async def _receive(call: Call, context: Context) -> None:
    """The guest's headers and messages; its failure is read from the call later."""
    try:
        headers = await call.initial_metadata()
        if headers:
            await context.send_initial_metadata(_passed_on(headers))
        async for message in call:
            await context.write(message)
    except aio.AioRpcError:
        return


def _time_left(context: Context) -> float | None:
    left = context.time_remaining()
    return None if left is None else max(left, 0)


def _passed_on(metadata: Iterable[Any] | None) -> Metadata:
    """Without what belongs to one hop; `grpc-` is the protocol's own prefix,
    of which only the status details are the application's."""
    return tuple(
        (key, value)
        for key, value in metadata or ()
        if key not in _HOP_BY_HOP
        and (not key.startswith("grpc-") or key == "grpc-status-details-bin")
    )
