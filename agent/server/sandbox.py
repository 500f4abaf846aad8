"""innkeeper.v1.Sandbox"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid
from agent.handlers.guest.setup import TIMEOUT
from agent.handlers.guest.shutdown import PowerAction
from agent.server.convert import fields
from agent.server.convert import sandbox as convert
from agent.server.convert.resources import online_resources, resources_request
from agent.server.routing import Methods, ServerStream, Unary
from innkeeper.v1 import sandbox_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.core.sandbox import Sandbox
    from agent.handlers.guest.clock import Clock
    from agent.handlers.guest.describe import Describer
    from agent.handlers.guest.setup import SandboxSetup
    from agent.handlers.guest.shutdown import Shutdown
    from agent.handlers.guest.teardown import Teardown
    from agent.server.calls import Call, Send
    from agent.server.facades import EventSource, ResourceManager

DESTROY_TIMEOUT: Final = 30.0
"""Seconds for Destroy when it asks for none (sandbox.proto)."""

_ACTIONS: Final = {
    pb.SHUTDOWN_ACTION_UNSPECIFIED: PowerAction.POWER_OFF,
    pb.SHUTDOWN_ACTION_POWER_OFF: PowerAction.POWER_OFF,
    pb.SHUTDOWN_ACTION_REBOOT: PowerAction.REBOOT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """The guest's parts that this service speaks for."""

    sandbox: Sandbox
    describer: Describer
    clock: Clock
    seed: Callable[[bytes], None]
    shutdown: Shutdown
    setup: SandboxSetup
    teardown: Teardown
    resources: ResourceManager
    events: EventSource


class SandboxService:
    """Converts, calls the part, converts back."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    @property
    def methods(self) -> Methods:
        return {
            "Create": Unary(self.create),
            "Destroy": Unary(self.destroy),
            "Describe": Unary(self.describe),
            "SetTime": Unary(self.set_time),
            "SeedEntropy": Unary(self.seed_entropy),
            "OnlineResources": Unary(self.online_resources),
            "Watch": ServerStream(self.watch),
            "Shutdown": Unary(self.shutdown),
        }

    async def create(
        self, request: pb.CreateSandboxRequest, call: Call
    ) -> pb.CreateSandboxResponse:
        wish = convert.sandbox_wish(request)
        timeout = call.within(wish.timeout, default=TIMEOUT)
        await self._guest.setup.create(dataclasses.replace(wish, timeout=timeout))
        return pb.CreateSandboxResponse()

    async def destroy(
        self, request: pb.DestroySandboxRequest, call: Call
    ) -> pb.DestroySandboxResponse:
        asked = fields.seconds(request.timeout_seconds, "timeout_seconds")
        timeout = call.within(asked, default=DESTROY_TIMEOUT)
        left = await self._guest.teardown.run(timeout or DESTROY_TIMEOUT)
        return pb.DestroySandboxResponse(leftovers=left)

    async def describe(
        self, _request: pb.DescribeSandboxRequest, _call: Call
    ) -> pb.DescribeSandboxResponse:
        current = self._guest.sandbox.current
        told = await self._guest.describer.describe(current.id if current else "")
        return convert.description(told)

    async def set_time(self, request: pb.SetTimeRequest, _call: Call) -> pb.SetTimeResponse:
        jump = self._guest.clock.set(request.seconds, request.microseconds)
        self._guest.events.publish("clock_set", "", {"jump_micros": str(jump)})
        return pb.SetTimeResponse(jump_micros=jump)

    async def seed_entropy(
        self, request: pb.SeedEntropyRequest, _call: Call
    ) -> pb.SeedEntropyResponse:
        self._guest.seed(request.data)
        return pb.SeedEntropyResponse()

    async def online_resources(
        self, request: pb.OnlineResourcesRequest, call: Call
    ) -> pb.OnlineResourcesResponse:
        asked = resources_request(request)
        resources = self._guest.resources
        timeout = call.within(asked.timeout, default=resources.default_timeout)
        told = await resources.online(dataclasses.replace(asked, timeout=timeout))
        return online_resources(told)

    async def watch(self, request: pb.WatchRequest, _call: Call, send: Send[pb.Event]) -> None:
        events = self._guest.events
        # 0 asks for what is kept, which need not begin at 1.
        async for happened in events.watch(request.after_sequence or events.oldest - 1):
            await send(convert.event(happened))

    async def shutdown(self, request: pb.ShutdownRequest, call: Call) -> pb.ShutdownResponse:
        action = _ACTIONS.get(request.action)
        if action is None:
            raise invalid(f"action: {request.action} is not known", field="action")
        await self._guest.shutdown.check()
        call.afterwards(lambda: self._guest.shutdown.begin(action))
        return pb.ShutdownResponse()
