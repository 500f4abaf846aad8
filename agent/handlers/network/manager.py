"""The network as the services see it: loads its parts when first needed, one change at a time.

What speaks netlink (pyroute2's messages, 6 MB and a second of an emulated CPU) is loaded
by the first request, in a thread. Changes take turns: two wanted states at once would each
undo half of the other. Nobody holds a turn while waiting for hardware: interfaces are found
first. A caller that leaves does not stop its change half-way.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError
from agent.core.kinds import NicInfo
from agent.core.turns import Turns
from agent.handlers.network import sysctls

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from agent.core.events import EventLog
    from agent.core.hotplug import HotplugBoard
    from agent.core.model import AttachedDevice
    from agent.core.network import (
        DnsState,
        DnsWish,
        Family,
        FirewallFormat,
        InterfaceState,
        InterfaceWish,
        LendingOrder,
        NeighborsState,
        NeighborsWish,
        RoutesState,
        RoutesWish,
    )
    from agent.core.pid1 import Pid1Client
    from agent.core.state import StateStore
    from agent.handlers.network.firewall import Firewall
    from agent.handlers.network.parts import Parts
    from agent.handlers.network.resolver import Resolver

    T = TypeVar("T")

log = logging.getLogger(__name__)

TIMEOUT: Final = 30.0
"""Seconds for a request that says nothing; for hardware it is the agent's hotplug timeout."""

_KIND, _KEY = "network", "used"
# loans.LoanRecord.KIND, which is not loaded here.
_LOANS: Final = "loans"
_TURN: Final = "network"
_CLOSE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """What the manager is made with."""

    board: HotplugBoard
    state: StateStore
    events: EventLog
    keeper: Pid1Client
    devices: Devices
    hotplug_timeout: float


class Devices(Protocol):
    """What is needed of handlers.devices.manager."""

    def list(self) -> tuple[AttachedDevice, ...]: ...


