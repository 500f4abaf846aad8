"""A call as the services see it: the time it has, its frames, its answers.

Everything here works on serialized messages; services get and give protobuf
messages and never see gRPC.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from agent.core.errors import Reason, exhausted, invalid
from agent.server.limits import MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Context: TypeAlias = grpc.aio.ServicerContext[bytes, bytes]

M = TypeVar("M", bound=Message)

# The answer must reach the host before the host's own deadline ends the call,
# else it never learns how far things came.
_HEADWAY_SHARE = 0.1
_HEADWAY_MOST = 0.25


class HostLeft(Exception):  # noqa: N818 - not an error: the other side is gone
    """The call is over on the host's side; nobody will read an answer."""


class Call:
    """One call in progress."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def time_left(self) -> float | None:
        """Seconds that an operation may take to be answered in time; None without a deadline."""
        # Typed as float in the stubs; None when the host set no deadline.
        left: float | None = self._context.time_remaining()
        if left is None:
            return None
        return left - min(_HEADWAY_MOST, left * _HEADWAY_SHARE)

    def within(self, asked: float | None, *, default: float) -> float | None:
        """The timeout to use: what was asked for, or less when the call ends before that.

        `default` is what the operation takes when nothing was asked for.
        """
        left = self.time_left()
        if left is None or left >= (default if asked is None else asked):
            return asked
        return left

    def add_trailer(self, name: str, value: str) -> None:
        """Send a trailing header; what is not printable ASCII is escaped."""
        plain = value.encode("ascii", "backslashreplace").decode("ascii")
        printable = "".join(c if " " <= c <= "~" else " " for c in plain)
        self._context.set_trailing_metadata(((name, printable),))

    def afterwards(self, action: Callable[[], None]) -> None:
        """Run `action` when the answer is sent, or the call is over in another way."""

        def over(_: Context) -> None:
            action()

        # The stubs ask for an instance of a class that only they have.
        callback: Any = over
        self._context.add_done_callback(callback)


class Frames(Generic[M]):
    """The frames that the host sends."""

    def __init__(self, context: Context, kind: type[M]) -> None:
        self._context = context
        self._kind = kind

    async def read(self) -> M | None:
        """The next frame; None when the host sends no more."""
        raw: Any = await self._context.read()
        return None if raw is grpc.aio.EOF else decode(self._kind, raw)

    async def __aiter__(self) -> AsyncIterator[M]:
        while (frame := await self.read()) is not None:
            yield frame


class Send(Generic[M]):
    """Sends messages to the host; returns when gRPC's flow control took one (back-pressure)."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # gRPC refuses a second write on a call while one is in progress.
        self._turn = asyncio.Lock()

    async def __call__(self, message: M) -> None:
        raw = encode(message)
        async with self._turn:
            try:
                await self._context.write(raw)
            except grpc.aio.BaseError as error:
                raise HostLeft from error


def decode(kind: type[M], raw: bytes) -> M:
    """The message in `raw`; BAD_FIELD when it is none, LIMIT_REACHED when it is too long."""
    name = kind.DESCRIPTOR.full_name
    if len(raw) > MESSAGE_BYTES:
        raise _too_long(name, len(raw))
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise invalid(
            f"{name}: the message cannot be decoded: {error}",
            hint="a string field must be UTF-8; is the host's protocol newer or damaged?",
            field=name,
        ) from error


def encode(message: Message) -> bytes:
    """The message's bytes; LIMIT_REACHED when there are too many."""
    raw = message.SerializeToString()
    if len(raw) > MESSAGE_BYTES:
        raise _too_long(message.DESCRIPTOR.full_name, len(raw))
    return raw


def _too_long(name: str, size: int) -> Exception:
    return exhausted(
        f"{name}: the message has {size} bytes, at most {MESSAGE_BYTES} are possible",
        reason=Reason.LIMIT_REACHED,
        limit="message_bytes",
        size=size,
        maximum=MESSAGE_BYTES,
    )


UnaryHandle: TypeAlias = "Callable[[Any, Call], Awaitable[Message]]"
StreamHandle: TypeAlias = "Callable[[Any, Call, Send[Any]], Awaitable[None]]"
BidiHandle: TypeAlias = "Callable[[Frames[Any], Call, Send[Any]], Awaitable[None]]"
