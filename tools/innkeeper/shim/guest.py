"""The guest's agent, as far as the daemon itself talks to it.

Everything else that hosts ask of the guest goes through proxy.py as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.v1 import (
    devices_pb2,
    devices_pb2_grpc,
    sandbox_pb2,
    sandbox_pb2_grpc,
    storages_pb2,
    storages_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    Answer = TypeVar("Answer")

# The agent's own error about a device that does not come says how far it came;
# its deadline has to pass before ours does.
_AGENT_FIRST = 1.0
_SHORT_CALL = 10.0
# The agent looks through all processes for who uses a device, and lets the kernel take
# it out; with many at once that takes its time. The caller's own limit ends it sooner.
_DETACH_CALL = 60.0
_FIRST_TRY = 2.0
_BETWEEN_TRIES = 0.1
_POWER_OFF_CALL = 5.0

# How a call ends whose agent, or the way to it, is not there.
_AWAY = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    }
)


class Guest:
    """Typed calls; each raises `ShimError` instead of gRPC's errors."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._health = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        self._devices = devices_pb2_grpc.DevicesStub(channel)
        self._sandbox = sandbox_pb2_grpc.SandboxStub(channel)
        self._storages = storages_pb2_grpc.StoragesStub(channel)

    async def ready(self) -> None:
        """Returns when the agent answers; raises AGENT_AWAY when it does not."""
        await self._check(wait_for_ready=True, timeout=_SHORT_CALL)

    async def first_answer(self, activity: asyncio.Event) -> None:
        """Returns when the agent has answered for the first time; ends only with
        its caller's deadline.

        Nothing tells the host that an agent began to serve (until then the relay
        refuses in its place), so it is asked again whenever the guest's console
        says something, and a moment later if it does not.
        """
        while True:
            activity.clear()
            with contextlib.suppress(ShimError):
                await self._check(wait_for_ready=True, timeout=_FIRST_TRY)
                return
            await _a_moment(activity)

    async def attach(
        self, devices: Sequence[devices_pb2.Device], timeout: float
    ) -> tuple[devices_pb2.AttachedDevice, ...]:
        """Waits until all are usable; `timeout` in seconds for the whole."""
        request = devices_pb2.AttachDevicesRequest(devices=devices)
        for device in request.devices:
            wanted = device.timeout_seconds or timeout
            device.timeout_seconds = min(wanted, _patience(timeout))
        names = "+".join(device.id for device in devices)
        answer = await _ask(
            f"attach of device {names}", self._devices.Attach(request, timeout=timeout)
        )
        return tuple(answer.attached)

    async def has(self, device: devices_pb2.Device) -> bool:
        """Whether the device is in the agent's table: its id, at its place."""
        request = devices_pb2.GetDeviceRequest(id=device.id)
        try:
            found = await _ask(
                f"look at device {device.id}", self._devices.Get(request, timeout=_SHORT_CALL)
            )
        except ShimError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                return False
            raise
        address = device.address
        if address.HasField("pci_path"):
            return bool(found.pci_path == address.pci_path)
        return bool(found.device.address == address)

    async def prepare_detach(self, device_id: str) -> None:
        await self._detach(device_id, devices_pb2.DETACH_PHASE_PREPARE)

    async def cancel_detach(self, device_id: str) -> None:
        await self._detach(device_id, devices_pb2.DETACH_PHASE_CANCEL)

    async def complete_detach(self, device_id: str) -> None:
        await self._detach(device_id, devices_pb2.DETACH_PHASE_COMPLETE)

    async def storages_of(self, tag: str) -> tuple[str, ...]:
        """Ids of the storages that a share is mounted as."""
        request = storages_pb2.ListStoragesRequest()
        answer = await _ask(
            f"look for storages of share {tag}", self._storages.List(request, timeout=_SHORT_CALL)
        )
        return tuple(
            each.storage.id for each in answer.storages if each.storage.virtiofs.tag == tag
        )

    async def online_now(self) -> sandbox_pb2.OnlineResourcesResponse:
        """What is online; changes nothing, as so much is online in any case."""
        request = sandbox_pb2.OnlineResourcesRequest(cpus=1, memory=1)
        return await _ask(
            "look at what is online", self._sandbox.OnlineResources(request, timeout=_SHORT_CALL)
        )

    async def online(
        self, *, cpus: int, memory: int, timeout: float
    ) -> sandbox_pb2.OnlineResourcesResponse:
        """Waits until so many CPUs and bytes are online in all; 0 is as many as are now."""
        request = sandbox_pb2.OnlineResourcesRequest(
            cpus=cpus or None,
            memory=memory or None,
            # So that a DIMM can go again; what a kernel can use for anything at all
            # it also keeps.
            movable=True,
            timeout_seconds=_patience(timeout),
        )
        call = self._sandbox.OnlineResources(request, timeout=timeout)
        return await _ask("bringing CPUs and memory online", call)

    async def power_off(self, activity: asyncio.Event) -> None:
        """Asks, again and again while the agent is away, as `first_answer` does.

        The answer comes before the guest begins to stop. Ends only with its
        caller's deadline; raises what the agent itself answers.
        """
        request = sandbox_pb2.ShutdownRequest(action=sandbox_pb2.SHUTDOWN_ACTION_POWER_OFF)
        while True:
            activity.clear()
            call = self._sandbox.Shutdown(request, timeout=_POWER_OFF_CALL, wait_for_ready=True)
            try:
                await _ask("power off", call)
            except ShimError as error:
                if error.code not in _AWAY:
                    raise
            else:
                return
            await _a_moment(activity)

    async def _check(self, *, wait_for_ready: bool, timeout: float) -> None:
        # The whole server's status: the agent's own, with its state and PID 1.
        call = self._health.Check(
            health_pb2.HealthCheckRequest(), timeout=timeout, wait_for_ready=wait_for_ready
        )
        answer = await _ask("health check", call)
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise ShimError(Reason.AGENT_AWAY, "the guest's agent says that it does not serve")

    async def _detach(self, device_id: str, phase: devices_pb2.DetachPhase.ValueType) -> None:
        request = devices_pb2.DetachDeviceRequest(id=device_id, phase=phase)
        name = devices_pb2.DetachPhase.Name(phase).rpartition("_")[2].lower()
        await _ask(
            f"detach of device {device_id} ({name})",
            self._devices.Detach(request, timeout=_DETACH_CALL),
        )


def _patience(timeout: float) -> float:
    """The agent's own seconds out of a call's."""
    return max(timeout - _AGENT_FIRST, timeout / 2)


async def _a_moment(activity: asyncio.Event) -> None:
    """Until something happens in the guest, or a little while."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_BETWEEN_TRIES):
            await activity.wait()


async def _ask(doing: str, call: Awaitable[Answer]) -> Answer:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise ShimError.from_guest(doing, error) from error
