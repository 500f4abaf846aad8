"""Processes: names, requests, streams and ends."""

from __future__ import annotations

from agent.core.errors import invalid
from agent.core.model import (
    ExecRequest,
    OutputChunk,
    ProcessExit,
    ProcessRef,
    Stream,
    WindowSize,
)
from agent.core.names import check_id
from agent.server.convert import fields
from innkeeper.v1 import processes_pb2, types_pb2

_MOST_SIGNALS = 64


def process_ref(message: types_pb2.ProcessRef) -> ProcessRef:
    """A process by name; without an exec id the container's first one."""
    check_id("container", message.container_id)
    if message.exec_id:
        check_id("exec", message.exec_id)
    return ProcessRef(container_id=message.container_id, exec_id=message.exec_id)


def exec_request(asked: processes_pb2.ExecRequest) -> ExecRequest:
    """A process to be added; the OCI object itself is the runtime's to judge."""
    if not asked.process:
        raise invalid("process: an OCI process object is needed", field="process")
    return ExecRequest(
        container_id=check_id("container", asked.container_id),
        exec_id=check_id("exec", asked.exec_id),
        process=asked.process,
        timeout=fields.seconds(asked.timeout_seconds, "timeout_seconds"),
    )


def signal_number(number: int) -> int:
    """A signal that Linux has: 1 to 64 (signal(7))."""
    if not 1 <= number <= _MOST_SIGNALS:
        raise invalid(f"signal: {number} is not 1 to {_MOST_SIGNALS}", field="signal")
    return number


def window_size(message: types_pb2.WindowSize, field: str) -> WindowSize:
    """A terminal's size: 1 to 65535 both ways (struct winsize has 16 bits)."""
    for name, value in (("rows", message.rows), ("columns", message.columns)):
        if not 1 <= value <= 0xFFFF:
            raise invalid(f"{field}.{name}: {value} is not 1 to 65535", field=f"{field}.{name}")
    return WindowSize(rows=message.rows, columns=message.columns)


def exit_status(end: ProcessExit) -> types_pb2.ExitStatus:
    """How a process ended, as the host gets to know it."""
    return types_pb2.ExitStatus(
        code=end.code, signal=end.signal, at_unix_micros=round(end.at * fields.MICROS)
    )


_STREAMS = {
    Stream.STDIN: types_pb2.STREAM_KIND_STDIN,
    Stream.STDOUT: types_pb2.STREAM_KIND_STDOUT,
    Stream.STDERR: types_pb2.STREAM_KIND_STDERR,
}


def output_stream(kind: types_pb2.StreamKind.ValueType, field: str) -> Stream:
    """One of the streams that a process writes."""
    stream = {word: stream for stream, word in _STREAMS.items()}.get(kind)
    if stream not in (Stream.STDOUT, Stream.STDERR):
        raise invalid(f"{field}: {kind} is neither stdout nor stderr", field=field)
    return stream


def output_frame(chunk: OutputChunk) -> processes_pb2.AttachResponse:
    """A piece of output as a frame."""
    return processes_pb2.AttachResponse(
        output=processes_pb2.OutputFrame(
            stream=_STREAMS[chunk.stream], offset=chunk.offset, data=chunk.data, end=chunk.end
        )
    )
