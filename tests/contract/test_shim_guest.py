"""What the daemon itself asks of an agent, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from innkeeper.shim.errors import STATUS_TRAILER, Reason, ShimError
from innkeeper.shim.guest import Guest
from innkeeper.v1 import devices_pb2, devices_pb2_grpc

pytestmark = [pytest.mark.contract, pytest.mark.devices]

DISK = devices_pb2.Device(
    id="data",
    address=devices_pb2.DeviceAddress(pci_path="10.1/00"),
    host=[devices_pb2.HostTuple(type="path", id="/disks/data.img")],
    block=devices_pb2.BlockDevice(expect_serial="data"),
)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class FakeAgent:
    """What it was asked, and what it is to answer."""

    requests: list[Any] = field(default_factory=list)
    refusal: tuple[grpc.StatusCode, str] | None = None
    found_at: str = DISK.address.pci_path
    statuses: list[Any] = field(default_factory=list)
    time_left: float | None = None

    async def answer(self, request: Any, context: Context) -> None:
        self.requests.append(request)
        self.time_left = context.time_remaining()
        if self.refusal is not None:
            code, reason = self.refusal
            info = error_details_pb2.ErrorInfo(reason=reason, domain="innkeeper")
            status = status_pb2.Status(code=code.value[0], message="no")
            status.details.add().Pack(info)
            await context.abort(code, "no", ((STATUS_TRAILER, status.SerializeToString()),))


class _Devices(devices_pb2_grpc.DevicesServicer):
    def __init__(self, agent: FakeAgent) -> None:
        self._agent = agent

    async def Attach(  # noqa: N802 - gRPC's name
        self, request: devices_pb2.AttachDevicesRequest, context: Context
    ) -> devices_pb2.AttachDevicesResponse:
        await self._agent.answer(request, context)
        return devices_pb2.AttachDevicesResponse(
            attached=[devices_pb2.AttachedDevice(pci_path=self._agent.found_at)]
        )

    async def Detach(  # noqa: N802 - gRPC's name
        self, request: devices_pb2.DetachDeviceRequest, context: Context
    ) -> devices_pb2.DetachDeviceResponse:
        await self._agent.answer(request, context)
        return devices_pb2.DetachDeviceResponse()

    async def Get(  # noqa: N802 - gRPC's name
        self, request: devices_pb2.GetDeviceRequest, context: Context
    ) -> devices_pb2.AttachedDevice:
        await self._agent.answer(request, context)
        return devices_pb2.AttachedDevice(pci_path=self._agent.found_at)


class _Health(health_pb2_grpc.HealthServicer):
    def __init__(self, agent: FakeAgent) -> None:
        self._agent = agent

    async def Check(  # noqa: N802 - gRPC's name
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        await self._agent.answer(request, context)
        status = self._agent.statuses.pop(0) if self._agent.statuses else SERVING
        return health_pb2.HealthCheckResponse(status=status)


@pytest.fixture
def agent() -> FakeAgent:
    """Replaces the one that has the agent's real server."""
    return FakeAgent()


@pytest.fixture
async def guest(agent: FakeAgent) -> AsyncIterator[Guest]:
    with tempfile.TemporaryDirectory(prefix="ik-") as folder:
        server = grpc.aio.server()
        devices_pb2_grpc.add_DevicesServicer_to_server(_Devices(agent), server)  # type: ignore[abstract]
        health_pb2_grpc.add_HealthServicer_to_server(_Health(agent), server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{folder}/agent.sock")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{folder}/agent.sock") as channel:
            yield Guest(channel)
        await server.stop(None)


async def test_a_disk_is_asked_for_by_path_and_serial(guest: Guest, agent: FakeAgent) -> None:
    (attached,) = await guest.attach([DISK], 30)
    assert attached.pci_path == DISK.address.pci_path
    (device,) = agent.requests[0].devices
    assert (device.id, device.address.pci_path) == ("data", "10.1/00")
    assert device.block.expect_serial == "data"
    assert (device.host[0].type, device.host[0].id) == ("path", "/disks/data.img")


@pytest.mark.parametrize(("whole", "agents"), [(30, 29), (1.5, 0.75)])
async def test_the_agent_gives_up_before_the_call_ends(
    guest: Guest, agent: FakeAgent, whole: float, agents: float
) -> None:
    """Its own error says how far the device came; the deadline of a call says nothing."""
    await guest.attach([DISK], whole)
    assert agent.requests[0].devices[0].timeout_seconds == agents
    assert agent.time_left is not None
    assert agent.time_left > agents


async def test_the_phases_of_a_detach(guest: Guest, agent: FakeAgent) -> None:
    await guest.prepare_detach("data")
    await guest.cancel_detach("data")
    await guest.complete_detach("data")
    assert [request.phase for request in agent.requests] == [
        devices_pb2.DETACH_PHASE_PREPARE,
        devices_pb2.DETACH_PHASE_CANCEL,
        devices_pb2.DETACH_PHASE_COMPLETE,
    ]


async def test_a_disk_is_in_the_table_only_at_its_own_place(guest: Guest, agent: FakeAgent) -> None:
    assert await guest.has(DISK)
    agent.found_at = "05"
    assert not await guest.has(DISK)
    agent.refusal = (grpc.StatusCode.NOT_FOUND, "UNKNOWN_DEVICE")
    assert not await guest.has(DISK)


async def test_a_refusal_comes_with_the_agents_reason(guest: Guest, agent: FakeAgent) -> None:
    agent.refusal = (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
    with pytest.raises(ShimError) as caught:
        await guest.prepare_detach("data")
    assert caught.value.reason is Reason.GUEST_REFUSED
    assert caught.value.fields["guest_reason"] == "STILL_IN_USE"


async def test_the_first_answer_is_that_of_an_agent_that_serves(
    guest: Guest, agent: FakeAgent
) -> None:
    """Asked again for each line of the console, and a moment later without one."""
    agent.statuses = [NOT_SERVING, NOT_SERVING]
    activity = asyncio.Event()
    activity.set()
    async with asyncio.timeout(30):
        await guest.first_answer(activity)
    assert len(agent.requests) == 3


async def test_an_agent_that_is_not_there_is_away() -> None:
    async with grpc.aio.insecure_channel("unix:/nowhere/agent.sock") as channel:
        with pytest.raises(ShimError) as caught:
            await Guest(channel).has(DISK)
    assert caught.value.reason is Reason.AGENT_AWAY
