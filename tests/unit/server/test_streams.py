"""Rules of Processes.Attach that a wire would hide: how long, how much at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.errors import AgentError, Code, Reason
from agent.core.model import OutputChunk, ProcessExit, Stream
from agent.server.limits import OUTPUT_FRAME_BYTES
from agent.server.streams import _parts as parts
from agent.server.streams import attach
from innkeeper.v1 import processes_pb2 as pb
from innkeeper.v1 import types_pb2
from tests.fakes.agent_managers import FakeProcesses

pytestmark = [pytest.mark.unit, pytest.mark.containers]

WEB = types_pb2.ProcessRef(container_id="web")


class Host:
    """A host's frames, then silence; and what it was sent."""

    def __init__(self, *frames: pb.AttachRequest) -> None:
        self._frames = list(frames)
        self.sent: list[pb.AttachResponse] = []

    async def read(self) -> pb.AttachRequest:
        if not self._frames:
            await asyncio.Event().wait()
        return self._frames.pop(0)

    async def __aiter__(self) -> Any:
        while True:
            yield await self.read()

    async def send(self, frame: pb.AttachResponse) -> None:
        self.sent.append(frame)


async def serve(processes: FakeProcesses, host: Host) -> None:
    frames: Any = host
    send: Any = host.send
    await attach(processes, frames, send, first_frame_within=0.01)


async def test_a_host_that_never_opens_is_told_so() -> None:
    with pytest.raises(AgentError, match="open") as caught:
        await serve(FakeProcesses(), Host())
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT


async def test_a_terminal_has_one_output_stream() -> None:
    processes = FakeProcesses()
    await processes.add("web", terminal=True).finish(ProcessExit(code=0))
    host = Host(pb.AttachRequest(open=pb.OpenStreams(process=WEB)))
    await serve(processes, host)
    opened, end, last = host.sent
    assert opened.opened.terminal
    assert (end.output.stream, end.output.end) == (types_pb2.STREAM_KIND_STDOUT, True)
    assert last.HasField("exit")


@given(st.integers(0, 3 * OUTPUT_FRAME_BYTES), st.integers(0, 1 << 40), st.booleans())
def test_a_chunk_of_any_size_becomes_frames_that_join_to_it(
    size: int, offset: int, end: bool
) -> None:
    chunk = OutputChunk(stream=Stream.STDERR, offset=offset, data=bytes(size), end=end)
    frames = list(parts(chunk))
    assert b"".join(one.data for one in frames) == chunk.data
    assert all(len(one.data) <= OUTPUT_FRAME_BYTES for one in frames)
    at = offset
    for frame in frames:
        assert (frame.stream, frame.offset) == (Stream.STDERR, at)
        at += len(frame.data)
    assert [one.end for one in frames] == [False] * (len(frames) - 1) + [end]
