"""Processes.Attach: how it is opened, and what it sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid
from agent.core.life import Until
from agent.core.model import OutputChunk, OutputGap, Stream
from agent.core.names import check_id
from innkeeper.v1 import processes_pb2 as pb
from innkeeper.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNTIL: Final = {
    pb.ATTACH_UNTIL_UNSPECIFIED: Until.EXIT,
    pb.ATTACH_UNTIL_EXIT: Until.EXIT,
    pb.ATTACH_UNTIL_END: Until.END,
}

_STREAMS: Final = {
    Stream.STDOUT: types_pb2.STREAM_KIND_STDOUT,
    Stream.STDERR: types_pb2.STREAM_KIND_STDERR,
}


def until(opening: pb.OpenStreams) -> Until:
    """When the call ends; raises BAD_FIELD."""
    known = _UNTIL.get(opening.until)
    if known is None:
        raise invalid(f"open.until: {opening.until} is not known", field="open.until")
    return known


def reader(opening: pb.OpenStreams) -> str:
    """The reader's name, or none; raises BAD_ID."""
    return check_id("reader", opening.reader) if opening.reader else ""


def offsets(opening: pb.OpenStreams, *, terminal: bool) -> Mapping[Stream, int]:
    """Where each stream that is asked for is to begin; a terminal has only one."""
    if opening.input_only:
        return {}
    wanted = {Stream.STDOUT: opening.stdout_offset, Stream.STDERR: opening.stderr_offset}
    if terminal:
        del wanted[Stream.STDERR]
    return wanted


def output(piece: OutputChunk | OutputGap) -> pb.AttachResponse:
    """A piece of output, or what is missing of it, as a frame."""
    stream = _STREAMS[piece.stream]
    if isinstance(piece, OutputGap):
        gap = pb.OutputGap(stream=stream, to=piece.end)
        # A word of Python's, so no keyword.
        setattr(gap, "from", piece.start)
        return pb.AttachResponse(gap=gap)
    return pb.AttachResponse(
        output=pb.OutputFrame(stream=stream, offset=piece.offset, data=piece.data, end=piece.end)
    )
