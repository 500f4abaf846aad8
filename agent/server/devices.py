"""innkeeper.v1.Devices"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.names import check_id
from agent.core.undo import UndoStack
from agent.server.convert import fields
from agent.server.convert.devices import attached_device, device_requests, holder
from agent.server.convert.kinds import mode
from agent.server.routing import Methods, Unary
from innkeeper.v1 import devices_pb2 as pb

if TYPE_CHECKING:
    from agent.core.model import AttachedDevice, DeviceRequest
    from agent.server.calls import Call
    from agent.server.facades import DeviceManager


class DevicesService:
    """Converts, calls the manager, converts back; a batch is all or nothing."""

    def __init__(self, manager: DeviceManager, *, timeout: float) -> None:
        """`timeout` is the wait of a request that asks for none."""
        self._manager = manager
        self._timeout = timeout

    @property
    def methods(self) -> Methods:
        return {
            "Attach": Unary(self.attach),
            "Detach": Unary(self.detach),
            "Get": Unary(self.get),
            "List": Unary(self.list),
            "Holders": Unary(self.holders),
            "Reconfigure": Unary(self.reconfigure),
        }

    async def attach(
        self, request: pb.AttachDevicesRequest, call: Call
    ) -> pb.AttachDevicesResponse:
        batch = [self._within(call, device) for device in device_requests(request.devices)]
        known = {attached.request.id for attached in self._manager.list()}
        async with UndoStack("attach devices") as undo:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._attach_one(device, known, undo)) for device in batch
                ]
            undo.commit()
        return pb.AttachDevicesResponse(attached=[attached_device(task.result()) for task in tasks])

    async def _attach_one(
        self, device: DeviceRequest, known: set[str], undo: UndoStack
    ) -> AttachedDevice:
        try:
            return await self._manager.attach(device)
        finally:
            # Whatever the outcome here: it may have come in the very moment in which
            # another one of the batch failed. One that was there before stays.
            if device.id not in known and self._has(device):
                undo.push(f"forget device {device.id}", lambda: self._manager.forget(device.id))

    def _has(self, device: DeviceRequest) -> bool:
        return any(attached.request == device for attached in self._manager.list())

    def _within(self, call: Call, device: DeviceRequest) -> DeviceRequest:
        timeout = call.within(device.timeout, default=self._timeout)
        return dataclasses.replace(device, timeout=timeout)

    async def detach(self, request: pb.DetachDeviceRequest, call: Call) -> pb.DetachDeviceResponse:
        device_id = check_id("device", request.id)
        timeout = fields.seconds(request.timeout_seconds, "timeout_seconds")
        match request.phase:
            case pb.DETACH_PHASE_PREPARE:
                await self._manager.prepare_detach(device_id)
            case pb.DETACH_PHASE_COMPLETE:
                within = call.within(timeout, default=self._timeout)
                await self._manager.detach(device_id, within)
            case pb.DETACH_PHASE_CANCEL:
                await self._manager.cancel_detach(device_id)
            case pb.DETACH_PHASE_RELEASE:
                await self._manager.release_device(device_id)
            case other:
                raise invalid(f"phase: {other} is none of the four phases", field="phase")
        return pb.DetachDeviceResponse()

    async def get(self, request: pb.GetDeviceRequest, _call: Call) -> pb.AttachedDevice:
        return attached_device(self._manager.get(check_id("device", request.id)))

    async def list(self, _request: pb.ListDevicesRequest, _call: Call) -> pb.ListDevicesResponse:
        devices = sorted(self._manager.list(), key=lambda attached: attached.request.id)
        return pb.ListDevicesResponse(devices=[attached_device(one) for one in devices])

    async def reconfigure(
        self, request: pb.ReconfigureDeviceRequest, call: Call
    ) -> pb.AttachedDevice:
        device_id = check_id("device", request.id)
        within = call.within(None, default=self._timeout)
        return attached_device(
            await self._manager.reconfigure(device_id, mode(request, "mode"), within)
        )

    async def holders(
        self, request: pb.DeviceHoldersRequest, _call: Call
    ) -> pb.DeviceHoldersResponse:
        found = await self._manager.holders(check_id("device", request.id))
        return pb.DeviceHoldersResponse(holders=[holder(one) for one in found])
