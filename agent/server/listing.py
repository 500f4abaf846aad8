"""innkeeper.v1.Processes.List"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.core.names import check_id
from agent.server.convert.listing import process_info
from agent.server.routing import Methods, Unary
from innkeeper.v1 import processes_pb2 as pb

if TYPE_CHECKING:
    from agent.server.calls import Call
    from agent.server.facades import ListingManager

TIMEOUT: Final = 10.0
"""Seconds for a list, when the call has no deadline that is shorter."""


class ListingMethods:
    """Converts, calls the manager, converts back."""

    def __init__(self, manager: ListingManager) -> None:
        self._manager = manager

    @property
    def methods(self) -> Methods:
        return {"List": Unary(self.list)}

    async def list(self, request: pb.ListProcessesRequest, call: Call) -> pb.ListProcessesResponse:
        container_id = check_id("container", request.container_id)
        found = await self._manager.list(container_id, call.within(None, default=TIMEOUT))
        return pb.ListProcessesResponse(processes=[process_info(each) for each in found])
