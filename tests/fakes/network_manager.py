"""A network without a kernel: what the service calls, with the rules of the protocol.

Interfaces come with `plug`; what is made or changed is kept as a kernel would tell it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agent.core.addresses import MacAddress
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason, not_found, timed_out, wrong_state
from agent.core.network import (
    Address,
    AddressFlag,
    AddressWish,
    DnsState,
    DnsWish,
    Family,
    FirewallFormat,
    Forwarding,
    ForwardingWish,
    Hop,
    InterfaceState,
    InterfaceWish,
    Link,
    LinkFlag,
    Neighbor,
    NeighborFlag,
    NeighborsState,
    NeighborsWish,
    NeighborWish,
    Protocol,
    Route,
    RouteSet,
    RoutesState,
    RoutesWish,
    RouteWish,
    Rule,
    Scope,
)
from agent.core.pci import Bdf, PciPath

_KERNELS_RULES = {Family.V4: ((0, 255), (32766, 254), (32767, 253)), Family.V6: ((0, 255),)}


class FakeNetwork:
    """`error` is what the next call ends with; `timeouts` are those that calls came with."""

    def __init__(self) -> None:
        self.cleared = 0
        self.links: dict[str, InterfaceState] = {}
        self.routes_there: list[Route] = []
        self.rules_there = [
            Rule(family=family, priority=priority, table=table, protocol=Protocol.KERNEL)
            for family, rules in _KERNELS_RULES.items()
            for priority, table in rules
        ]
        self.neighbors_there: list[Neighbor] = []
        self.forwarding_there: list[Forwarding] = []
        self.sysctls = {"net.ipv4.ip_forward": "0"}
        self.rules_text = {FirewallFormat.NFTABLES: b'{"nftables": []}'}
        self.error: AgentError | None = None
        self.timeouts: list[float | None] = []
        self.wishes: list[InterfaceWish] = []
        self.routes_wishes: list[RoutesWish] = []
        self.neighbors_wishes: list[NeighborsWish] = []
        self.dns_wishes: list[DnsWish] = []
        self.asked: list[object] = []

    @property
    def touched(self) -> bool:
        """Whether any request came as far as here."""
        return bool(self.timeouts)

    def plug(self, name: str, *, mac: str, pci_path: str = "") -> InterfaceState:
        """A NIC comes, up and with a carrier."""
        flags = LinkFlag.UP | LinkFlag.BROADCAST | LinkFlag.MULTICAST
        link = Link(
            index=len(self.links) + 2,
            name=name,
            flags=flags | LinkFlag.RUNNING | LinkFlag.LOWER_UP,
            mtu=1500,
            mac=mac,
            operstate=6,
            carrier=True,
        )
        state = InterfaceState(link=link, pci_path=pci_path, driver="virtio_net")
        self.links[name] = state
        return state

    async def clear(self, deadline: Deadline) -> None:
        """What Destroy does to the sandbox's DNS."""
        self.cleared += 1

    async def apply_interfaces(
        self, wishes: tuple[InterfaceWish, ...], timeout: float | None
    ) -> tuple[InterfaceState, ...]:
        self._call(timeout)
        found = [self._find(wish) for wish in wishes]
        self.wishes.extend(wishes)
        # All old names go first: names may go round.
        for state in found:
            self.links.pop(state.link.name, None)
        states = tuple(_wished(state, wish) for state, wish in zip(found, wishes, strict=True))
        self.links |= {state.link.name: replace(state, changed=()) for state in states}
        return states

    def _find(self, wish: InterfaceWish) -> InterfaceState:
        for state in self.links.values():
            names = {state.link.name, *state.link.altnames}
            by_mac = isinstance(wish.address, MacAddress) and state.link.mac == str(wish.address)
            by_path = wish.address is not None and str(wish.address) == state.pci_path
            by_name = wish.address is None and wish.subject in names
            if by_mac or by_path or by_name:
                return state
        if isinstance(wish.address, PciPath | Bdf):
            raise timed_out(f"nothing at {wish.subject}", reason=Reason.DEVICE_NOT_READY)
        if wish.making is None:
            raise not_found(f"no interface {wish.subject}", reason=Reason.UNKNOWN_INTERFACE)
        link = Link(
            index=len(self.links) + 2,
            name=wish.current_name or wish.name,
            flags=LinkFlag.BROADCAST,
            mtu=1500,
            kind=wish.making.kind,
            vlan_id=wish.making.vlan_id,
        )
        return InterfaceState(link=link, parent=wish.making.parent)

    async def remove_interface(self, name: str, timeout: float | None) -> None:
        self._call(timeout)
        state = self.links.get(name)
        if state is not None and not state.link.kind:
            raise wrong_state(f"{name} is hardware", reason=Reason.NOT_REMOVABLE)
        self.links.pop(name, None)

    async def interfaces(self, timeout: float | None) -> tuple[InterfaceState, ...]:
        self._call(timeout)
        return tuple(self.links.values())

    async def apply_routes(self, wish: RoutesWish, timeout: float | None) -> RoutesState:
        self._call(timeout)
        self.routes_wishes.append(wish)
        before = self._routes_state()
        for routes in wish.sets:
            self._set_routes(routes)
        for rules in wish.rules:
            kept = [rule for rule in self.rules_there if self._stays(rule, rules.family)]
            self.rules_there = [*kept, *rules.rules]
        after = self._routes_state()
        changed = () if (before.routes, before.rules) == (after.routes, after.rules) else ("it",)
        return replace(after, changed=changed)

    @staticmethod
    def _stays(rule: Rule, family: Family) -> bool:
        return rule.family != family or rule.protocol == Protocol.KERNEL

    def _set_routes(self, wanted: RouteSet) -> None:
        kept = [
            route
            for route in self.routes_there
            if (route.family, route.table) != (wanted.family, wanted.table)
            or route.protocol == Protocol.KERNEL
        ]
        self.routes_there = [*kept, *(self._route(each, wanted) for each in wanted.routes)]

    def _route(self, wish: RouteWish, wanted: RouteSet) -> Route:
        on_link = not any(hop.gateway for hop in wish.hops)
        usual = Scope.LINK if on_link and wanted.family is Family.V4 else Scope.UNIVERSE
        return Route(
            family=wanted.family,
            table=wanted.table,
            destination=wish.destination,
            type=wish.type,
            hops=tuple(
                Hop(
                    gateway=hop.gateway,
                    index=self._index(hop.device),
                    weight=hop.weight,
                    onlink=hop.onlink,
                )
                for hop in wish.hops
            ),
            source=wish.source,
            metric=wish.metric or (1024 if wanted.family is Family.V6 else 0),
            scope=usual if wish.scope is None else wish.scope,
            mtu=wish.mtu,
        )

    async def routes(
        self, *, table: int, family: Family | None, timeout: float | None
    ) -> RoutesState:
        self._call(timeout)
        self.asked.append((table, family))
        return self._routes_state()

    def _routes_state(self) -> RoutesState:
        return RoutesState(
            routes=tuple(self.routes_there), rules=tuple(self.rules_there), names=self._names()
        )

    async def apply_neighbors(self, wish: NeighborsWish, timeout: float | None) -> NeighborsState:
        self._call(timeout)
        self.neighbors_wishes.append(wish)
        for neighbor in wish.neighbors:
            self._set_neighbor(neighbor)
        self.forwarding_there.extend(map(self._forwarding, wish.forwarding))
        return replace(self._neighbors_state(), changed=("it",))

    def _set_neighbor(self, wish: NeighborWish) -> None:
        index = self._index(wish.device)
        there = self.neighbors_there
        there[:] = [n for n in there if (n.index, n.address) != (index, wish.address)]
        if not wish.absent:
            flags = NeighborFlag.PROXY if wish.proxy else NeighborFlag.NONE
            there.append(
                Neighbor(
                    index=index, address=wish.address, mac=wish.mac, state=wish.state, flags=flags
                )
            )

    def _forwarding(self, wish: ForwardingWish) -> Forwarding:
        return Forwarding(
            index=self._index(wish.device),
            mac=wish.mac,
            vlan_id=wish.vlan_id,
            destination=wish.destination,
            state=wish.state,
            flags=NeighborFlag.MASTER if wish.of_master else NeighborFlag.SELF,
        )

    async def neighbors(self, timeout: float | None) -> NeighborsState:
        self._call(timeout)
        return self._neighbors_state()

    def _neighbors_state(self) -> NeighborsState:
        return NeighborsState(
            neighbors=tuple(self.neighbors_there),
            forwarding=tuple(self.forwarding_there),
            names=self._names(),
        )

    async def apply_dns(self, wish: DnsWish, timeout: float | None) -> DnsState:
        self._call(timeout)
        changed = ("it",) if [wish] != self.dns_wishes[-1:] else ()
        self.dns_wishes.append(wish)
        return replace(self.dns_state(), changed=changed)

    def dns_state(self) -> DnsState:
        if not self.dns_wishes:
            return DnsState(resolv_conf="", hosts="", hostname="innkeeper")
        wish = self.dns_wishes[-1]
        return DnsState(
            resolv_conf="".join(f"nameserver {server}\n" for server in wish.servers),
            hosts="".join(f"{one.address} {' '.join(one.names)}\n" for one in wish.hosts),
            hostname=wish.hostname or "innkeeper",
            warnings=("/etc/hosts: a dangling link",),
            wanted=wish,
        )

    async def apply_sysctls(
        self, values: Mapping[str, str], timeout: float | None
    ) -> tuple[Mapping[str, str], Mapping[str, str]]:
        self._call(timeout)
        if strangers := [name for name in values if not name.startswith("net")]:
            raise AgentError(
                f"{strangers[0]} is not of the network",
                code=Code.PERMISSION_DENIED,
                reason=Reason.SYSCTL_NOT_ALLOWED,
            )
        former = {name: self.sysctls.get(name, "0") for name in values}
        self.sysctls |= values
        return dict(values), former

    async def firewall(
        self,
        format: FirewallFormat | None,  # noqa: A002 - the protocol's word
        timeout: float | None,
    ) -> tuple[FirewallFormat, bytes]:
        self._call(timeout)
        self.asked.append(format)
        chosen = format or FirewallFormat.NFTABLES
        return chosen, self.rules_text.get(chosen, b"")

    async def set_firewall(
        self,
        format: FirewallFormat,  # noqa: A002 - the protocol's word
        rules: bytes,
        timeout: float | None,
    ) -> tuple[FirewallFormat, bytes]:
        self._call(timeout)
        self.rules_text[format] = rules
        return format, rules

    def _call(self, timeout: float | None) -> None:
        self.timeouts.append(timeout)
        if self.error is not None:
            raise self.error

    def _names(self) -> dict[int, str]:
        return {state.link.index: name for name, state in self.links.items()}

    def _index(self, name: str) -> int:
        if not name:
            return 2
        if name not in self.links:
            raise not_found(f"no interface {name}", reason=Reason.UNKNOWN_INTERFACE, name=name)
        return self.links[name].link.index


