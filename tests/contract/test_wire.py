"""What is true of every method: sizes, errors, methods that are not there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from agent.core.errors import AgentError, Code, Reason
from innkeeper.v1 import (
    containers_pb2,
    devices_pb2,
    files_pb2,
    network_pb2,
    processes_pb2,
    sandbox_pb2,
    sockets_pb2,
    storages_pb2,
    types_pb2,
)
from innkeeper.v1.containers_pb2_grpc import ContainersStub
from innkeeper.v1.devices_pb2_grpc import DevicesStub
from innkeeper.v1.processes_pb2_grpc import ProcessesStub
from innkeeper.v1.sandbox_pb2_grpc import SandboxStub
from tests.fakes.agent_server import RunningAgent, connect, refused

if TYPE_CHECKING:
    from innkeeper.v1.containers_pb2_grpc import ContainersAsyncStub

pytestmark = [pytest.mark.contract, pytest.mark.operations]

EDGE = 16 << 20


def _methods() -> Iterator[MethodDescriptor]:
    for file in (
        sandbox_pb2,
        devices_pb2,
        storages_pb2,
        network_pb2,
        containers_pb2,
        processes_pb2,
        files_pb2,
        sockets_pb2,
    ):
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from service.methods


@pytest.mark.parametrize("method", list(_methods()), ids=lambda method: method.full_name)
async def test_every_method_of_the_protocol_is_served(
    agent: RunningAgent, method: MethodDescriptor
) -> None:
    """One that is not would say so instead of what is wrong with the message."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    answer = await refused(_call(agent.channel, path, b"\xff\xff\xff\xff"))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    assert answer.domain == "innkeeper"


@pytest.mark.parametrize(
    "path", ["/innkeeper.v1.Sandbox/Levitate", "/innkeeper.v2.Sandbox/Create", "/x", "/"]
)
async def test_a_method_nobody_knows_is_unimplemented_with_its_name(
    agent: RunningAgent, path: str
) -> None:
    answer = await refused(_call(agent.channel, path, b""))
    assert (answer.code, answer.reason) == (grpc.StatusCode.UNIMPLEMENTED, "UNKNOWN_METHOD")
    assert answer.fields["method"] == path


async def _call(channel: grpc.aio.Channel, path: str, message: bytes) -> bytes:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    return await call(message)


@pytest.fixture
def containers(agent: RunningAgent) -> ContainersAsyncStub:
    return ContainersStub(agent.channel)


def _request(size: int) -> containers_pb2.CreateContainerRequest:
    """A request whose serialized form has exactly `size` bytes."""
    request = containers_pb2.CreateContainerRequest(id="c1", path="/r", spec=b"x" * (size - 50))
    request.spec += b"x" * (size - request.ByteSize())
    assert request.ByteSize() == size
    return request


async def test_a_request_of_16_mib_passes(
    agent: RunningAgent, containers: ContainersAsyncStub
) -> None:
    """The limit counts the serialized message, not gRPC's five bytes in front of it."""
    request = _request(EDGE)
    await containers.Create(request)
    assert agent.containers.table["c1"][0].spec == request.spec


