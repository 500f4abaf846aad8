"""grpc.reflection.v1alpha: which services and messages there are, by the library's servicer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpc_reflection.v1alpha import reflection, reflection_pb2

from agent.server.routing import Bidi, Methods

if TYPE_CHECKING:
    from collections.abc import Collection

    from agent.server.calls import Call, Frames, Send

SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]


class ReflectionService:
    """The library's servicer behind our routing, so that its calls are guarded like all others."""

    def __init__(self, services: Collection[str]) -> None:
        names = {*services, SERVICE.full_name}
        self._servicer = reflection.aio.ReflectionServicer(names)  # type: ignore[no-untyped-call]

    @property
    def methods(self) -> Methods:
        return {"ServerReflectionInfo": Bidi(self.info)}

    async def info(
        self,
        frames: Frames[reflection_pb2.ServerReflectionRequest],
        _call: Call,
        send: Send[reflection_pb2.ServerReflectionResponse],
    ) -> None:
        async for answer in self._servicer.ServerReflectionInfo(frames, None):
            await send(answer)