def _wished(state: InterfaceState, wish: InterfaceWish) -> InterfaceState:
    link = state.link
    wanted = replace(
        link,
        name=wish.name or link.name,
        mtu=wish.mtu or link.mtu,
        mac=wish.mac or link.mac,
        flags=link.flags | LinkFlag.UP if wish.up else link.flags & ~LinkFlag.UP,
        altnames=tuple(dict.fromkeys((*link.altnames, *wish.altnames))),
        transmit_queue_length=wish.transmit_queue_length or link.transmit_queue_length,
    )
    kept = state.addresses if wish.keep_addresses else ()
    there = {address.interface: address for address in kept}
    there |= {each.interface: _address(each, link.index) for each in wish.addresses}
    result = replace(
        state,
        link=wanted,
        addresses=tuple(there.values()),
        master=state.master if wish.master is None else wish.master,
        queues=wish.queues,
        offloads=wish.offloads,
        changed=(),
    )
    return replace(result, changed=tuple(_changed(replace(state, changed=()), result)))


def _changed(before: InterfaceState, after: InterfaceState) -> list[str]:
    changed = []
    if before.link.name != after.link.name:
        changed.append(f"name {before.link.name} -> {after.link.name}")
    if before.link.mtu != after.link.mtu:
        changed.append(f"mtu {before.link.mtu} -> {after.link.mtu}")
    new = {one.interface for one in after.addresses} - {one.interface for one in before.addresses}
    return changed + [f"address +{one}" for one in sorted(new, key=str)]


def _address(wish: AddressWish, index: int) -> Address:
    return Address(
        index=index,
        interface=wish.interface,
        peer=wish.peer,
        broadcast=wish.broadcast,
        flags=AddressFlag.PERMANENT,
    )