class NetworkManager:
    """What server.facades.NetworkManager asks for, and what containers need."""

    def __init__(self, mechanisms: Mechanisms, *, resolver: Resolver, firewall: Firewall) -> None:
        self._mechanisms = mechanisms
        self.resolver = resolver
        self._firewall = firewall
        self._turns = Turns()
        self._loading: asyncio.Task[Parts] | None = None

    @property
    def dns(self) -> DnsState | None:
        """What containers get as resolv.conf, hosts and hostname; None before ApplyDns."""
        return self.resolver.current

    async def apply_interfaces(
        self, wishes: tuple[InterfaceWish, ...], timeout: float | None
    ) -> tuple[InterfaceState, ...]:
        """Network.ApplyInterfaces; see the protocol's comments for what it raises."""
        deadline = Deadline.of_request(timeout, self._mechanisms.hotplug_timeout)
        parts = await self._parts()
        found = await parts.interfaces.find(wishes, deadline)
        states = await self._turn(lambda: parts.interfaces.apply(found, deadline))
        return tuple(map(self._with_device, states))

    async def remove_interface(self, name: str, timeout: float | None) -> None:
        """Network.RemoveInterface."""
        deadline = Deadline.of_request(timeout, TIMEOUT)
        parts = await self._parts()
        await self._turn(lambda: parts.interfaces.remove(name, deadline))

    async def interfaces(self, timeout: float | None) -> tuple[InterfaceState, ...]:
        """All interfaces: the sandbox's, then those that containers have."""
        deadline = Deadline.of_request(timeout, TIMEOUT)
        parts = await self._parts()
        own = await parts.interfaces.list(deadline)
        lent = await parts.lending.list(deadline)
        return tuple(map(self._with_device, (*own, *lent)))

    async def apply_routes(self, wish: RoutesWish, timeout: float | None) -> RoutesState:
        """Network.ApplyRoutes."""
        deadline = Deadline.of_request(timeout, TIMEOUT)
        parts = await self._parts()
        return await self._turn(lambda: parts.routes.apply(wish, deadline))

    async def routes(
        self, *, table: int, family: Family | None, timeout: float | None
    ) -> RoutesState:
        """Network.ListRoutes."""
        deadline = Deadline.of_request(timeout, TIMEOUT)
        return await (await self._parts()).routes.list(deadline, table=table, family=family)

    async def apply_neighbors(self, wish: NeighborsWish, timeout: float | None) -> NeighborsState:
        """Network.ApplyNeighbors."""
        deadline = Deadline.of_request(timeout, TIMEOUT)
        parts = await self._parts()
        return await self._turn(lambda: parts.neighbors.apply(wish, deadline))

    async def neighbors(self, timeout: float | None) -> NeighborsState:
        """Network.ListNeighbors."""
        deadline = Deadline.of_request(timeout, TIMEOUT)
        return await (await self._parts()).neighbors.list(deadline)

    async def apply_dns(self, wish: DnsWish, timeout: float | None) -> DnsState:
        """Network.ApplyDns."""
        deadline = Deadline.of_request(timeout, TIMEOUT)
        return await self._turn(lambda: self.resolver.apply(wish, deadline))

    def dns_state(self) -> DnsState:
        """Network.GetDns."""
        return self.resolver.state()

    async def apply_sysctls(
        self, values: Mapping[str, str], timeout: float | None
    ) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Network.ApplySysctls: what they are now, what they were."""
        deadline = Deadline.of_request(timeout, TIMEOUT)
        return await self._turn(
            partial(sysctls.apply, self._mechanisms.board.tree.roots, values, deadline)
        )

    async def firewall(
        self,
        format: FirewallFormat | None,  # noqa: A002 - the protocol's word
        timeout: float | None,
    ) -> tuple[FirewallFormat, bytes]:
        """Network.GetFirewall."""
        return await self._firewall.get(format, Deadline.of_request(timeout, TIMEOUT))

    async def set_firewall(
        self,
        format: FirewallFormat,  # noqa: A002 - the protocol's word
        rules: bytes,
        timeout: float | None,
    ) -> tuple[FirewallFormat, bytes]:
        """Network.SetFirewall."""
        deadline = Deadline.of_request(timeout, TIMEOUT)
        return await self._turn(lambda: self._firewall.set(format, rules, deadline))

    async def lend(self, order: LendingOrder, deadline: Deadline) -> None:
        """Give interfaces to a container; see `lending.Lending.lend`."""
        parts = await self._parts()
        await self._turn(lambda: parts.lending.lend(order, deadline))

    async def take_back(
        self, container_id: str, deadline: Deadline, *, undone: bool = False
    ) -> None:
        """Bring a container's interfaces back; see `lending.Lending.take_back`."""
        if self._mechanisms.state.load(_LOANS, container_id) is None:
            return  # the usual case, for which nothing is loaded
        parts = await self._parts()
        await self._turn(lambda: parts.lending.take_back(container_id, deadline, undone=undone))

    def on_attached(self, device: AttachedDevice) -> None:
        """With the first NIC the network is watched."""
        if isinstance(device.info, NicInfo):
            self.wake()

    def wake(self) -> None:
        """Load the parts and watch the network, in the background."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._load(), name="load the network")
            self._loading.add_done_callback(_told)

    async def restore(self) -> None:
        """Go on where an earlier agent was: only if it used the network at all."""
        await self.resolver.restore()
        if self._mechanisms.state.load(_KIND, _KEY) is not None:
            self.wake()

    async def close(self) -> None:
        """End what runs; the network stays as it is."""
        await self._turns.quiet(_TURN, _CLOSE_SECONDS)
        if self._loading is None:
            return
        self._loading.cancel()
        parts = (await asyncio.gather(self._loading, return_exceptions=True))[0]
        if not isinstance(parts, BaseException):
            await parts.close()

    async def _turn(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._turns.take(_TURN, work)

    async def _parts(self) -> Parts:
        if self._loading is not None and self._loading.done() and self._failed(self._loading):
            self._loading = None  # the next request tries again
        self.wake()
        assert self._loading is not None
        return await asyncio.shield(self._loading)

    @staticmethod
    def _failed(loading: asyncio.Task[Parts]) -> bool:
        return loading.cancelled() or loading.exception() is not None

    async def _load(self) -> Parts:
        assembly = await asyncio.to_thread(importlib.import_module, "agent.handlers.network.parts")
        around = self._mechanisms
        self._note_use()
        parts: Parts = await assembly.assemble(
            assembly.Surroundings(
                board=around.board,
                state=around.state,
                events=around.events,
                keeper=around.keeper,
            )
        )
        return parts

    def _note_use(self) -> None:
        """Without room for the note the network is used all the same: then the next agent
        takes back what is left half-way when it is first asked, not when it starts."""
        try:
            self._mechanisms.state.save(_KIND, _KEY, {})
        except AgentError as error:
            log.warning("that the network is in use can't be noted: %s", error)

    def _with_device(self, state: InterfaceState) -> InterfaceState:
        device = next(
            (
                each.request.id
                for each in self._mechanisms.devices.list()
                if isinstance(each.info, NicInfo) and str(each.pci_path) == state.pci_path
            ),
            "",
        )
        return dataclasses.replace(state, device_id=device)


def _told(loading: asyncio.Task[Parts]) -> None:
    if not loading.cancelled() and (error := loading.exception()) is not None:
        log.error("the network's parts could not be loaded: %s", error, exc_info=error)
