"""innkeeper.v1.Containers.Stats and WatchStats."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from agent.core.names import check_id
from agent.server.convert import usage as convert
from agent.server.routing import Methods, ServerStream, Unary

if TYPE_CHECKING:
    from agent.server.calls import Call, Send
    from agent.server.facades import UsageManager
    from innkeeper.v1 import containers_pb2 as pb


class UsageMethods:
    """Converts, calls the manager, converts back."""

    def __init__(self, manager: UsageManager) -> None:
        self._manager = manager

    @property
    def methods(self) -> Methods:
        return {"Stats": Unary(self.stats), "WatchStats": ServerStream(self.watch)}

    async def stats(self, request: pb.ContainerStatsRequest, _call: Call) -> pb.ContainerStats:
        container_id = check_id("container", request.id)
        return convert.container_stats(await self._manager.stats(container_id))

    async def watch(
        self, request: pb.WatchStatsRequest, _call: Call, send: Send[pb.ContainerStats]
    ) -> None:
        ids, interval = convert.watched(request), convert.interval(request)
        # Closed at once when the host leaves, not when it is collected.
        async with aclosing(self._manager.watch(ids, interval)) as found:
            async for stats in found:
                await send(convert.container_stats(stats))
