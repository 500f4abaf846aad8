"""A file's network as the protocol's messages.

A file is the whole of what it is about: the main table of both versions and every table
that it names become what it says, and so do the policy rules. Interfaces that are not in
it stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.netplan.tree import NetplanError
from innkeeper.netplan.words import Device, Kind, Network, Policy, Way
from innkeeper.v1 import devices_pb2, network_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAIN_TABLE = 254
_FIRST_PRIORITY = 30000

FAMILIES = {4: network_pb2.ADDRESS_FAMILY_V4, 6: network_pb2.ADDRESS_FAMILY_V6}

_TYPES = {
    "unicast": network_pb2.ROUTE_TYPE_UNICAST,
    "blackhole": network_pb2.ROUTE_TYPE_BLACKHOLE,
    "unreachable": network_pb2.ROUTE_TYPE_UNREACHABLE,
    "prohibit": network_pb2.ROUTE_TYPE_PROHIBIT,
    "throw": network_pb2.ROUTE_TYPE_THROW,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """In the order in which they are sent."""

    interfaces: network_pb2.ApplyInterfacesRequest
    routes: network_pb2.ApplyRoutesRequest
    dns: network_pb2.ApplyDnsRequest | None
    """None where the file says nothing of name servers."""


def requests_of(network: Network) -> Requests:
    """Raises NetplanError where a name is needed that the file does not tell."""
    named = {device.id: device for device in network.devices}
    masters = {
        member.id: device.name for device in network.devices for member in device.making.members
    }
    interfaces = [
        _interface(device, named, masters.get(device.id, "")) for device in network.devices
    ]
    return Requests(
        interfaces=network_pb2.ApplyInterfacesRequest(interfaces=interfaces),
        routes=network_pb2.ApplyRoutesRequest(sets=_sets(network), rules=_rules(network)),
        dns=_dns(network),
    )


def _interface(
    device: Device, named: Mapping[str, Device], master: str
) -> network_pb2.ApplyInterfaceRequest:
    request = network_pb2.ApplyInterfaceRequest(
        mtu=device.mtu,
        mac=device.mac,
        addresses=[network_pb2.InterfaceAddress(cidr=str(address)) for address in device.addresses],
        down=device.down,
        master=master,
        offloads=device.offloads,
        ipv6=device.ipv6,
        accept_router_advertisements=device.accept_ra,
    )
    _find(device, request)
    _make(device, named, request)
    return request


def _find(device: Device, request: network_pb2.ApplyInterfaceRequest) -> None:
    match = device.match
    if match is None or match.name:
        request.current_name = match.name if match is not None else device.id
    elif match.mac:
        request.address.CopyFrom(devices_pb2.DeviceAddress(mac=match.mac))
    else:
        request.address.CopyFrom(devices_pb2.DeviceAddress(pci_path=match.pci_path))
    request.name = device.set_name


def _make(
    device: Device, named: Mapping[str, Device], request: network_pb2.ApplyInterfaceRequest
) -> None:
    making = device.making
    match device.kind:
        case Kind.VLAN if making.link is not None:
            parent = _need_name(named[making.link.id], making.link.line)
            request.vlan.CopyFrom(network_pb2.VlanLink(parent=parent, vlan_id=making.vlan_id))
        case Kind.BRIDGE:
            delay = making.forward_delay_millis
            request.bridge.CopyFrom(
                network_pb2.BridgeLink(stp=making.stp, forward_delay_millis=delay)
            )
        case Kind.BOND:
            request.bond.CopyFrom(
                network_pb2.BondLink(mode=making.mode, miimon=making.monitor_millis)
            )
        case Kind.VRF:
            request.vrf.CopyFrom(network_pb2.VrfLink(table=making.table))
        case Kind.DUMMY:
            request.dummy.CopyFrom(network_pb2.DummyLink())
        case _:
            pass


def _need_name(device: Device, line: int) -> str:
    if not device.name:
        raise NetplanError(
            line,
            f"{device.id}: is found by its hardware, so its name is not known here",
            hint=f"give it one: set-name: {device.id}",
        )
    return device.name


def _sets(network: Network) -> Iterator[network_pb2.RouteSet]:
    """The main tables always: a route that was taken out of a file goes."""
    found: dict[tuple[int, int], list[network_pb2.Route]] = {
        (4, MAIN_TABLE): [],
        (6, MAIN_TABLE): [],
    }
    for device in network.devices:
        for way in device.ways:
            table = way.table or device.making.table or MAIN_TABLE
            routes = found.setdefault((way.to.version, table), [])
            routes.append(_once(_route(device, way), way, routes))
    for (version, table), routes in sorted(found.items(), key=lambda each: each[0]):
        yield network_pb2.RouteSet(family=FAMILIES[version], table=table, routes=routes)


def _once(route: network_pb2.Route, way: Way, others: list[network_pb2.Route]) -> network_pb2.Route:
    """The kernel takes another one of the same destination and metric for its successor;
    on link, IPv6 tells them by their interface too."""
    for other in others:
        is_other_link = way.to.version == 6 and not (route.gateway or other.gateway)
        same = (other.destination, other.metric) == (route.destination, route.metric)
        if same and not (is_other_link and other.device != route.device):
            text = f"a second route to {route.destination} with metric {route.metric}"
            raise NetplanError(way.line, text, hint="give one of them another metric, or table")
    return route


def _route(device: Device, way: Way) -> network_pb2.Route:
    """The kernel takes no device for a route that leads nowhere, and finds that of a
    VRF's gateway by itself."""
    is_of_vrf = device.kind is Kind.VRF and way.via
    if is_of_vrf and way.on_link:
        text = f"{device.id}: on-link: says that the VRF itself leads to {way.via}"
        raise NetplanError(way.line, text, hint="write the route under the VRF's member")
    has_device = way.type == "unicast" and not is_of_vrf
    return network_pb2.Route(
        destination=str(way.to) if way.to.prefixlen else "default",
        gateway=way.via,
        device=_need_name(device, way.line) if has_device else "",
        source=way.source,
        metric=way.metric,
        # IPv6 has none; what is not said can't differ.
        scope=way.scope if way.to.version == 4 else "",
        onlink=way.on_link,
        mtu=way.mtu,
        type=_TYPES[way.type],
    )


