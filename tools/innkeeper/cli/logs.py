"""`innkeeper logs`: what a process has written, from its log in the guest."""

from __future__ import annotations

import re
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from grpc import aio

from innkeeper.cli import again, output, refs, times
from innkeeper.cli.descriptors import FdSink
from innkeeper.cli.errors import CliError, explain
from innkeeper.cli.loop import wait_for
from innkeeper.cli.options import parse_number
from innkeeper.shim.client import find_vm
from innkeeper.shim.streams import reason_of
from innkeeper.v1 import processes_pb2, processes_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innkeeper.shim.streams import Sink
    from innkeeper.v1.processes_pb2 import LogsResponse
    from innkeeper.v1.types_pb2 import StreamKind

_NAMES = {types_pb2.STREAM_KIND_STDOUT: "stdout", types_pb2.STREAM_KIND_STDERR: "stderr"}


def logs(  # noqa: PLR0913 - typer makes each parameter an option
    vm: refs.VmArgument,
    process: refs.ProcessArgument,
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the process has ended.")
    ] = False,
    tail: Annotated[
        str, typer.Option("-n", "--tail", metavar="N|all", help="Only so many lines of the end.")
    ] = "all",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only what came after: 10m, 1h30m, or a time.")
    ] = "",
    timestamps: Annotated[
        bool, typer.Option("-t", "--timestamps", help="When each line began to come, in UTC.")
    ] = False,
    no_stdout: Annotated[bool, typer.Option("--no-stdout", help="Only errors.")] = False,
    no_stderr: Annotated[bool, typer.Option("--no-stderr", help="No errors.")] = False,
) -> None:
    """Prints what a process has written.

    Its output goes to stdout, its errors to stderr. Processes that are started with -d
    have a log, and others that were asked to; it is there until the container is
    removed, the oldest part of a long one excepted. Times are RFC 3339, as in
    2026-01-02T03:04:05Z.

    \b
    Examples:
      innkeeper logs web main
      innkeeper logs -f --tail 10 web main
      innkeeper logs --since 5m --timestamps web main/backup
      innkeeper logs web main 2>/dev/null | grep GET
    """
    request = processes_pb2.LogsRequest(
        process=refs.parse(process),
        follow=follow,
        since_unix_micros=times.parse_since("--since", since) if since else 0,
        tail_lines=None if tail == "all" else parse_number("--tail", tail, range(2**32)),
        without_stdout=no_stdout,
        without_stderr=no_stderr,
    )
    wait_for(_logs(vm, request, timestamps=timestamps))


async def _logs(vm_name: str, request: processes_pb2.LogsRequest, *, timestamps: bool) -> None:
    vm = find_vm(vm_name)
    reader = Reader(request=request, timestamps=timestamps)
    async with vm.channel() as channel:
        stub = processes_pb2_grpc.ProcessesStub(channel)
        pieces = again.stream(vm, channel, lambda: stub.Logs(reader.next_request()))
        try:
            async with aclosing(pieces) as told:
                async for piece in told:
                    await reader.take(piece)
        except aio.AioRpcError as error:
            if reason_of(error) != "NO_LOG":
                raise
            raise CliError(explain(error), hint=_without_log(vm_name, request.process)) from error


def _without_log(vm: str, process: types_pb2.ProcessRef) -> str:
    return (
        "processes of `run -d` and `exec -d` have one; to see what is kept of this one:"
        f" innkeeper attach --no-stdin {vm} {refs.text(process)}"
    )


@dataclass(slots=True, kw_only=True)
class _Stream:
    """How far one stream has come."""

    sink: Sink
    offset: int | None = None
    line_begins: bool = True


def _sinks() -> dict[StreamKind.ValueType, _Stream]:
    return {
        types_pb2.STREAM_KIND_STDOUT: _Stream(sink=FdSink(1, "stdout")),
        types_pb2.STREAM_KIND_STDERR: _Stream(sink=FdSink(2, "stderr")),
    }


@dataclass(slots=True, kw_only=True)
class Reader:
    """Writes pieces of a log, each byte once, however often the call is made."""

    request: processes_pb2.LogsRequest
    timestamps: bool = False
    streams: dict[StreamKind.ValueType, _Stream] = field(default_factory=_sinks)
    _last: int = 0
    """When the last piece came, in microseconds."""

    def next_request(self) -> processes_pb2.LogsRequest:
        """The first one, or one for what comes after what is there; that begins a little
        before, because several pieces may have one time."""
        if self._last:
            self.request.since_unix_micros = self._last
            self.request.ClearField("tail_lines")
        return self.request

    async def take(self, piece: LogsResponse) -> None:
        stream = self.streams[piece.stream]
        data = self._new(stream, piece)
        self._last = max(self._last, piece.at_unix_micros)
        if not data:
            return
        stream.offset = piece.offset + len(piece.data)
        if self.timestamps:
            data = b"".join(_stamped(stream, data, piece.at_unix_micros))
        await stream.sink.write(data)

    def _new(self, stream: _Stream, piece: LogsResponse) -> bytes:
        """What of the piece was not written yet."""
        if stream.offset is None:
            return piece.data
        if piece.offset > stream.offset:
            name = _NAMES[piece.stream]
            output.warn(f"bytes {stream.offset} to {piece.offset} of {name} are no longer kept")
            return piece.data
        return piece.data[stream.offset - piece.offset :]


def _stamped(stream: _Stream, data: bytes, micros: int) -> Iterator[bytes]:
    """Lines with their times; a line that goes on in the next piece has that of its beginning."""
    prefix = f"{times.stamp(micros)} ".encode()
    # Not splitlines(): it also takes \r, \v and more for ends of lines.
    for line in re.findall(rb"[^\n]*\n|[^\n]+", data):
        yield prefix + line if stream.line_begins else line
        stream.line_begins = line.endswith(b"\n")
