"""innkeeper.v1.Processes.Logs over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from agent.core.model import ProcessRef, Stream
from agent.handlers.runtime.logs.outputlog import LogPiece, LogQuery
from innkeeper.v1 import processes_pb2 as pb
from innkeeper.v1 import types_pb2
from innkeeper.v1.processes_pb2_grpc import ProcessesStub
from tests.fakes.agent_server import RunningAgent, refused

if TYPE_CHECKING:
    from innkeeper.v1.processes_pb2_grpc import ProcessesAsyncStub

pytestmark = [pytest.mark.contract, pytest.mark.containers]

WEB = types_pb2.ProcessRef(container_id="web")


@pytest.fixture
def stub(agent: RunningAgent) -> ProcessesAsyncStub:
    agent.logs.known[ProcessRef(container_id="web")] = (
        LogPiece(stream=Stream.STDOUT, offset=0, at=1.5, data=b"text\n"),
        LogPiece(stream=Stream.STDERR, offset=7, at=2.25, data=b"\xff\x00"),
    )
    return ProcessesStub(agent.channel)


async def test_pieces_come_with_offset_and_time(stub: ProcessesAsyncStub) -> None:
    pieces = [piece async for piece in stub.Logs(pb.LogsRequest(process=WEB))]
    assert pieces == [
        pb.LogsResponse(
            stream=types_pb2.STREAM_KIND_STDOUT, offset=0, at_unix_micros=1_500_000, data=b"text\n"
        ),
        pb.LogsResponse(
            stream=types_pb2.STREAM_KIND_STDERR,
            offset=7,
            at_unix_micros=2_250_000,
            data=b"\xff\x00",
        ),
    ]


@pytest.mark.parametrize(
    ("request_", "query"),
    [
        (pb.LogsRequest(), LogQuery()),
        (pb.LogsRequest(follow=True), LogQuery(follow=True)),
        (pb.LogsRequest(since_unix_micros=1_500_000), LogQuery(since=1.5)),
        (pb.LogsRequest(tail_lines=0), LogQuery(tail=0)),
        (pb.LogsRequest(tail_lines=10), LogQuery(tail=10)),
        (pb.LogsRequest(without_stdout=True), LogQuery(streams=frozenset({Stream.STDERR}))),
        (pb.LogsRequest(without_stderr=True), LogQuery(streams=frozenset({Stream.STDOUT}))),
    ],
)
async def test_what_is_asked_for(
    agent: RunningAgent, stub: ProcessesAsyncStub, request_: pb.LogsRequest, query: LogQuery
) -> None:
    request_.process.CopyFrom(WEB)
    assert [piece async for piece in stub.Logs(request_)]
    assert agent.logs.queries == [query]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (pb.LogsRequest(), "BAD_ID"),
        (pb.LogsRequest(process=types_pb2.ProcessRef(container_id="../x")), "BAD_ID"),
        (pb.LogsRequest(process=WEB, since_unix_micros=-1), "BAD_FIELD"),
        (pb.LogsRequest(process=WEB, without_stdout=True, without_stderr=True), "BAD_FIELD"),
    ],
)
async def test_bad_input(
    agent: RunningAgent, stub: ProcessesAsyncStub, request_: pb.LogsRequest, reason: str
) -> None:
    answer = await refused(stub.Logs(request_).read())
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert agent.logs.queries == []


async def test_a_process_that_is_not_there(stub: ProcessesAsyncStub) -> None:
    nobody = types_pb2.ProcessRef(container_id="nobody")
    answer = await refused(stub.Logs(pb.LogsRequest(process=nobody)).read())
    assert (answer.code, answer.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONTAINER")