def _rules(network: Network) -> Iterator[network_pb2.RuleSet]:
    pairs = [(device, policy) for device in network.devices for policy in device.policies]
    for version, family in FAMILIES.items():
        mine = [(device, policy) for device, policy in pairs if policy.version == version]
        priorities = _priorities([policy for _, policy in mine])
        rules = [
            _rule(device, policy, priority)
            for (device, policy), priority in zip(mine, priorities, strict=True)
        ]
        yield network_pb2.RuleSet(family=family, rules=rules)


def _priorities(policies: list[Policy]) -> list[int]:
    """Those that say none come in the order of the file. Raises NetplanError for one that
    is there twice: which came first would be chance."""
    taken: dict[int, int] = {}
    for policy in policies:
        if policy.priority in taken:
            first = taken[policy.priority]
            text = f"priority {policy.priority}: the rule of line {first} has it"
            raise NetplanError(policy.line, text)
        if policy.priority:
            taken[policy.priority] = policy.line
    free = (number for number in range(_FIRST_PRIORITY, 1 << 15) if number not in taken)
    return [policy.priority or next(free) for policy in policies]


def _rule(device: Device, policy: Policy, priority: int) -> network_pb2.Rule:
    return network_pb2.Rule(
        priority=priority,
        source=policy.source,
        destination=policy.to,
        mark=policy.mark,
        action=network_pb2.RULE_ACTION_TABLE,
        table=policy.table or device.making.table or MAIN_TABLE,
    )


def _dns(network: Network) -> network_pb2.ApplyDnsRequest | None:
    told = [device for device in network.devices if device.has_nameservers]
    if not told:
        return None
    return network_pb2.ApplyDnsRequest(
        servers=dict.fromkeys(server for device in told for server in device.servers),
        searches=dict.fromkeys(search for device in told for search in device.searches),
    )
