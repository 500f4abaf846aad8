"""Copies between this host and a guest, over `innkeeper.v1.Files`.

    sent = await send(channel, start, Sending(source=Path("conf")))
    await fetch(channel, request, Place(folder=Path("."), name="conf"))

Local files are read and written in threads, one message at a time: nothing piles up
when one side is slow. Raises `grpc.aio.AioRpcError` as the stubs do, ShimError for a
guest that misleads, and OSError for local files.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import grpc

from innkeeper.shim import writing
from innkeeper.shim.landing import Landing
from innkeeper.shim.localtree import batches
from innkeeper.shim.streams import error_info
from innkeeper.v1 import files_pb2 as pb
from innkeeper.v1 import files_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grpc import aio

    from innkeeper.shim.landing import Place
    from innkeeper.shim.localtree import Sending

    OnProgress = Callable[[int, int], None]

P = ParamSpec("P")
Answer = TypeVar("Answer")

LINES_MOST = 10_000
"""Lines of what was left out that are kept: the guest sends as many as it likes."""


def _nothing(_files: int, _size: int) -> None:
    """Nobody wants to know."""


async def send(
    channel: aio.Channel,
    start: pb.CopyStart,
    sending: Sending,
    on_progress: OnProgress = _nothing,
) -> pb.CopyInResponse:
    """Copy a local file or tree in; `on_progress` gets files and bytes so far."""
    call = files_pb2_grpc.FilesStub(channel).CopyIn()
    try:
        request = pb.CopyInRequest(start=start)
        found = batches(sending)
        while (parts := await _in_thread(_next, found)) is not None:
            request.parts.extend(parts)
            if not await writing.write(call, request):
                break
            on_progress(sending.files, sending.size)
            request = pb.CopyInRequest()
        await writing.finish(call)
        return await call
    finally:
        # Without effect on one that is over.
        call.cancel()


async def fetch(
    channel: aio.Channel,
    request: pb.CopyOutRequest,
    place: Place,
    on_progress: OnProgress = _nothing,
) -> tuple[str, ...]:
    """Copy a file or tree of the guest out; returns lines of what was left out."""
    call = files_pb2_grpc.FilesStub(channel).CopyOut(request)
    left_out: list[str] = []
    try:
        with Landing(place) as landing:
            async for answer in call:
                await _in_thread(landing.parts, answer.parts)
                left_out += answer.left_out[: LINES_MOST - len(left_out)]
                on_progress(landing.files, landing.size)
            await _in_thread(landing.finish)
    finally:
        call.cancel()
    return tuple(left_out)


async def look(channel: aio.Channel, root: pb.FileRoot, path: str) -> pb.FileHeader | None:
    """What is at a path of the guest, links followed; None when nothing is."""
    request = pb.CopyOutRequest(root=root, path=path, follow_link=True)
    return await first_header(channel, request)


async def first_header(channel: aio.Channel, request: pb.CopyOutRequest) -> pb.FileHeader | None:
    """The header of what a request would copy; None when there is no such file."""
    call = files_pb2_grpc.FilesStub(channel).CopyOut(request)
    try:
        async for answer in call:
            for part in answer.parts:
                return part.header
    except grpc.aio.AioRpcError as error:
        if not is_missing(error):
            raise
    finally:
        call.cancel()
    return None


def is_missing(error: grpc.aio.AioRpcError) -> bool:
    """Whether there is no such path, in a root that is there."""
    if error.code() is not grpc.StatusCode.NOT_FOUND:
        return False
    info = error_info(error)
    return info is not None and info.reason == "FILE_NOT_FOUND"


async def _in_thread(work: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
    """Its end is waited for also when we are cancelled: it uses what we would close."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _next(found: Iterator[list[pb.FilePart]]) -> list[pb.FilePart] | None:
    return next(found, None)
