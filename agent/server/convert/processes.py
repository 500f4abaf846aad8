"""Processes: names, requests, streams and ends."""

from __future__ import annotations

from typing import Final

from agent.core.errors import invalid
from agent.core.life import EndCause, OutOfMemory
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
from agent.server.convert.life import stream_options
from agent.server.limits import TAIL_BYTES
from innkeeper.v1 import processes_pb2, types_pb2

_LONGEST_VARIABLE: Final = 131_071
"""MAX_ARG_STRLEN of the kernel (execve(2)) without its NUL."""


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
        more_environment=tuple(
            _variable(each, f"more_environment[{at}]")
            for at, each in enumerate(asked.more_environment)
        ),
        streams=stream_options(asked.streams, "streams"),
        timeout=fields.seconds(asked.timeout_seconds, "timeout_seconds"),
    )


def _variable(entry: str, field: str) -> str:
    name, equals, _ = fields.plain_text(entry, field).partition("=")
    if not name or not equals or len(entry.encode()) > _LONGEST_VARIABLE:
        raise invalid(f"{field}: {entry[:60]!a} is not NAME=value", field=field)
    return entry


def stderr_tail(asked: processes_pb2.WaitRequest) -> int:
    """How many bytes; raises BAD_FIELD for more than there may be."""
    return fields.within(asked.stderr_tail_bytes, 0, TAIL_BYTES, "stderr_tail_bytes")


def window_size(message: types_pb2.WindowSize, field: str) -> WindowSize:
    """A terminal's size: 1 to 65535 both ways (struct winsize has 16 bits)."""
    for name, value in (("rows", message.rows), ("columns", message.columns)):
        if not 1 <= value <= 0xFFFF:
            raise invalid(f"{field}.{name}: {value} is not 1 to 65535", field=f"{field}.{name}")
    return WindowSize(rows=message.rows, columns=message.columns)


_CAUSES: Final = {
    None: types_pb2.END_CAUSE_UNSPECIFIED,
    EndCause.EXITED: types_pb2.END_CAUSE_EXITED,
    EndCause.SIGNALLED: types_pb2.END_CAUSE_SIGNALLED,
    EndCause.OUT_OF_MEMORY: types_pb2.END_CAUSE_OUT_OF_MEMORY,
    EndCause.KILLED_BY_AGENT: types_pb2.END_CAUSE_KILLED_BY_AGENT,
    EndCause.SANDBOX_GONE: types_pb2.END_CAUSE_SANDBOX_GONE,
    EndCause.LOST: types_pb2.END_CAUSE_LOST,
}


def exit_status(end: ProcessExit) -> types_pb2.ExitStatus:
    """How a process ended, as the host gets to know it."""
    return types_pb2.ExitStatus(
        code=end.code,
        signal=end.signal,
        at_unix_micros=round(end.at * fields.MICROS),
        core_dumped=end.core_dumped,
        cause=_CAUSES[end.cause],
        why=end.why,
        out_of_memory=None if end.out_of_memory is None else _kill(end.out_of_memory),
        stdout_bytes=end.stdout_bytes,
        stderr_bytes=end.stderr_bytes,
    )


def _kill(kill: OutOfMemory) -> types_pb2.OutOfMemory:
    return types_pb2.OutOfMemory(
        victim=kill.victim, pid=kill.pid, limit_bytes=kill.limit, cgroup=kill.cgroup
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
