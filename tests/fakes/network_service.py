"""The guest's network, as the commands see it: one interface, and what was asked of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio

from innkeeper.v1 import network_pb2 as pb
from tests.fakes.refusing import refuse


@dataclass(slots=True, kw_only=True)
class FakeNetwork:
    """What was asked for, and what is answered."""

    asked: list[Any] = field(default_factory=list)
    """Requests, in their order."""
    interfaces: list[pb.InterfaceState] = field(default_factory=list)
    routes: pb.RoutesState = field(default_factory=pb.RoutesState)
    neighbors: pb.NeighborsState = field(default_factory=pb.NeighborsState)
    dns: pb.DnsState = field(default_factory=lambda: pb.DnsState(hostname="innkeeper"))
    changed: list[str] = field(default_factory=list)
    """What each Apply says that it changed."""
    refuses: str = ""
    """The method that is refused."""
    rules: bytes = b"# rules\n"

    def of(self, kind: type[Any]) -> list[Any]:
        return [request for request in self.asked if isinstance(request, kind)]


class NetworkService:
    """Serves it."""

    def __init__(self, network: FakeNetwork) -> None:
        self._network = network

    async def _note(self, request: Any, context: aio.ServicerContext[Any, Any]) -> None:
        self._network.asked.append(request)
        if type(request).__name__ == f"{self._network.refuses}Request":
            code = grpc.StatusCode.FAILED_PRECONDITION
            await refuse(context, code, "RTNETLINK: no", "KERNEL_REFUSED", errno="EINVAL")

    def _state(self, request: pb.ApplyInterfaceRequest) -> pb.InterfaceState:
        name = request.name or request.current_name or "n2s0"
        return pb.InterfaceState(
            name=name,
            mac="52:54:00:12:34:56",
            mtu=request.mtu or 1500,
            addresses=request.addresses,
            up=True,
            pci_path=request.address.pci_path,
            changed=self._network.changed,
        )

    async def ApplyInterface(  # noqa: N802 - gRPC's name
        self, request: pb.ApplyInterfaceRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.InterfaceState:
        await self._note(request, context)
        return self._state(request)

    async def ApplyInterfaces(  # noqa: N802 - gRPC's name
        self, request: pb.ApplyInterfacesRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.ApplyInterfacesResponse:
        await self._note(request, context)
        return pb.ApplyInterfacesResponse(interfaces=map(self._state, request.interfaces))

    async def ListInterfaces(  # noqa: N802 - gRPC's name
        self, request: pb.ListInterfacesRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.ListInterfacesResponse:
        return pb.ListInterfacesResponse(interfaces=self._network.interfaces)

    async def RemoveInterface(  # noqa: N802 - gRPC's name
        self, request: pb.RemoveInterfaceRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.RemoveInterfaceResponse:
        await self._note(request, context)
        return pb.RemoveInterfaceResponse()

    async def ListRoutes(  # noqa: N802 - gRPC's name
        self, request: pb.ListRoutesRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.RoutesState:
        return self._network.routes

    async def ApplyRoutes(  # noqa: N802 - gRPC's name
        self, request: pb.ApplyRoutesRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.RoutesState:
        await self._note(request, context)
        return pb.RoutesState(changed=[f"routes: {line}" for line in self._network.changed])

    async def ListNeighbors(  # noqa: N802 - gRPC's name
        self, request: pb.ListNeighborsRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.NeighborsState:
        return self._network.neighbors

    async def ApplyNeighbors(  # noqa: N802 - gRPC's name
        self, request: pb.ApplyNeighborsRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.NeighborsState:
        await self._note(request, context)
        return pb.NeighborsState(changed=self._network.changed)

    async def ApplyDns(  # noqa: N802 - gRPC's name
        self, request: pb.ApplyDnsRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.DnsState:
        await self._note(request, context)
        lines = [f"nameserver {server}" for server in request.servers]
        self._network.dns = pb.DnsState(
            resolv_conf="\n".join(lines),
            hosts="127.0.0.1 localhost",
            hostname=request.hostname or "innkeeper",
            wanted=request,
        )
        answer = pb.DnsState(changed=self._network.changed)
        answer.MergeFrom(self._network.dns)
        return answer

    async def GetDns(  # noqa: N802 - gRPC's name
        self, request: pb.GetDnsRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.DnsState:
        return self._network.dns

    async def ApplySysctls(  # noqa: N802 - gRPC's name
        self, request: pb.ApplySysctlsRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.SysctlsState:
        await self._note(request, context)
        former = dict.fromkeys(request.values, "0")
        return pb.SysctlsState(values=request.values, former=former)

    async def GetFirewall(  # noqa: N802 - gRPC's name
        self, request: pb.GetFirewallRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.FirewallState:
        await self._note(request, context)
        return pb.FirewallState(format=request.format, rules=self._network.rules)

    async def SetFirewall(  # noqa: N802 - gRPC's name
        self, request: pb.SetFirewallRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.FirewallState:
        await self._note(request, context)
        return pb.FirewallState(format=request.format, rules=request.rules)
