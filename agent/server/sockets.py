"""innkeeper.v1.Sockets: streams of bytes, passed on a frame at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from agent.core.errors import AgentError, Reason, invalid, timed_out
from agent.server.convert import sockets as convert
from agent.server.routing import Bidi, Methods, ServerStream
from innkeeper.v1 import sockets_pb2 as pb

if TYPE_CHECKING:
    from agent.handlers.sockets.streams import SocketStream
    from agent.server.calls import Call, Frames, Send
    from agent.server.facades import SocketManager

    Request: TypeAlias = pb.ForwardRequest | pb.AcceptRequest
    Response = TypeVar("Response", pb.ForwardResponse, pb.AcceptResponse)
    R = TypeVar("R", pb.ForwardRequest, pb.AcceptRequest)

FIRST_FRAME_SECONDS: Final = 30.0
"""How long a call may stay open without saying what it is for."""


class SocketsService:
    """Converts, calls the manager, converts back."""

    def __init__(self, manager: SocketManager) -> None:
        self._manager = manager

    @property
    def methods(self) -> Methods:
        return {
            "Forward": Bidi(self.forward),
            "Listen": ServerStream(self.listen),
            "Accept": Bidi(self.accept),
        }

    async def forward(
        self, frames: Frames[pb.ForwardRequest], _call: Call, send: Send[pb.ForwardResponse]
    ) -> None:
        first = await _first_frame(frames, "open")
        async with self._manager.connected(convert.target(first.open, "open")) as stream:
            await send(pb.ForwardResponse(connected=True))
            await _join(stream, frames, send, pb.ForwardResponse)

    async def listen(
        self, request: pb.ListenRequest, _call: Call, send: Send[pb.ListenResponse]
    ) -> None:
        async def tell(number: int, peer: str) -> None:
            connection = pb.Connection(id=number, peer=peer)
            await send(pb.ListenResponse(connection=connection))

        place = convert.place(request.address, "address")
        async with self._manager.listening(place) as listener:
            await send(pb.ListenResponse(listening=convert.address(listener.place)))
            await listener.serve(tell)

    async def accept(
        self, frames: Frames[pb.AcceptRequest], _call: Call, send: Send[pb.AcceptResponse]
    ) -> None:
        first = await _first_frame(frames, "connection")
        async with self._manager.taken(first.connection) as stream:
            await send(pb.AcceptResponse(connected=True))
            await _join(stream, frames, send, pb.AcceptResponse)


async def _first_frame(frames: Frames[R], name: str) -> R:
    try:
        async with asyncio.timeout(FIRST_FRAME_SECONDS):
            frame = await frames.read()
    except TimeoutError:
        raise timed_out(
            f"no frame came within {FIRST_FRAME_SECONDS:g} s; the first one has `{name}`"
        ) from None
    if frame is None or frame.WhichOneof("frame") != name:
        raise invalid(f"the first frame must have `{name}`", field=name)
    return frame


async def _join(
    stream: SocketStream, frames: Frames[R], send: Send[Response], answer: type[Response]
) -> None:
    """Until both halves have ended."""
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(_take(stream, frames))
        while data := await stream.read():
            await send(answer(data=data))
        await send(answer(end=True))
        broken = await taking
    if broken is not None:
        raise broken


async def _take(stream: SocketStream, frames: Frames[R]) -> AgentError | None:
    """Write what the host sends until its half is over.

    The error of a stream that takes no more: what can still be read of it goes to the host
    before that is told.
    """
    try:
        while (data := await _next(frames)) is not None:
            await stream.write(data)
        stream.finish()
    except AgentError as error:
        if error.reason is not Reason.CONNECTION_RESET:
            raise
        return error
    return None


async def _next(frames: Frames[R]) -> bytes | None:
    """The host's next bytes; None when its half is over."""
    frame = await frames.read()
    if frame is None:
        # Also what a call that was cancelled looks like: the guest must not take it for an
        # orderly end.
        raise invalid("the host's half of the call ended without `end`", field="end")
    match frame.WhichOneof("frame"):
        case "data":
            return convert.frame_data(frame.data)
        case "end":
            return None
        case other:
            raise invalid(f"`{other}` is only possible in the first frame", field="frame")
