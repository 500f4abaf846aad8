"""innkeeper.v1.Processes over the wire, but for Attach."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from agent.core.life import EndCause, LogOptions, StreamOptions
from agent.core.model import ExecRequest, ProcessExit, WindowSize
from innkeeper.v1 import processes_pb2 as pb
from innkeeper.v1 import types_pb2
from innkeeper.v1.processes_pb2_grpc import ProcessesStub
from tests.fakes.agent_server import RunningAgent, refused

if TYPE_CHECKING:
    from innkeeper.v1.processes_pb2_grpc import ProcessesAsyncStub

pytestmark = [pytest.mark.contract, pytest.mark.containers]

WEB = types_pb2.ProcessRef(container_id="web")
NOBODY = types_pb2.ProcessRef(container_id="nobody")


@pytest.fixture
def stub(agent: RunningAgent) -> ProcessesAsyncStub:
    return ProcessesStub(agent.channel)


async def test_exec_answers_the_pid(agent: RunningAgent, stub: ProcessesAsyncStub) -> None:
    request = pb.ExecRequest(container_id="web", exec_id="e1", process=b'{"args": ["sh"]}')
    assert (await stub.Exec(request)).pid == 77
    assert agent.processes.executed == [
        ExecRequest(container_id="web", exec_id="e1", process=b'{"args": ["sh"]}')
    ]
    answer = await refused(stub.Exec(request))
    assert (answer.code, answer.reason) == (grpc.StatusCode.ALREADY_EXISTS, "ID_IN_USE")


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (pb.ExecRequest(container_id="", exec_id="e", process=b"{}"), "BAD_ID"),
        (pb.ExecRequest(container_id="web", exec_id="", process=b"{}"), "BAD_ID"),
        (pb.ExecRequest(container_id="web", exec_id="e"), "BAD_FIELD"),
        (
            pb.ExecRequest(container_id="web", exec_id="e", process=b"{}", timeout_seconds=-1),
            "BAD_FIELD",
        ),
        *(
            (
                pb.ExecRequest(
                    container_id="web", exec_id="e", process=b"{}", more_environment=[bad]
                ),
                "BAD_FIELD",
            )
            for bad in ("NAME", "=value", "A=b\0c", "A=" + 131_070 * "x")
        ),
    ],
)
async def test_a_bad_exec_starts_nothing(
    agent: RunningAgent, stub: ProcessesAsyncStub, request_: pb.ExecRequest, reason: str
) -> None:
    assert (await refused(stub.Exec(request_))).reason == reason
    assert agent.processes.executed == []


async def test_variables_are_added_to_an_exec(
    agent: RunningAgent, stub: ProcessesAsyncStub
) -> None:
    process = b'{"args": ["sh"]}'
    more = ["A=b=c", "EMPTY=", "LINE=a\nb", "A=" + 131_069 * "x"]
    await stub.Exec(
        pb.ExecRequest(container_id="web", exec_id="e1", process=process, more_environment=more)
    )
    (executed,) = agent.processes.executed
    assert executed.more_environment == tuple(more)


async def test_signals_reach_one_or_all(agent: RunningAgent, stub: ProcessesAsyncStub) -> None:
    process = agent.processes.add("web")
    await stub.Signal(pb.SignalRequest(process=WEB, signal=15))
    await stub.Signal(pb.SignalRequest(process=WEB, signal=9, all_processes=True))
    assert process.signals == [(15, False), (9, True)]


@pytest.mark.parametrize("number", [0, -1, 65])
async def test_there_are_signals_1_to_64(
    agent: RunningAgent, stub: ProcessesAsyncStub, number: int
) -> None:
    process = agent.processes.add("web")
    answer = await refused(stub.Signal(pb.SignalRequest(process=WEB, signal=number)))
    assert (answer.reason, answer.fields["field"]) == ("BAD_FIELD", "signal")
    assert process.signals == []


async def test_any_number_of_callers_wait_and_all_get_the_same(
    agent: RunningAgent, stub: ProcessesAsyncStub
) -> None:
    process = agent.processes.add("web")
    early = [stub.Wait(pb.WaitRequest(process=WEB)) for _ in range(5)]
    await process.finish(ProcessExit(code=143, signal=15, at=2.25))
    late = stub.Wait(pb.WaitRequest(process=WEB))
    answers = await asyncio.gather(*early, late)
    end = types_pb2.ExitStatus(code=143, signal=15, at_unix_micros=2_250_000)
    assert [one.exit for one in answers] == [end] * 6


async def test_resize_sets_the_terminals_size(
    agent: RunningAgent, stub: ProcessesAsyncStub
) -> None:
    process = agent.processes.add("web", terminal=True)
    size = types_pb2.WindowSize(rows=24, columns=80)
    await stub.Resize(pb.ResizeRequest(process=WEB, size=size))
    assert process.size == WindowSize(rows=24, columns=80)


@pytest.mark.parametrize(("rows", "columns"), [(0, 80), (24, 0), (65536, 80)])
async def test_a_terminal_has_1_to_65535_rows_and_columns(
    agent: RunningAgent, stub: ProcessesAsyncStub, rows: int, columns: int
) -> None:
    agent.processes.add("web", terminal=True)
    size = types_pb2.WindowSize(rows=rows, columns=columns)
    answer = await refused(stub.Resize(pb.ResizeRequest(process=WEB, size=size)))
    assert answer.reason == "BAD_FIELD"
    assert answer.fields["field"].startswith("size.")


async def test_a_process_without_a_terminal_has_no_size(
    agent: RunningAgent, stub: ProcessesAsyncStub
) -> None:
    agent.processes.add("web")
    size = types_pb2.WindowSize(rows=24, columns=80)
    answer = await refused(stub.Resize(pb.ResizeRequest(process=WEB, size=size)))
    assert (answer.code, answer.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NO_TERMINAL")


async def test_unknown_processes_and_bad_ids(stub: ProcessesAsyncStub) -> None:
    size = types_pb2.WindowSize(rows=24, columns=80)
    for process, reason in (
        (NOBODY, "UNKNOWN_PROCESS"),
        (types_pb2.ProcessRef(), "BAD_ID"),
        (types_pb2.ProcessRef(container_id="web", exec_id="/"), "BAD_ID"),
    ):
        answers = [
            await refused(stub.Wait(pb.WaitRequest(process=process))),
            await refused(stub.Signal(pb.SignalRequest(process=process, signal=1))),
            await refused(stub.Resize(pb.ResizeRequest(process=process, size=size))),
        ]
        assert [one.reason for one in answers] == [reason] * 3


@pytest.mark.parametrize(
    ("name", "number", "expected"),
    [("TERM", 0, 15), ("sigusr1", 0, 10), ("RTMIN+3", 0, 37), ("Kill", 9, 9), ("RTMAX", 0, 64)],
)
async def test_signals_have_names(
    agent: RunningAgent, stub: ProcessesAsyncStub, name: str, number: int, expected: int
) -> None:
    process = agent.processes.add("web")
    await stub.Signal(pb.SignalRequest(process=WEB, name=name, signal=number))
    assert process.signals == [(expected, False)]


@pytest.mark.parametrize(
    ("name", "number"),
    [("TERM", 9), ("RTMIN+31", 0), ("RTMAX+1", 0), ("SIG", 0), ("9", 0), ("\u0130NT", 0)],
)
async def test_names_that_are_no_signal(
    agent: RunningAgent, stub: ProcessesAsyncStub, name: str, number: int
) -> None:
    """And a name and a number that mean different ones."""
    process = agent.processes.add("web")
    request = pb.SignalRequest(process=WEB, name=name, signal=number)
    answer = await refused(stub.Signal(request))
    assert (answer.reason, answer.fields["field"]) == ("BAD_FIELD", "name")
    assert process.signals == []


async def test_an_end_comes_with_what_was_said_last(
    agent: RunningAgent, stub: ProcessesAsyncStub
) -> None:
    process = agent.processes.add("web")
    process.stderr += b"first, last"
    await process.finish(ProcessExit(code=1, cause=EndCause.KILLED_BY_AGENT, why="because"))
    request = pb.WaitRequest(process=WEB, stderr_tail_bytes=4)
    answer = await stub.Wait(request)
    assert answer.stderr_tail == b"last"
    assert answer.exit.cause == types_pb2.END_CAUSE_KILLED_BY_AGENT
    assert answer.exit.why == "because"
    assert (await stub.Wait(pb.WaitRequest(process=WEB))).stderr_tail == b""
    request.stderr_tail_bytes = 65_537
    assert (await refused(stub.Wait(request))).reason == "BAD_FIELD"


async def test_how_the_output_of_an_exec_is_kept(
    agent: RunningAgent, stub: ProcessesAsyncStub
) -> None:
    request = pb.ExecRequest(container_id="web", exec_id="e1", process=b"{}")
    request.streams.log.files = 3
    await stub.Exec(request)
    assert agent.processes.executed[0].streams == StreamOptions(log=LogOptions(files=3))
