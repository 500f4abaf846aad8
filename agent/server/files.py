"""innkeeper.v1.Files: streams of parts, passed on a frame at a time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid, timed_out
from agent.server.convert import files as convert
from agent.server.routing import Bidi, Methods, ServerStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent.server.calls import Call, Frames, Send
    from agent.server.facades import FileManager
    from innkeeper.v1 import files_pb2 as pb

FIRST_FRAME_SECONDS: Final = 30.0
"""How long a call may stay open without saying what it is for."""


class FilesService:
    """Converts, calls the manager, converts back."""

    def __init__(self, manager: FileManager) -> None:
        self._manager = manager

    @property
    def methods(self) -> Methods:
        # CopyIn's one answer ends its call: on the wire that is a stream of one.
        return {"CopyIn": Bidi(self.copy_in), "CopyOut": ServerStream(self.copy_out)}

    async def copy_in(
        self, frames: Frames[pb.CopyInRequest], _call: Call, send: Send[pb.CopyInResponse]
    ) -> None:
        first = await _first_frame(frames, FIRST_FRAME_SECONDS)
        start = first.start
        root = convert.file_root(start.root, "start.root")
        path = convert.start_path(start.path, "start.path")
        rules = convert.copy_in_rules(start)
        result = await self._manager.copy_in(root, path, rules, _batches(first, frames))
        await send(convert.copied(result))

    async def copy_out(
        self, request: pb.CopyOutRequest, _call: Call, send: Send[pb.CopyOutResponse]
    ) -> None:
        root = convert.file_root(request.root, "root")
        path = convert.start_path(request.path, "path")
        rules = convert.copy_out_rules(request)
        # Closed at once when the host leaves, not when it is collected.
        async with aclosing(self._manager.copy_out(root, path, rules)) as frames:
            async for frame in frames:
                await send(convert.copy_out_frame(frame))


async def _first_frame(frames: Frames[pb.CopyInRequest], within: float) -> pb.CopyInRequest:
    try:
        async with asyncio.timeout(within):
            frame = await frames.read()
    except TimeoutError:
        raise timed_out(f"no frame came within {within:g} s; the first one has `start`") from None
    if frame is None or not frame.HasField("start"):
        raise invalid("the first frame must have `start`", field="start")
    return frame


async def _batches(
    first: pb.CopyInRequest, frames: Frames[pb.CopyInRequest]
) -> AsyncIterator[list[bytes]]:
    if first.parts:
        yield convert.batch(first.parts)
    async for frame in frames:
        if frame.HasField("start"):
            raise invalid("`start` is only possible in the first frame", field="start")
        yield convert.batch(frame.parts)
