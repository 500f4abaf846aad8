"""The guest's network as the commands show it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from google.protobuf import json_format

from innkeeper.v1 import network_pb2, network_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from google.protobuf.message import Message

    from innkeeper.shim.client import Vm

COLUMNS = ("NAME", "STATE", "MTU", "MAC", "ADDRESSES", "KIND", "ON", "PLACE")
ROUTE_COLUMNS = ("FAMILY", "TABLE", "DESTINATION", "VIA", "DEVICE", "METRIC", "TYPE", "FROM")
RULE_COLUMNS = ("FAMILY", "PRIORITY", "FROM", "TO", "MARK", "ACTION")
NEIGHBOR_COLUMNS = ("ADDRESS", "MAC", "DEVICE", "STATE")

_LOCAL_TABLE = 255
_FAMILIES = {network_pb2.ADDRESS_FAMILY_V4: "v4", network_pb2.ADDRESS_FAMILY_V6: "v6"}


@contextlib.asynccontextmanager
async def network(vm: Vm) -> AsyncIterator[network_pb2_grpc.NetworkAsyncStub]:
    async with vm.channel() as channel:
        yield network_pb2_grpc.NetworkStub(channel)


async def interfaces(vm: Vm) -> Sequence[network_pb2.InterfaceState]:
    async with network(vm) as stub:
        return (await stub.ListInterfaces(network_pb2.ListInterfacesRequest())).interfaces


async def routes(vm: Vm) -> network_pb2.RoutesState:
    async with network(vm) as stub:
        return await stub.ListRoutes(network_pb2.ListRoutesRequest())


async def neighbors(vm: Vm) -> network_pb2.NeighborsState:
    async with network(vm) as stub:
        return await stub.ListNeighbors(network_pb2.ListNeighborsRequest())


def interface_row(interface: network_pb2.InterfaceState) -> list[str]:
    """For `COLUMNS`."""
    container = f"container {interface.container_id}" if interface.container_id else ""
    place = [f"PCI {interface.pci_path}" if interface.pci_path else "", container]
    cells = (
        *(interface.name, _state(interface), str(interface.mtu), interface.mac),
        " ".join(address.cidr for address in interface.addresses),
        *(interface.kind or interface.driver, interface.master or interface.parent),
        ", ".join(text for text in place if text),
    )
    return [cell or "-" for cell in cells]


def _state(interface: network_pb2.InterfaceState) -> str:
    if not interface.up:
        return "down"
    return "up" if interface.carrier else "up, no carrier"


def route_rows(state: network_pb2.RoutesState) -> list[list[str]]:
    """For `ROUTE_COLUMNS`; without what the kernel has of its own addresses."""
    return [
        _route_row(each.family, each.table, route)
        for each in state.sets
        for route in each.routes
        if each.table != _LOCAL_TABLE
    ]


def _route_row(
    family: network_pb2.AddressFamily.ValueType, table: int, route: network_pb2.Route
) -> list[str]:
    hops = route.next_hops or [network_pb2.NextHop(gateway=route.gateway, device=route.device)]
    cells = (
        *(_FAMILIES.get(family, ""), str(table), route.destination),
        " ".join(hop.gateway for hop in hops),
        " ".join(hop.device for hop in hops),
        str(route.metric),
        network_pb2.RouteType.Name(route.type).removeprefix("ROUTE_TYPE_").lower(),
        route.protocol,
    )
    return [cell.strip() or "-" for cell in cells]


def rule_rows(state: network_pb2.RoutesState) -> list[list[str]]:
    """For `RULE_COLUMNS`."""
    return [_rule_row(each.family, rule) for each in state.rules for rule in each.rules]


def _rule_row(family: network_pb2.AddressFamily.ValueType, rule: network_pb2.Rule) -> list[str]:
    action = network_pb2.RuleAction.Name(rule.action).removeprefix("RULE_ACTION_").lower()
    is_table = rule.action == network_pb2.RULE_ACTION_TABLE
    sign = "not " if rule.invert else ""
    return [
        _FAMILIES.get(family, "-"),
        str(rule.priority),
        sign + (rule.source or "any"),
        rule.destination or "any",
        f"{rule.mark:#x}" if rule.HasField("mark") else "-",
        f"table {rule.table}" if is_table else action,
    ]


def neighbor_rows(state: network_pb2.NeighborsState) -> list[list[str]]:
    """For `NEIGHBOR_COLUMNS`."""
    return [
        [each.address, each.mac or "-", each.device, "proxy" if each.proxy else each.state or "-"]
        for each in state.neighbors
    ]


def as_dict(message: Message) -> dict[str, object]:
    made: dict[str, object] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return made


def changes(interfaces: Iterable[network_pb2.InterfaceState], routes: Iterable[str]) -> list[str]:
    """One a line: "eth0: mtu 1500 -> 9000", then those of routes and rules."""
    lines = [f"{each.name}: {line}" for each in interfaces for line in each.changed]
    return [*lines, *routes]
