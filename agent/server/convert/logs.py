"""Output logs: what is asked for, and pieces of them."""

from __future__ import annotations

from agent.core.errors import invalid
from agent.core.model import Stream
from agent.handlers.runtime.logs.outputlog import LogPiece, LogQuery
from agent.server.convert import fields
from innkeeper.v1 import processes_pb2, types_pb2

_KINDS = {
    Stream.STDOUT: types_pb2.STREAM_KIND_STDOUT,
    Stream.STDERR: types_pb2.STREAM_KIND_STDERR,
}


def log_query(asked: processes_pb2.LogsRequest) -> LogQuery:
    """Raises BAD_FIELD for a time before 1970, and when both streams are left out."""
    since = asked.since_unix_micros
    if since < 0:
        raise invalid(f"since_unix_micros: {since} is negative", field="since_unix_micros")
    left_out = {Stream.STDOUT: asked.without_stdout, Stream.STDERR: asked.without_stderr}
    streams = frozenset(stream for stream, out in left_out.items() if not out)
    if not streams:
        raise invalid("both streams are left out", field="without_stderr")
    return LogQuery(
        follow=asked.follow,
        since=since / fields.MICROS if since else None,
        tail=asked.tail_lines if asked.HasField("tail_lines") else None,
        streams=streams,
    )


def log_piece(piece: LogPiece) -> processes_pb2.LogsResponse:
    return processes_pb2.LogsResponse(
        stream=_KINDS[piece.stream],
        offset=piece.offset,
        at_unix_micros=round(piece.at * fields.MICROS),
        data=piece.data,
    )
