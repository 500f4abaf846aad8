"""innkeeper.v1.Containers"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from agent.core.names import check_id
from agent.server.convert import fields
from agent.server.convert.containers import (
    container_request,
    container_status,
    container_update,
)
from agent.server.routing import Methods, Unary
from innkeeper.v1 import containers_pb2 as pb

if TYPE_CHECKING:
    from agent.server.calls import Call
    from agent.server.facades import ContainerManager

TIMEOUT: Final = 30.0
"""Seconds for an operation on a container that asks for none (containers.proto)."""


class ContainersService:
    """Converts, calls the manager, converts back."""

    def __init__(self, manager: ContainerManager) -> None:
        self._manager = manager

    @property
    def methods(self) -> Methods:
        return {
            "Create": Unary(self.create),
            "Start": Unary(self.start),
            "Update": Unary(self.update),
            "Pause": Unary(self.pause),
            "Resume": Unary(self.resume),
            "Remove": Unary(self.remove),
            "List": Unary(self.list),
        }

    async def create(self, request: pb.CreateContainerRequest, call: Call) -> pb.ContainerStatus:
        asked = container_request(request)
        known = {status.id for status in self._manager.list()}
        fields.require_room(len(known | {asked.id}) - 1, "containers")
        timeout = call.within(asked.timeout, default=TIMEOUT)
        return container_status(
            await self._manager.create(dataclasses.replace(asked, timeout=timeout))
        )

    async def start(self, request: pb.StartContainerRequest, call: Call) -> pb.ContainerStatus:
        return container_status(await self._manager.start(*_whom(request, call)))

    async def pause(self, request: pb.PauseContainerRequest, call: Call) -> pb.ContainerStatus:
        return container_status(await self._manager.pause(*_whom(request, call)))

    async def resume(self, request: pb.ResumeContainerRequest, call: Call) -> pb.ContainerStatus:
        return container_status(await self._manager.resume(*_whom(request, call)))

    async def update(self, request: pb.UpdateContainerRequest, call: Call) -> pb.ContainerStatus:
        change = container_update(request)
        timeout = call.within(change.timeout, default=TIMEOUT)
        return container_status(
            await self._manager.update(dataclasses.replace(change, timeout=timeout))
        )

    async def remove(
        self, request: pb.RemoveContainerRequest, call: Call
    ) -> pb.RemoveContainerResponse:
        container_id = check_id("container", request.id)
        grace = fields.seconds(request.grace_seconds, "grace_seconds") or 0.0
        asked = fields.seconds(request.timeout_seconds, "timeout_seconds")
        await self._manager.remove(container_id, grace, call.within(asked, default=TIMEOUT))
        return pb.RemoveContainerResponse()

    async def list(
        self, _request: pb.ListContainersRequest, _call: Call
    ) -> pb.ListContainersResponse:
        containers = sorted(self._manager.list(), key=lambda status: status.id)
        return pb.ListContainersResponse(containers=[container_status(one) for one in containers])


def _whom(
    request: pb.StartContainerRequest | pb.PauseContainerRequest | pb.ResumeContainerRequest,
    call: Call,
) -> tuple[str, float | None]:
    """The container's id, and the time there is."""
    asked = fields.seconds(request.timeout_seconds, "timeout_seconds")
    return check_id("container", request.id), call.within(asked, default=TIMEOUT)
