"""innkeeper.v1.Processes.Logs."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from agent.server.convert.logs import log_piece, log_query
from agent.server.convert.processes import process_ref
from agent.server.routing import Methods, ServerStream

if TYPE_CHECKING:
    from agent.server.calls import Call, Send
    from agent.server.facades import LogManager
    from innkeeper.v1 import processes_pb2 as pb


class LogMethods:
    """Converts, calls the manager, converts back."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager

    @property
    def methods(self) -> Methods:
        return {"Logs": ServerStream(self.logs)}

    async def logs(self, request: pb.LogsRequest, _call: Call, send: Send[pb.LogsResponse]) -> None:
        logs = self._manager.logs(process_ref(request.process), log_query(request))
        # Closed at once when the host leaves, not when it is collected.
        async with aclosing(logs) as pieces:
            async for piece in pieces:
                await send(log_piece(piece))