async def test_one_byte_more_is_refused_with_both_sizes(
    agent: RunningAgent, containers: ContainersAsyncStub
) -> None:
    answer = await refused(containers.Create(_request(EDGE + 1)))
    assert (answer.code, answer.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
    assert (answer.fields["size"], answer.fields["maximum"]) == (str(EDGE + 1), str(EDGE))
    assert agent.containers.table == {}


async def test_far_too_much_is_refused_by_grpc_itself_and_the_connection_lives(
    agent: RunningAgent, containers: ContainersAsyncStub
) -> None:
    answer = await refused(containers.Create(_request(2 * EDGE + 1)))
    assert answer.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    await containers.List(containers_pb2.ListContainersRequest())


async def test_an_answer_of_16_mib_passes_and_a_longer_one_is_refused(agent: RunningAgent) -> None:
    stub = SandboxStub(agent.channel)
    event = agent.events.publish("clock_set", "s", {"text": ""})
    plain = await anext(aiter(stub.Watch(sandbox_pb2.WatchRequest())))
    # A length of three more bytes in varint, twice: the entry's and the value's.
    room = EDGE - plain.ByteSize() - 6
    event.details["text"] = "x" * room
    first = await anext(aiter(stub.Watch(sandbox_pb2.WatchRequest())))
    event.details["text"] += "x" * (EDGE - first.ByteSize())
    exact = await anext(aiter(stub.Watch(sandbox_pb2.WatchRequest())))
    assert exact.ByteSize() == EDGE
    event.details["text"] += "x"
    answer = await refused(anext(aiter(stub.Watch(sandbox_pb2.WatchRequest()))))
    assert (answer.code, answer.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")


async def test_bytes_that_are_no_message_are_a_bad_field(agent: RunningAgent) -> None:
    """A proto3 string must be UTF-8; gRPC alone would answer UNKNOWN."""
    not_utf8 = b"\x0a\x02\xff\xfe"
    answer = await refused(_call(agent.channel, "/innkeeper.v1.Sandbox/Create", not_utf8))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    assert answer.fields["field"] == "innkeeper.v1.CreateSandboxRequest"


async def test_an_unknown_field_is_no_error(agent: RunningAgent) -> None:
    """A newer host may say more than this agent understands."""
    known = sandbox_pb2.CreateSandboxRequest(id="s1").SerializeToString()
    unknown_field_1000 = b"\xc2\x3e\x01x"
    await _call(agent.channel, "/innkeeper.v1.Sandbox/Create", known + unknown_field_1000)
    assert agent.sandbox.current is not None


async def test_a_bug_is_internal_with_an_id_that_the_log_knows(
    agent: RunningAgent, containers: ContainersAsyncStub, caplog: pytest.LogCaptureFixture
) -> None:
    await containers.Create(_request(100))
    agent.containers.stubborn["c1"] = ZeroDivisionError("secret detail")
    with caplog.at_level(logging.ERROR):
        answer = await refused(containers.Remove(containers_pb2.RemoveContainerRequest(id="c1")))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL_ERROR")
    assert answer.fields["id"] in answer.message
    assert "secret" not in answer.message
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert answer.fields["id"] in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_a_cancellation_from_inside_is_a_bug_and_not_silence(
    agent: RunningAgent, containers: ContainersAsyncStub
) -> None:
    """gRPC sends no status for a handler that ends with CancelledError: the host would hang."""
    await containers.Create(_request(100))
    agent.containers.stubborn["c1"] = asyncio.CancelledError()
    request = containers_pb2.RemoveContainerRequest(id="c1")
    answer = await refused(containers.Remove(request, timeout=20))
    assert answer.reason == "INTERNAL_ERROR"


@pytest.mark.parametrize("text", ["x" * 1_000_000, "é" * 100_000, "\n\0\udcff" * 50_000])
async def test_an_error_of_any_length_arrives_with_its_reason(
    agent: RunningAgent, containers: ContainersAsyncStub, text: str
) -> None:
    """Trailers above 8 KiB are cut by the receiver: the whole status would be lost."""
    await containers.Create(_request(100))
    agent.containers.stubborn["c1"] = AgentError(
        text,
        code=Code.FAILED_PRECONDITION,
        reason=Reason.RUNTIME_REFUSED,
        fields={f"field{number}": text for number in range(20)},
        hint="a hint that matters",
    )
    stub = ContainersStub(agent.channel)
    answer = await refused(stub.Remove(containers_pb2.RemoveContainerRequest(id="c1")))
    assert answer.reason == "RUNTIME_REFUSED"
    assert answer.message.endswith("...")
    assert answer.fields["hint"] == "a hint that matters"


async def test_only_root_can_connect(agent: RunningAgent) -> None:
    assert agent.roots.agent_socket.stat().st_mode & 0o777 == 0o600


async def test_many_calls_at_once_on_one_connection(agent: RunningAgent) -> None:
    stub = ContainersStub(agent.channel)
    request = containers_pb2.ListContainersRequest()
    answers = await asyncio.gather(*(stub.List(request) for _ in range(300)))
    assert len(answers) == 300


async def test_a_client_that_only_pings_is_not_sent_away(agent: RunningAgent) -> None:
    """gRPC's default answers frequent pings with GOAWAY (too_many_pings)."""
    async with connect(
        agent.roots.agent_socket,
        grpc__keepalive_time_ms=10,
        grpc__keepalive_permit_without_calls=1,
        grpc__http2__max_pings_without_data=0,
    ) as channel:
        stub = SandboxStub(channel)
        await stub.Describe(sandbox_pb2.DescribeSandboxRequest())
        call = stub.Watch(sandbox_pb2.WatchRequest())
        await call.wait_for_connection()
        await asyncio.gather(*(_describe(stub) for _ in range(20)))
        assert not call.done()
        call.cancel()


async def _describe(stub: object) -> None:
    await stub.Describe(sandbox_pb2.DescribeSandboxRequest())  # type: ignore[attr-defined]


async def test_stopping_ends_streams_and_waits_at_once_and_lets_others_finish(
    agent: RunningAgent,
) -> None:
    """Else every open Watch would delay the power-off by the whole grace."""
    watch = SandboxStub(agent.channel).Watch(sandbox_pb2.WatchRequest())
    await watch.initial_metadata()
    agent.processes.add("web")
    ref = types_pb2.ProcessRef(container_id="web")
    wait = ProcessesStub(agent.channel).Wait(processes_pb2.WaitRequest(process=ref))
    device = devices_pb2.Device(
        id="d1",
        address=devices_pb2.DeviceAddress(pci_path="02/00"),
        block=devices_pb2.BlockDevice(),
    )
    request = devices_pb2.AttachDevicesRequest(devices=[device])
    attach = DevicesStub(agent.channel).Attach(request)
    await agent.devices.until_waiting(1)
    stop = asyncio.create_task(agent.server.stop(60))
    for answer in (await refused(anext(aiter(watch))), await refused(wait)):
        assert (answer.code, answer.reason) == (grpc.StatusCode.UNAVAILABLE, "AGENT_AWAY")
    agent.devices.plug("02/00")
    assert len((await attach).attached) == 1
    await stop
