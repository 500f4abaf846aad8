"""innkeeper.v1.Network"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Final

from agent.server.convert import dns, fields, firewall, interfaces, linknames, neighbors, sysctls
from agent.server.convert.families import family_or_any
from agent.server.convert.interface_states import interface_list, interface_state
from agent.server.convert.route_lists import routes_state
from agent.server.convert.routes import routes_wish
from agent.server.limits import LONGEST_TIMEOUT
from agent.server.routing import Methods, Unary
from innkeeper.v1 import network_pb2 as pb

if TYPE_CHECKING:
    from agent.core.network import InterfaceState, InterfaceWish
    from agent.server.calls import Call
    from agent.server.facades import NetworkManager

TIMEOUT: Final = 30.0
"""Seconds that what waits for no hardware takes at most, when nothing is asked for."""


class NetworkService:
    """Converts, calls the manager, converts back."""

    def __init__(self, manager: NetworkManager, *, timeout: float) -> None:
        """`timeout` is how long a request that asks for nothing waits for an interface."""
        self._manager = manager
        self._timeout = timeout

    @property
    def methods(self) -> Methods:
        return {
            "ApplyInterface": Unary(self.apply_interface),
            "ApplyInterfaces": Unary(self.apply_interfaces),
            "RemoveInterface": Unary(self.remove_interface),
            "ListInterfaces": Unary(self.list_interfaces),
            "ApplyRoutes": Unary(self.apply_routes),
            "ListRoutes": Unary(self.list_routes),
            "ApplyNeighbors": Unary(self.apply_neighbors),
            "ListNeighbors": Unary(self.list_neighbors),
            "ApplyDns": Unary(self.apply_dns),
            "GetDns": Unary(self.get_dns),
            "ApplySysctls": Unary(self.apply_sysctls),
            "GetFirewall": Unary(self.get_firewall),
            "SetFirewall": Unary(self.set_firewall),
        }

    async def apply_interface(
        self, request: pb.ApplyInterfaceRequest, call: Call
    ) -> pb.InterfaceState:
        (state,) = await self._apply((interfaces.interface_wish(request),), call)
        return interface_state(state)

    async def apply_interfaces(
        self, request: pb.ApplyInterfacesRequest, call: Call
    ) -> pb.ApplyInterfacesResponse:
        states = await self._apply(interfaces.interface_wishes(request), call)
        return pb.ApplyInterfacesResponse(interfaces=map(interface_state, states))

    async def _apply(
        self, wishes: tuple[InterfaceWish, ...], call: Call
    ) -> tuple[InterfaceState, ...]:
        """Each waits for its own time; the whole has that of the one that waits longest."""
        bounded = tuple(
            dataclasses.replace(wish, timeout=call.within(wish.timeout, default=self._timeout))
            for wish in wishes
        )
        longest = max((wish.timeout or self._timeout for wish in wishes), default=None)
        asked = None if longest == self._timeout else longest
        return await self._manager.apply_interfaces(
            bounded, call.within(asked, default=self._timeout)
        )

    async def remove_interface(
        self, request: pb.RemoveInterfaceRequest, call: Call
    ) -> pb.RemoveInterfaceResponse:
        name = linknames.device(request.name, "name")
        await self._manager.remove_interface(name, _within(call))
        return pb.RemoveInterfaceResponse()

    async def list_interfaces(
        self, _request: pb.ListInterfacesRequest, call: Call
    ) -> pb.ListInterfacesResponse:
        states = await self._manager.interfaces(_within(call))
        return pb.ListInterfacesResponse(interfaces=interface_list(states))

    async def apply_routes(self, request: pb.ApplyRoutesRequest, call: Call) -> pb.RoutesState:
        # A hundred thousand of them take seconds, in which others are to be answered.
        wish = await asyncio.to_thread(routes_wish, request)
        state = await self._manager.apply_routes(wish, _within(call))
        return await asyncio.to_thread(routes_state, state)

    async def list_routes(self, request: pb.ListRoutesRequest, call: Call) -> pb.RoutesState:
        family = family_or_any(request.family, "family")
        state = await self._manager.routes(
            table=request.table, family=family, timeout=_within(call)
        )
        return await asyncio.to_thread(routes_state, state)

    async def apply_neighbors(
        self, request: pb.ApplyNeighborsRequest, call: Call
    ) -> pb.NeighborsState:
        wish = await asyncio.to_thread(neighbors.neighbors_wish, request)
        state = await self._manager.apply_neighbors(wish, _within(call))
        return await asyncio.to_thread(neighbors.neighbors_state, state)

    async def list_neighbors(
        self, _request: pb.ListNeighborsRequest, call: Call
    ) -> pb.NeighborsState:
        state = await self._manager.neighbors(_within(call))
        return await asyncio.to_thread(neighbors.neighbors_state, state)

    async def apply_dns(self, request: pb.ApplyDnsRequest, call: Call) -> pb.DnsState:
        wish = dns.dns_wish(request)
        return dns.dns_state(await self._manager.apply_dns(wish, _within(call)))

    async def get_dns(self, _request: pb.GetDnsRequest, _call: Call) -> pb.DnsState:
        return dns.dns_state(self._manager.dns_state())

    async def apply_sysctls(self, request: pb.ApplySysctlsRequest, call: Call) -> pb.SysctlsState:
        values = sysctls.sysctl_values(request)
        now, former = await self._manager.apply_sysctls(values, _within(call))
        return sysctls.sysctls_state(now, former)

    async def get_firewall(self, request: pb.GetFirewallRequest, call: Call) -> pb.FirewallState:
        form = firewall.format_or_any(request.format)
        return firewall.firewall_state(*await self._manager.firewall(form, _within(call)))

    async def set_firewall(self, request: pb.SetFirewallRequest, call: Call) -> pb.FirewallState:
        form = firewall.firewall_format(request.format)
        rules = firewall.firewall_rules(request)
        asked = fields.seconds(request.timeout_seconds, "timeout_seconds")
        timeout = call.within(asked, default=TIMEOUT)
        return firewall.firewall_state(*await self._manager.set_firewall(form, rules, timeout))


def _within(call: Call) -> float | None:
    """All the time that the host gives: so many routes can take longer than the default."""
    left = call.time_left()
    return None if left is None else min(left, LONGEST_TIMEOUT)
