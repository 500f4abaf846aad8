"""innkeeper.v1.Network over the wire."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from agent.core.addresses import MacAddress
from agent.core.errors import Reason, invalid
from agent.core.network import (
    Address,
    AddressFlag,
    AddressWish,
    Counters,
    Family,
    FirewallFormat,
    Forwarding,
    Hop,
    HopWish,
    HostEntry,
    LinkFlag,
    LinkKind,
    LinkMaking,
    Neighbor,
    NeighborFlag,
    NeighborState,
    Protocol,
    Queues,
    Route,
    RoutesWish,
    RouteType,
    RouteWish,
    Rule,
    RuleAction,
    Scope,
)
from agent.core.pci import Bdf, PciPath
from agent.server import limits
from agent.server import network as service
from agent.server.convert.routes import routes_wish
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import network_pb2 as pb
from innkeeper.v1.network_pb2_grpc import NetworkStub
from tests.fakes.agent_server import Refusal, RunningAgent, refused
from tests.fakes.network_manager import FakeNetwork

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from google.protobuf.message import Message

    from innkeeper.v1.network_pb2_grpc import NetworkAsyncStub

pytestmark = [pytest.mark.contract, pytest.mark.network]

V4, V6 = pb.ADDRESS_FAMILY_V4, pb.ADDRESS_FAMILY_V6
MAC = "02:00:00:aa:bb:01"


@pytest.fixture
def stub(agent: RunningAgent) -> NetworkAsyncStub:
    return NetworkStub(agent.channel)


@pytest.fixture
def manager(agent: RunningAgent) -> FakeNetwork:
    agent.network.plug("eth0", mac=MAC, pci_path="02/00")
    agent.network.plug("eth1", mac="02:00:00:aa:bb:02", pci_path="03/00")
    return agent.network


async def bad(answer: Awaitable[object], field: str, reason: str = "BAD_FIELD") -> Refusal:
    """A refusal that names where in the request it is, also to people."""
    refusal = await refused(answer)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert refusal.fields["field"] == field
    assert refusal.message.startswith(f"{field}: ") or field == "sets"
    return refusal


# Interfaces.


def wanted(**parts: Any) -> pb.ApplyInterfaceRequest:
    fields: dict[str, Any] = {"current_name": "eth0", **parts}
    return pb.ApplyInterfaceRequest(**fields)


def at(**form: Any) -> dict[str, Any]:
    return {"current_name": "", "address": devices.DeviceAddress(**form)}


def addresses(*cidrs: str) -> list[pb.InterfaceAddress]:
    return [pb.InterfaceAddress(cidr=cidr) for cidr in cidrs]


async def test_an_interface_gets_what_is_asked_for_and_a_second_time_nothing(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    asked = wanted(
        **at(pci_path="02/00"),
        name="web0",
        mtu=9000,
        addresses=addresses("192.0.2.10/24", "2001:DB8::10/64"),
        alternative_names=["uplink"],
    )
    state = await stub.ApplyInterface(asked)
    assert (state.name, state.mtu, state.mac, state.up) == ("web0", 9000, MAC, True)
    assert [one.cidr for one in state.addresses] == ["192.0.2.10/24", "2001:db8::10/64"]
    assert list(state.alternative_names) == ["uplink"]
    assert list(state.changed) == [
        "name eth0 -> web0",
        "mtu 1500 -> 9000",
        "address +192.0.2.10/24",
        "address +2001:db8::10/64",
    ]
    assert not (await stub.ApplyInterface(asked)).changed
    listed = await stub.ListInterfaces(pb.ListInterfacesRequest())
    assert [one.name for one in listed.interfaces] == ["web0", "eth1"]


async def test_every_part_of_a_wish_arrives(stub: NetworkAsyncStub, manager: FakeNetwork) -> None:
    point = pb.InterfaceAddress(cidr="192.0.2.1/32", peer="198.51.100.7", broadcast="192.0.2.255")
    await stub.ApplyInterface(
        wanted(
            mac="02-00-00-AA-BB-99",
            addresses=[point],
            keep_addresses=True,
            down=True,
            arp=False,
            multicast=True,
            all_multicast=False,
            promiscuous=True,
            master="br0",
            offloads={"tso": False, "rx-udp_tunnel-port-offload": True},
            queues=pb.Queues(receive=1, transmit=2, combined=4),
            transmit_queue_length=0,
            ipv6=False,
            accept_router_advertisements=False,
            timeout_seconds=3,
        )
    )
    (wish,) = manager.wishes
    assert (wish.current_name, wish.name, wish.mtu, wish.mac) == (
        "eth0",
        "",
        0,
        "02:00:00:aa:bb:99",
    )
    assert wish.addresses == (
        AddressWish(
            interface=ip_interface("192.0.2.1/32"),
            peer=ip_address("198.51.100.7"),
            broadcast=ip_address("192.0.2.255"),  # type: ignore[arg-type]
        ),
    )
    assert (wish.keep_addresses, wish.up, wish.arp, wish.multicast) == (True, False, False, True)
    assert (wish.all_multicast, wish.promiscuous, wish.master) == (False, True, "br0")
    assert wish.offloads == {"tso": False, "rx-udp_tunnel-port-offload": True}
    assert wish.queues == Queues(receive=1, transmit=2, combined=4)
    assert (wish.transmit_queue_length, wish.ipv6) == (0, False)
    assert wish.accept_router_advertisements is False
    assert (wish.timeout, manager.timeouts) == (3, [3])


async def test_what_is_not_said_stays_as_it_is(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    """Absent is not false, and a master that is set and empty is not an absent one."""
    await stub.ApplyInterface(wanted())
    await stub.ApplyInterface(wanted(master=""))
    absent, empty = manager.wishes
    unsaid = (
        *(absent.arp, absent.multicast, absent.all_multicast, absent.promiscuous),
        *(absent.master, absent.transmit_queue_length, absent.ipv6),
        *(absent.accept_router_advertisements, absent.making, absent.timeout),
    )
    assert set(unsaid) == {None}
    assert empty.master == ""


@pytest.mark.parametrize(
    ("form", "address"),
    [
        ({"pci_path": "02.0/00"}, PciPath.parse("02/00")),
        ({"pci_bdf": "0000:01:00.0"}, Bdf.parse("0000:01:00.0")),
        ({"mac": "02:00:00:AA:bb:01"}, MacAddress.parse(MAC)),
        ({"mac": "02-00-00-aa-BB-01"}, MacAddress.parse(MAC)),
    ],
)
async def test_an_interface_is_looked_for_by_three_forms(
    stub: NetworkAsyncStub, manager: FakeNetwork, form: dict[str, str], address: object
) -> None:
    manager.links["eth0"] = replace(manager.links["eth0"], pci_path=str(address))
    await stub.ApplyInterface(wanted(**at(**form)))
    assert manager.wishes[0].address == address


async def test_one_that_does_not_come_is_a_deadline_with_its_reason(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    answer = await refused(stub.ApplyInterface(wanted(**at(pci_path="1f/00"), timeout_seconds=1)))
    assert (answer.code, answer.reason) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "DEVICE_NOT_READY",
    )
    answer = await refused(stub.ApplyInterface(wanted(current_name="eth7", timeout_seconds=1)))
    assert (answer.code, answer.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_INTERFACE")


async def test_a_name_alone_is_the_present_one(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    assert (await stub.ApplyInterface(wanted(current_name="", name="eth0"))).ifindex == 2
    assert manager.wishes[0].subject == "eth0"


MAKINGS: list[tuple[dict[str, Any], LinkMaking]] = [
    (
        {"vlan": pb.VlanLink(parent="eth0", vlan_id=100, service_tag=True)},
        LinkMaking(kind=LinkKind.VLAN, parent="eth0", vlan_id=100, service_tag=True),
    ),
    (
        {"bridge": pb.BridgeLink(stp=True, vlan_filtering=True, forward_delay_millis=4000)},
        LinkMaking(kind=LinkKind.BRIDGE, stp=True, vlan_filtering=True, forward_delay_millis=4000),
    ),
    (
        {"bond": pb.BondLink(mode="active-backup", miimon=50)},
        LinkMaking(kind=LinkKind.BOND, mode="active-backup", miimon=50),
    ),
    ({"bond": pb.BondLink()}, LinkMaking(kind=LinkKind.BOND, mode="balance-rr", miimon=100)),
    ({"vrf": pb.VrfLink(table=10)}, LinkMaking(kind=LinkKind.VRF, table=10)),
    ({"dummy": pb.DummyLink()}, LinkMaking(kind=LinkKind.DUMMY)),
    ({"veth": pb.VethLink(peer_name="v1")}, LinkMaking(kind=LinkKind.VETH, peer_name="v1")),
]


@pytest.mark.parametrize(("link", "making"), MAKINGS)
async def test_virtual_interfaces_are_made(
    stub: NetworkAsyncStub, manager: FakeNetwork, link: dict[str, Any], making: LinkMaking
) -> None:
    state = await stub.ApplyInterface(wanted(current_name="", name="new0", **link))
    assert (state.name, state.kind, state.up) == ("new0", making.kind, True)
    assert manager.wishes[0].making == making
    await stub.RemoveInterface(pb.RemoveInterfaceRequest(name="new0"))
    await stub.RemoveInterface(pb.RemoveInterfaceRequest(name="new0"))
    assert "new0" not in manager.links


def test_every_kind_of_link_of_the_protocol_is_here() -> None:
    fields = pb.ApplyInterfaceRequest.DESCRIPTOR.oneofs_by_name["link"].fields
    assert {field.name for field in fields} == {kind for link, _ in MAKINGS for kind in link}


async def test_hardware_is_not_removed(stub: NetworkAsyncStub, manager: FakeNetwork) -> None:
    answer = await refused(stub.RemoveInterface(pb.RemoveInterfaceRequest(name="eth0")))
    assert (answer.code, answer.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "NOT_REMOVABLE",
    )


async def test_names_go_round_in_one_request(stub: NetworkAsyncStub, manager: FakeNetwork) -> None:
    request = pb.ApplyInterfacesRequest(
        interfaces=[wanted(name="eth1"), wanted(current_name="eth1", name="eth0")]
    )
    states = (await stub.ApplyInterfaces(request)).interfaces
    assert [(one.ifindex, one.name) for one in states] == [(2, "eth1"), (3, "eth0")]
    assert not (await stub.ApplyInterfaces(pb.ApplyInterfacesRequest())).interfaces


LONG_NAME = "abcdefghijklmnop"
BAD_INTERFACES: list[tuple[dict[str, Any], str, str]] = [
    ({"current_name": ""}, "address", "BAD_FIELD"),
    ({"current_name": "a b"}, "current_name", "BAD_FIELD"),
    ({"current_name": "x" * 128}, "current_name", "BAD_FIELD"),
    ({"current_name": "eth0\n"}, "current_name", "BAD_FIELD"),
    ({**at(pci_path="02/00"), "current_name": "eth0"}, "address", "BAD_FIELD"),
    ({**at(pci_path="02/00"), "dummy": pb.DummyLink()}, "address", "BAD_FIELD"),
    (at(), "address", "BAD_ADDRESS"),
    (at(path="/dev/net"), "address", "BAD_ADDRESS"),
    (at(ccw="0.0.0001"), "address", "BAD_ADDRESS"),
    (at(mmio="0xd0000000"), "address", "BAD_ADDRESS"),
    (at(scsi=devices.ScsiAddress()), "address", "BAD_ADDRESS"),
    (at(mac="02:00:00:aa:bb"), "address.mac", "BAD_ADDRESS"),
    (at(mac="01:00:5e:00:00:01"), "address.mac", "BAD_ADDRESS"),
    (at(mac=":".join(["02"] * 20)), "address.mac", "BAD_ADDRESS"),
    *(
        ({"name": bad_name}, "name", "BAD_FIELD")
        for bad_name in (LONG_NAME, "\u00e9" * 8, "a/b", "a b", ".", "..", "a:b", "e%d", "a\0")
    ),
    ({"mtu": 2**31}, "mtu", "BAD_FIELD"),
    ({"mac": "02:00:00:aa:bb"}, "mac", "BAD_FIELD"),
    ({"mac": "00:00:00:00:00:00"}, "mac", "BAD_FIELD"),
    ({"mac": "03:00:00:00:00:00"}, "mac", "BAD_FIELD"),
    ({"master": "a b"}, "master", "BAD_FIELD"),
    ({"offloads": {"T S O": True}}, "offloads", "BAD_FIELD"),
    ({"offloads": {f"o{n}": True for n in range(257)}}, "offloads", "BAD_FIELD"),
    ({"alternative_names": ["ok", ""]}, "alternative_names[1]", "BAD_FIELD"),
    ({"alternative_names": ["x" * 128]}, "alternative_names[0]", "BAD_FIELD"),
    ({"alternative_names": ["a b"]}, "alternative_names[0]", "BAD_FIELD"),
    ({"alternative_names": ["x", "x"]}, "alternative_names", "BAD_FIELD"),
    ({"alternative_names": [f"n{n}" for n in range(65)]}, "alternative_names", "BAD_FIELD"),
    ({"timeout_seconds": float("nan")}, "timeout_seconds", "BAD_FIELD"),
    ({"vlan": pb.VlanLink(vlan_id=1)}, "vlan.parent", "BAD_FIELD"),
    ({"vlan": pb.VlanLink(parent="eth0")}, "vlan.vlan_id", "BAD_FIELD"),
    ({"vlan": pb.VlanLink(parent="eth0", vlan_id=4095)}, "vlan.vlan_id", "BAD_FIELD"),
    (
        {"bridge": pb.BridgeLink(forward_delay_millis=1999)},
        "bridge.forward_delay_millis",
        "BAD_FIELD",
    ),
    ({"bond": pb.BondLink(mode="balance")}, "bond.mode", "BAD_FIELD"),
    ({"bond": pb.BondLink(miimon=2**31)}, "bond.miimon", "BAD_FIELD"),
    ({"vrf": pb.VrfLink()}, "vrf.table", "BAD_FIELD"),
    ({"veth": pb.VethLink()}, "veth.peer_name", "BAD_FIELD"),
    ({"veth": pb.VethLink(peer_name="eth0")}, "veth.peer_name", "BAD_FIELD"),
    ({"current_name": LONG_NAME, "dummy": pb.DummyLink()}, "current_name", "BAD_FIELD"),
]


@pytest.mark.parametrize(("parts", "field", "reason"), BAD_INTERFACES)
async def test_a_bad_interface_is_named_in_both_calls(
    stub: NetworkAsyncStub,
    manager: FakeNetwork,
    parts: dict[str, Any],
    field: str,
    reason: str,
) -> None:
    request = wanted(**parts)
    await bad(stub.ApplyInterface(request), field, reason)
    both = pb.ApplyInterfacesRequest(interfaces=[wanted(current_name="eth1"), request])
    await bad(stub.ApplyInterfaces(both), f"interfaces[1].{field}", reason)
    assert not manager.touched


@pytest.mark.parametrize(
    ("address", "member"),
    [
        (pb.InterfaceAddress(), "cidr"),
        *(
            (pb.InterfaceAddress(cidr=cidr), "cidr")
            for cidr in (
                "192.0.2.1",
                "192.0.2.1/",
                "192.0.2.1/33",
                "192.0.2.1/024",
                "192.0.2.1/255.255.255.0",
                "192.0.02.1/24",
                "192.0.2/24",
                "2001:db8::1/129",
                "fe80::1%eth0/64",
                "0.0.0.0/24",
                "::/64",
                "224.0.0.1/24",
                "ff02::1/64",
                "default",
                " 192.0.2.1/24",
                "192.0.2.1/24\n",
                "\u0661.1.1.1/24",
            )
        ),
        (pb.InterfaceAddress(cidr="192.0.2.1/24", peer="2001:db8::1"), "peer"),
        (pb.InterfaceAddress(cidr="192.0.2.1/24", peer="192.0.2.2/24"), "peer"),
        (pb.InterfaceAddress(cidr="192.0.2.1/24", broadcast="2001:db8::"), "broadcast"),
        (pb.InterfaceAddress(cidr="2001:db8::1/64", broadcast="192.0.2.1"), "broadcast"),
    ],
)
async def test_a_bad_address_is_named(
    stub: NetworkAsyncStub, manager: FakeNetwork, address: pb.InterfaceAddress, member: str
) -> None:
    request = wanted(addresses=[*addresses("10.0.0.1/8"), address])
    await bad(stub.ApplyInterface(request), f"addresses[1].{member}")
    assert not manager.touched


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"addresses": addresses("192.0.2.1/24", "192.0.2.1/24")}, "addresses"),
        # The kernel tells IPv6 addresses of an interface apart without their prefixes.
        ({"addresses": addresses("2001:db8::1/64", "2001:DB8:0::1/128")}, "addresses"),
        (
            {"addresses": addresses("192.0.2.1/24", "2001:db8::1/64"), "ipv6": False},
            "addresses[1].cidr",
        ),
        (
            {"addresses": addresses(*(f"10.0.{n >> 8}.{n & 255}/8" for n in range(1025)))},
            "addresses",
        ),
    ],
)
async def test_addresses_that_cannot_be_together(
    stub: NetworkAsyncStub, manager: FakeNetwork, parts: dict[str, Any], field: str
) -> None:
    await bad(stub.ApplyInterface(wanted(**parts)), field)
    assert not manager.touched


async def test_the_same_ipv4_address_of_two_prefixes_is_two(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    await stub.ApplyInterface(wanted(addresses=addresses("192.0.2.1/24", "192.0.2.1/32")))
    assert len(manager.wishes[0].addresses) == 2


@pytest.mark.parametrize(
    ("interfaces", "field"),
    [
        ([wanted(), wanted()], "interfaces"),
        ([wanted(name="web0"), wanted(current_name="eth1", name="web0")], "interfaces: name"),
        ([wanted(current_name=f"eth{n}") for n in range(65)], "interfaces"),
    ],
)
async def test_a_batch_has_each_interface_and_each_name_once(
    stub: NetworkAsyncStub,
    manager: FakeNetwork,
    interfaces: list[pb.ApplyInterfaceRequest],
    field: str,
) -> None:
    await bad(stub.ApplyInterfaces(pb.ApplyInterfacesRequest(interfaces=interfaces)), field)
    assert not manager.touched


async def test_the_calls_deadline_bounds_the_wait(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    await stub.ApplyInterface(wanted(timeout_seconds=60), timeout=4)
    (bounded,) = manager.timeouts
    assert bounded is not None
    assert bounded < 4
    assert manager.wishes[0].timeout is not None
    assert manager.wishes[0].timeout < 4


async def test_a_batch_takes_as_long_as_the_one_that_waits_longest(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    """Ten seconds are the agent's own timeout here, which the manager knows."""
    batches = ((2, 0), (2, 20), (2, 3))
    for one, other in batches:
        await stub.ApplyInterfaces(
            pb.ApplyInterfacesRequest(
                interfaces=[
                    wanted(timeout_seconds=one),
                    wanted(current_name="eth1", timeout_seconds=other),
                ]
            )
        )
    assert manager.timeouts == [None, 20, 3]
    assert [wish.timeout for wish in manager.wishes] == [2, None, 2, 20, 2, 3]


async def test_an_interface_is_told_in_the_words_of_ip(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    """`ip -d addr`: flags in the order of print_link_flags, states of RFC 2863."""
    there = manager.links["eth0"]
    flags = LinkFlag.UP | LinkFlag.BROADCAST | LinkFlag.NOARP | LinkFlag.SLAVE | LinkFlag.PROMISC
    link = replace(
        there.link,
        flags=flags,
        operstate=3,
        carrier=False,
        altnames=("enp1s0",),
        permanent_mac="02:00:00:aa:bb:77",
        counters=Counters(receive_bytes=7, transmit_dropped=9, collisions=1),
        transmit_queue_length=1000,
        link_type=65534,
    )
    manager.links["eth0"] = replace(
        there,
        link=link,
        master="bond0",
        pci_bdf="0000:01:00.0",
        device_id="nic",
        queues=Queues(combined=4),
        addresses=(
            Address(
                index=2,
                interface=ip_interface("192.0.2.10/24"),
                broadcast=ip_address("192.0.2.255"),  # type: ignore[arg-type]
                flags=AddressFlag.PERMANENT | AddressFlag.SECONDARY,
            ),
            Address(
                index=2,
                interface=ip_interface("fe80::1/64"),
                scope=Scope.LINK,
                flags=AddressFlag.PERMANENT | AddressFlag.TENTATIVE,
                protocol=3,
            ),
        ),
    )
    manager.links["eth1"] = replace(manager.links["eth1"], container_id="web")
    first, second = (await stub.ListInterfaces(pb.ListInterfacesRequest())).interfaces
    assert list(first.flags) == [*("NO-CARRIER", "BROADCAST", "NOARP", "PROMISC", "SLAVE", "UP")]
    assert (first.operational_state, first.carrier) == ("lowerlayerdown", False)
    assert (first.link_type, first.kind, first.driver) == ("none", "", "virtio_net")
    assert (first.pci_path, first.pci_bdf, first.device_id) == ("02/00", "0000:01:00.0", "nic")
    assert (first.master, first.permanent_mac) == ("bond0", "02:00:00:aa:bb:77")
    assert (list(first.alternative_names), first.transmit_queue_length) == (["enp1s0"], 1000)
    assert first.queues == pb.Queues(combined=4)
    assert not second.HasField("queues")
    assert first.statistics == pb.InterfaceStatistics(
        receive_bytes=7, transmit_dropped=9, collisions=1
    )
    assert list(first.addresses) == [
        pb.InterfaceAddress(
            cidr="192.0.2.10/24",
            broadcast="192.0.2.255",
            scope="global",
            flags=["permanent", "secondary"],
        ),
        pb.InterfaceAddress(
            cidr="fe80::1/64", scope="link", flags=["permanent", "tentative"], of_kernel=True
        ),
    ]
    assert (second.container_id, second.operational_state, second.link_type) == (
        *("web", "up", "ether"),
    )
    assert list(second.flags) == ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"]


# Routes.


def v4(*routes: pb.Route, table: int = 0) -> pb.ApplyRoutesRequest:
    return pb.ApplyRoutesRequest(sets=[pb.RouteSet(family=V4, table=table, routes=routes)])


def v6(*routes: pb.Route) -> pb.ApplyRoutesRequest:
    return pb.ApplyRoutesRequest(sets=[pb.RouteSet(family=V6, routes=routes)])


async def parsed(
    stub: NetworkAsyncStub, manager: FakeNetwork, request: pb.ApplyRoutesRequest
) -> RouteWish:
    await stub.ApplyRoutes(request)
    ((route,),) = (each.routes for each in manager.routes_wishes.pop().sets)
    return route


@pytest.mark.parametrize(
    ("family", "destination", "prefix"),
    [
        (V6, "fc00::2", "fc00::2/128"),
        (V4, "192.0.2.9", "192.0.2.9/32"),
        (V6, "::/0", "::/0"),
        (V4, "0.0.0.0/0", "0.0.0.0/0"),
        (V4, "default", "0.0.0.0/0"),
        (V6, "default", "::/0"),
        (V4, "", "0.0.0.0/0"),
        (V6, "", "::/0"),
        (V6, "2001:DB8:0:0::/64", "2001:db8::/64"),
        (V6, "::ffff:192.0.2.0/120", "::ffff:192.0.2.0/120"),
    ],
)
async def test_destinations_of_both_families(
    stub: NetworkAsyncStub,
    manager: FakeNetwork,
    family: pb.AddressFamily.ValueType,
    destination: str,
    prefix: str,
) -> None:
    """An address alone is a host route: pyroute2 once made the default route of it."""
    route = pb.Route(destination=destination, device="eth0")
    request = pb.ApplyRoutesRequest(sets=[pb.RouteSet(family=family, routes=[route])])
    wish = await parsed(stub, manager, request)
    assert wish.destination == ip_network(prefix)
    assert wish.hops == (HopWish(device="eth0"),)


@pytest.mark.parametrize(
    ("text", "gateway", "shown"),
    [
        ("2000::0002", "2000::2", "2000::2"),
        ("2001:DB8::1", "2001:db8::1", "2001:db8::1"),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.1", "::ffff:192.0.2.1"),
        ("2001:db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1"),
    ],
)
async def test_gateways_are_canonical_and_keep_their_family(
    stub: NetworkAsyncStub, manager: FakeNetwork, text: str, gateway: str, shown: str
) -> None:
    """RFC 5952: lower case, `::` for two groups or more, mapped addresses mixed."""
    request = v6(pb.Route(destination="2001:db8:1::/48", gateway=text))
    state = await stub.ApplyRoutes(request)
    (route,) = manager.routes_wishes[0].sets[0].routes
    assert route.hops == (HopWish(gateway=ip_address(gateway)),)
    assert route.hops[0].gateway.version == 6  # type: ignore[union-attr]
    assert state.sets[0].routes[0].gateway == shown


async def test_an_ipv4_route_may_have_an_ipv6_gateway(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    """RFC 9229; the kernel calls it RTA_VIA."""
    wish = await parsed(stub, manager, v4(pb.Route(gateway="fe80::1", device="eth0")))
    assert wish.hops == (HopWish(gateway=ip_address("fe80::1"), device="eth0"),)


async def test_a_default_route_of_one_family_leaves_the_other(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    """Without a destination and gateway nothing but the set's family tells them apart."""
    await stub.ApplyRoutes(v4(pb.Route(gateway="192.0.2.1", device="eth0")))
    state = await stub.ApplyRoutes(v6(pb.Route(device="eth0")))
    assert [(one.family, one.routes[0].destination) for one in state.sets] == [
        (V4, "default"),
        (V6, "default"),
    ]


async def test_every_part_of_a_route_arrives(stub: NetworkAsyncStub, manager: FakeNetwork) -> None:
    wish = await parsed(
        stub,
        manager,
        v4(
            pb.Route(
                destination="10.0.0.0/8",
                gateway="192.0.2.1",
                device="eth0",
                source="192.0.2.10",
                metric=100,
                scope="site",
                onlink=True,
                mtu=1400,
            ),
            table=1000,
        ),
    )
    assert wish == RouteWish(
        destination=ip_network("10.0.0.0/8"),
        hops=(HopWish(gateway=ip_address("192.0.2.1"), device="eth0", onlink=True),),
        source=ip_address("192.0.2.10"),
        metric=100,
        scope=Scope.SITE,
        mtu=1400,
    )


async def test_several_ways_of_a_route(stub: NetworkAsyncStub, manager: FakeNetwork) -> None:
    hops = [
        pb.NextHop(gateway="192.0.2.1", weight=256),
        pb.NextHop(device="eth1"),
        pb.NextHop(gateway="192.0.2.2", device="eth0", onlink=True),
    ]
    wish = await parsed(stub, manager, v4(pb.Route(next_hops=hops)))
    assert wish.hops == (
        HopWish(gateway=ip_address("192.0.2.1"), weight=256),
        HopWish(device="eth1"),
        HopWish(gateway=ip_address("192.0.2.2"), device="eth0", onlink=True),
    )


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        (pb.ROUTE_TYPE_BLACKHOLE, RouteType.BLACKHOLE),
        (pb.ROUTE_TYPE_UNREACHABLE, RouteType.UNREACHABLE),
        (pb.ROUTE_TYPE_PROHIBIT, RouteType.PROHIBIT),
        (pb.ROUTE_TYPE_THROW, RouteType.THROW),
    ],
)
async def test_routes_that_lead_nowhere(
    stub: NetworkAsyncStub,
    manager: FakeNetwork,
    word: pb.RouteType.ValueType,
    kind: RouteType,
) -> None:
    wish = await parsed(stub, manager, v4(pb.Route(destination="10.0.0.0/8", type=word)))
    assert (wish.type, wish.hops) == (kind, ())
    with_way = v4(pb.Route(destination="10.0.0.0/8", type=word, device="lo"))
    await bad(stub.ApplyRoutes(with_way), "sets[0].routes[0]")


ETH = {"device": "eth0"}
BAD_ROUTES: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"onlink": True}, ""),
    ({"onlink": True, "gateway": "192.0.2.1"}, "onlink"),
    ({"onlink": True, **ETH}, "onlink"),
    ({"destination": "192.0.2.9/24", **ETH}, "destination"),
    ({"destination": "2001:db8::/64", **ETH}, "destination"),
    ({"destination": "192.0.2.0/255.255.255.0", **ETH}, "destination"),
    ({"destination": "192.0.2.0/33", **ETH}, "destination"),
    ({"destination": "10/8", **ETH}, "destination"),
    ({"destination": "010.0.0.0/8", **ETH}, "destination"),
    ({"destination": "any", **ETH}, "destination"),
    ({"destination": "0.0.0.0\0", **ETH}, "destination"),
    ({"gateway": "0.0.0.0"}, "gateway"),
    ({"gateway": "224.0.0.1"}, "gateway"),
    ({"gateway": "192.0.2.1/24"}, "gateway"),
    ({"gateway": "fe80::1%eth0"}, "gateway"),
    ({"gateway": "router"}, "gateway"),
    ({"device": "a b"}, "device"),
    ({"source": "2001:db8::1", **ETH}, "source"),
    ({"source": "192.0.2.1/24", **ETH}, "source"),
    ({"scope": "universe", **ETH}, "scope"),
    ({"mtu": 65_521, **ETH}, "mtu"),
    ({"type": pb.ROUTE_TYPE_LOCAL, **ETH}, "type"),
    ({"type": pb.ROUTE_TYPE_BROADCAST, **ETH}, "type"),
    ({"type": pb.ROUTE_TYPE_MULTICAST, **ETH}, "type"),
    ({"type": pb.ROUTE_TYPE_ANYCAST, **ETH}, "type"),
    ({"type": 99, **ETH}, "type"),
    ({"next_hops": [pb.NextHop(device="eth0")], **ETH}, "next_hops"),
    ({"next_hops": [pb.NextHop(device="eth0")], "gateway": "192.0.2.1"}, "next_hops"),
    ({"next_hops": [pb.NextHop(device="eth0"), pb.NextHop(weight=2)]}, "next_hops[1]"),
    ({"next_hops": [pb.NextHop(device="eth0", weight=257)]}, "next_hops[0].weight"),
    ({"next_hops": [pb.NextHop(gateway="::")]}, "next_hops[0].gateway"),
    ({"next_hops": [pb.NextHop(device="eth0")] * 257}, "next_hops"),
]


@pytest.mark.parametrize(("parts", "member"), BAD_ROUTES)
async def test_a_bad_route_is_named(
    stub: NetworkAsyncStub, manager: FakeNetwork, parts: dict[str, Any], member: str
) -> None:
    fine = pb.Route(destination="198.51.100.0/24", device="eth0")
    request = v4(fine, pb.Route(**parts))
    request.sets.add(family=V6)
    where = f"sets[0].routes[1]{'.' if member else ''}{member}"
    await bad(stub.ApplyRoutes(request), where)
    assert not manager.touched


async def test_bits_behind_the_prefix_are_refused_with_the_prefix_that_is_meant(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    request = v4(pb.Route(destination="192.0.2.9/24", device="eth0"))
    answer = await bad(stub.ApplyRoutes(request), "sets[0].routes[0].destination")
    assert "192.0.2.0/24" in answer.message
    request = v6(pb.Route(destination="2001:db8::9/32", device="eth0"))
    answer = await bad(stub.ApplyRoutes(request), "sets[0].routes[0].destination")
    assert "2001:db8::/32" in answer.message


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ApplyRoutesRequest(sets=[pb.RouteSet()]), "sets[0].family"),
        (pb.ApplyRoutesRequest(sets=[pb.RouteSet(family=9)]), "sets[0].family"),  # type: ignore[arg-type]
        (v4(table=255), "sets[0].table"),
        (v4(pb.Route(device="eth0"), table=255), "sets[0].table"),
        (
            pb.ApplyRoutesRequest(sets=[pb.RouteSet(family=V4), pb.RouteSet(family=V4, table=254)]),
            "sets",
        ),
        (pb.ApplyRoutesRequest(rules=[pb.RuleSet()]), "rules[0].family"),
        (
            pb.ApplyRoutesRequest(rules=[pb.RuleSet(family=V4), pb.RuleSet(family=V4)]),
            "rules",
        ),
    ],
)
async def test_bad_sets_are_named(
    stub: NetworkAsyncStub, manager: FakeNetwork, request_: pb.ApplyRoutesRequest, field: str
) -> None:
    await bad(stub.ApplyRoutes(request_), field)
    assert not manager.touched


async def test_one_destination_and_metric_is_one_route(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    twice = v4(
        pb.Route(device="eth0", metric=5),
        pb.Route(device="eth0", metric=6),
        pb.Route(destination="0.0.0.0/0", gateway="192.0.2.1", metric=5),
    )
    answer = await bad(stub.ApplyRoutes(twice), "sets[0].routes[2]")
    assert "routes[0]" in answer.message
    assert "next_hops" in answer.fields["hint"]
    # 0 is 1024 with IPv6, whose routes on link are one for each interface.
    same = v6(pb.Route(device="eth0"), pb.Route(device="eth0", metric=1024))
    await bad(stub.ApplyRoutes(same), "sets[0].routes[1]")
    await stub.ApplyRoutes(v6(pb.Route(device="eth0"), pb.Route(device="eth1")))


async def test_too_many_routes_are_refused_before_they_are_looked_at(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    many = v4(*[pb.Route(device="eth0")] * (limits.ROUTES // 2))
    many.sets.add(family=V6, routes=[pb.Route()] * (limits.ROUTES // 2 + 1))
    await bad(stub.ApplyRoutes(many), "sets")
    rules = [pb.Rule()] * (limits.RULES + 1)
    request = pb.ApplyRoutesRequest(rules=[pb.RuleSet(family=V4, rules=rules)])
    await bad(stub.ApplyRoutes(request), "rules")
    assert not manager.touched


async def test_others_are_answered_while_many_routes_are_read(
    stub: NetworkAsyncStub, manager: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand of them take seconds."""
    answered = threading.Event()

    def slowly(told: pb.ApplyRoutesRequest) -> RoutesWish:
        assert answered.wait(20)
        return routes_wish(told)

    monkeypatch.setattr(service, "routes_wish", slowly)
    call = asyncio.create_task(_finished(stub.ApplyRoutes(v4(pb.Route(device="eth0")))))
    await stub.ListInterfaces(pb.ListInterfacesRequest())
    assert not manager.routes_wishes
    answered.set()
    assert len((await call).sets) == 1


async def _finished(answer: Awaitable[pb.RoutesState]) -> pb.RoutesState:
    return await answer


async def test_lists_are_asked_of_a_table_and_a_family(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    await stub.ListRoutes(pb.ListRoutesRequest())
    await stub.ListRoutes(pb.ListRoutesRequest(table=7, family=V6))
    assert manager.asked == [(0, None), (7, Family.V6)]
    await bad(stub.ListRoutes(pb.ListRoutesRequest(family=9)), "family")  # type: ignore[arg-type]


def _kernels_routes() -> list[Route]:
    """What a kernel has by itself of an interface with 192.0.2.10/24 and fe80::1/64."""
    rows = [
        (Family.V4, 254, "192.0.2.0/24", RouteType.UNICAST, Scope.LINK),
        (Family.V4, 255, "192.0.2.10/32", RouteType.LOCAL, Scope.HOST),
        (Family.V4, 255, "192.0.2.255/32", RouteType.BROADCAST, Scope.LINK),
        (Family.V6, 254, "fe80::/64", RouteType.UNICAST, Scope.UNIVERSE),
        (Family.V6, 255, "fe80::/128", RouteType.ANYCAST, Scope.UNIVERSE),
        (Family.V6, 255, "ff00::/8", RouteType.MULTICAST, Scope.UNIVERSE),
    ]
    return [
        Route(
            family=family,
            table=table,
            destination=ip_network(destination),
            type=kind,
            hops=(Hop(index=2),),
            scope=scope,
            protocol=Protocol.KERNEL,
        )
        for family, table, destination, kind, scope in rows
    ]


async def test_what_is_listed_can_be_applied(stub: NetworkAsyncStub, manager: FakeNetwork) -> None:
    """The kernel's own routes and rules are shown, and left out of a request."""
    advertised = Route(
        family=Family.V6,
        table=254,
        destination=ip_network("::/0"),
        hops=(Hop(gateway=ip_address("fe80::2"), index=2),),
        protocol=Protocol.RA,
    )
    manager.routes_there = [*_kernels_routes(), advertised]
    applied = v4(
        pb.Route(destination="10.0.0.0/8", gateway="192.0.2.1", device="eth0", mtu=1400),
        pb.Route(destination="10.1.0.0/16", type=pb.ROUTE_TYPE_BLACKHOLE),
        pb.Route(next_hops=[pb.NextHop(device="eth0"), pb.NextHop(device="eth1", weight=2)]),
    )
    applied.rules.add(
        family=V4,
        rules=[pb.Rule(priority=100, table=7, mark=1, mark_mask=3, source="10.0.0.0/8")],
    )
    await stub.ApplyRoutes(applied)
    before = tuple(manager.routes_there)
    listed = await stub.ListRoutes(pb.ListRoutesRequest())
    tables = [(one.family, one.table) for one in listed.sets]
    assert tables == [(V4, 254), (V4, 255), (V6, 254), (V6, 255)]
    manager.routes_there = [r for r in before if r.protocol != Protocol.RA]
    manager.routes_there.append(advertised)
    again = await stub.ApplyRoutes(pb.ApplyRoutesRequest(sets=listed.sets, rules=listed.rules))
    assert {r.key for r in manager.routes_there} == {
        r.key for r in before if r.protocol != Protocol.RA
    }
    assert [(one.family, one.table) for one in again.sets][:2] == tables[:2]
    wish = manager.routes_wishes[-1]
    assert {(one.family, one.table) for one in wish.sets} == {(Family.V4, 254), (Family.V6, 254)}
    assert [len(one.rules) for one in wish.rules] == [1, 0]


async def test_a_listed_route_has_the_words_of_ip(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    manager.routes_there = [
        Route(
            family=Family.V4,
            table=254,
            destination=ip_network("0.0.0.0/0"),
            hops=(Hop(gateway=ip_address("fe80::1"), index=2, onlink=True),),
            source=ip_address("192.0.2.10"),
            metric=100,
            protocol=Protocol.DHCP,
            mtu=1400,
            flags=0x11,
        ),
        Route(
            family=Family.V6,
            table=254,
            destination=ip_network("2001:db8::/32"),
            type=RouteType.UNREACHABLE,
            hops=(Hop(index=1),),
            metric=1024,
            protocol=186,
        ),
        Route(
            family=Family.V6,
            table=254,
            destination=ip_network("::/0"),
            hops=(Hop(index=2, weight=3), Hop(index=77, gateway=ip_address("fe80::9"))),
        ),
    ]
    first, second = (await stub.ListRoutes(pb.ListRoutesRequest())).sets
    assert list(first.routes) == [
        pb.Route(
            destination="default",
            gateway="fe80::1",
            device="eth0",
            source="192.0.2.10",
            metric=100,
            scope="global",
            onlink=True,
            mtu=1400,
            type=pb.ROUTE_TYPE_UNICAST,
            protocol="dhcp",
            flags=["dead", "linkdown", "onlink"],
        )
    ]
    # The kernel tells the loopback for those that lead nowhere; 186 is bgp's.
    assert list(second.routes) == [
        pb.Route(
            destination="2001:db8::/32",
            metric=1024,
            scope="global",
            type=pb.ROUTE_TYPE_UNREACHABLE,
            protocol="186",
        ),
        pb.Route(
            destination="default",
            scope="global",
            type=pb.ROUTE_TYPE_UNICAST,
            protocol="boot",
            next_hops=[
                pb.NextHop(device="eth0", weight=3),
                pb.NextHop(device="if77", gateway="fe80::9", weight=1),
            ],
        ),
    ]


# Rules.


def ruled(*rules: pb.Rule, family: pb.AddressFamily.ValueType = V4) -> pb.ApplyRoutesRequest:
    return pb.ApplyRoutesRequest(rules=[pb.RuleSet(family=family, rules=rules)])


RULES = [
    (
        pb.Rule(priority=1, table=7, source="10.0.0.0/8", destination="192.0.2.9"),
        Rule(
            family=Family.V4,
            priority=1,
            table=7,
            source=ip_network("10.0.0.0/8"),
            destination=ip_network("192.0.2.9/32"),
        ),
    ),
    (
        pb.Rule(priority=2, table=2**32 - 1, mark=0, incoming="eth0", outgoing="eth1"),
        Rule(
            family=Family.V4,
            priority=2,
            table=2**32 - 1,
            mark=0,
            incoming="eth0",
            outgoing="eth1",
        ),
    ),
    (
        pb.Rule(priority=3, table=254, mark=16, mark_mask=0xF0, invert=True, ip_protocol=6),
        Rule(
            family=Family.V4,
            priority=3,
            table=254,
            mark=16,
            mark_mask=0xF0,
            invert=True,
            ip_protocol=6,
        ),
    ),
    (
        pb.Rule(priority=32765, action=pb.RULE_ACTION_TABLE, table=254, suppress_prefix_length=0),
        Rule(family=Family.V4, priority=32765, table=254, suppress_prefix_length=0),
    ),
    *(
        (
            pb.Rule(priority=5, action=word, source="0.0.0.0/0", destination="default"),
            Rule(family=Family.V4, priority=5, action=action),
        )
        for word, action in (
            (pb.RULE_ACTION_BLACKHOLE, RuleAction.BLACKHOLE),
            (pb.RULE_ACTION_UNREACHABLE, RuleAction.UNREACHABLE),
            (pb.RULE_ACTION_PROHIBIT, RuleAction.PROHIBIT),
        )
    ),
]


@pytest.mark.parametrize(("told", "rule"), RULES)
async def test_rules_arrive_and_are_told(
    stub: NetworkAsyncStub, manager: FakeNetwork, told: pb.Rule, rule: Rule
) -> None:
    state = await stub.ApplyRoutes(ruled(told))
    assert manager.routes_wishes[0].rules[0].rules == (rule,)
    first, second = state.rules
    assert (first.family, second.family) == (V4, V6)
    assert [one.priority for one in first.rules] == [0, told.priority, 32766, 32767]
    expected = pb.Rule()
    expected.CopyFrom(told)
    expected.action = told.action or pb.RULE_ACTION_TABLE
    if not rule.source:
        expected.source = ""
    expected.destination = "192.0.2.9/32" if rule.destination else ""
    assert first.rules[1] == expected


BAD_RULES: list[tuple[dict[str, Any], str]] = [
    ({"priority": 0}, "priority"),
    ({"priority": 32766}, "priority"),
    ({"priority": 2**32 - 1}, "priority"),
    ({"table": 0}, "table"),
    ({"action": pb.RULE_ACTION_PROHIBIT}, "table"),
    ({"action": 9}, "action"),
    ({"source": "10.0.0.1/8"}, "source"),
    ({"source": "2001:db8::/32"}, "source"),
    ({"destination": "x"}, "destination"),
    ({"incoming": "a/b"}, "incoming"),
    ({"outgoing": LONG_NAME}, "outgoing"),
    ({"mark_mask": 1}, "mark_mask"),
    ({"ip_protocol": 256}, "ip_protocol"),
    ({"suppress_prefix_length": 33}, "suppress_prefix_length"),
]


@pytest.mark.parametrize(("parts", "member"), BAD_RULES)
async def test_a_bad_rule_is_named(
    stub: NetworkAsyncStub, manager: FakeNetwork, parts: dict[str, Any], member: str
) -> None:
    request = ruled(pb.Rule(priority=1, table=1), pb.Rule(**{"priority": 2, "table": 7, **parts}))
    await bad(stub.ApplyRoutes(request), f"rules[0].rules[1].{member}")
    assert not manager.touched


async def test_no_two_rules_have_one_priority(stub: NetworkAsyncStub, manager: FakeNetwork) -> None:
    await bad(
        stub.ApplyRoutes(ruled(pb.Rule(priority=1, table=1), pb.Rule(priority=1, table=2))),
        "rules[0].rules",
    )


# Neighbours.


async def test_neighbours_and_forwarding_entries_arrive_and_are_told(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    request = pb.ApplyNeighborsRequest(
        neighbors=[
            pb.Neighbor(address="192.0.2.9", mac="02-00-00-00-00-09", device="eth1"),
            pb.Neighbor(address="2001:DB8::9", mac=MAC, device="eth0", state="noarp"),
            pb.Neighbor(address="192.0.2.8", device="eth0", proxy=True),
            pb.Neighbor(address="192.0.2.7", device="eth0", absent=True),
        ],
        forwarding=[
            pb.ForwardingEntry(mac="00:00:00:00:00:00", device="eth1", destination="192.0.2.5"),
            pb.ForwardingEntry(mac=MAC, device="eth0", vlan_id=100, of_master=True, state="static"),
        ],
        exact_devices=["eth0"],
    )
    state = await stub.ApplyNeighbors(request)
    assert list(state.neighbors) == [
        pb.Neighbor(address="192.0.2.8", device="eth0", proxy=True, state="permanent"),
        pb.Neighbor(address="2001:db8::9", mac=MAC, device="eth0", state="noarp"),
        pb.Neighbor(address="192.0.2.9", mac="02:00:00:00:00:09", device="eth1", state="permanent"),
    ]
    assert list(state.forwarding) == [
        pb.ForwardingEntry(mac=MAC, device="eth0", vlan_id=100, of_master=True, state="static"),
        pb.ForwardingEntry(
            mac="00:00:00:00:00:00", device="eth1", destination="192.0.2.5", state="permanent"
        ),
    ]
    (wish,) = manager.neighbors_wishes
    assert [one.state for one in wish.forwarding] == [
        NeighborState.PERMANENT,
        NeighborState.NOARP,
    ]
    assert wish.exact_devices == ("eth0",)
    listed = await stub.ListNeighbors(pb.ListNeighborsRequest())
    assert (listed.neighbors, list(listed.changed)) == (state.neighbors, [])


async def test_what_the_kernel_learnt_is_told(stub: NetworkAsyncStub, manager: FakeNetwork) -> None:
    rows = [
        (NeighborState.FAILED, NeighborFlag.NONE, "failed"),
        (NeighborState.INCOMPLETE, NeighborFlag.NONE, "incomplete"),
        (NeighborState.DELAY, NeighborFlag.NONE, "delay"),
        (NeighborState.PROBE, NeighborFlag.NONE, "probe"),
        (NeighborState.STALE, NeighborFlag.ROUTER, "stale"),
        (NeighborState.NONE, NeighborFlag.NONE, "none"),
    ]
    manager.neighbors_there = [
        Neighbor(index=2, address=ip_address(f"fe80::{n}"), state=state, flags=flags)
        for n, (state, flags, _) in enumerate(rows)
    ]
    manager.forwarding_there = [
        Forwarding(index=2, mac=MAC, state=NeighborState.STALE, flags=NeighborFlag.MASTER)
    ]
    state = await stub.ListNeighbors(pb.ListNeighborsRequest())
    assert [(one.state, one.router) for one in state.neighbors] == [
        (word, word == "stale") for _, _, word in rows
    ]
    assert state.forwarding[0].state == "dynamic"


def neighbor(**parts: Any) -> pb.ApplyNeighborsRequest:
    fields = {"address": "192.0.2.9", "mac": MAC, "device": "eth0", **parts}
    return pb.ApplyNeighborsRequest(neighbors=[pb.Neighbor(**fields)])


def entry(**parts: Any) -> pb.ApplyNeighborsRequest:
    fields = {"mac": MAC, "device": "eth0", **parts}
    return pb.ApplyNeighborsRequest(forwarding=[pb.ForwardingEntry(**fields)])


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (neighbor(address=""), "neighbors[0].address"),
        (neighbor(address="192.0.2.9/32"), "neighbors[0].address"),
        (neighbor(address="::"), "neighbors[0].address"),
        (neighbor(device=""), "neighbors[0].device"),
        (neighbor(mac=""), "neighbors[0].mac"),
        (neighbor(mac=f"{MAC}:00"), "neighbors[0].mac"),
        (neighbor(proxy=True), "neighbors[0].mac"),
        (neighbor(state="failed"), "neighbors[0].state"),
        (neighbor(state="x"), "neighbors[0].state"),
        (entry(mac=""), "forwarding[0].mac"),
        (entry(device=""), "forwarding[0].device"),
        (entry(vlan_id=4095), "forwarding[0].vlan_id"),
        (entry(destination="x"), "forwarding[0].destination"),
        (entry(destination="192.0.2.1", of_master=True), "forwarding[0].destination"),
        (entry(state="stale"), "forwarding[0].state"),
        (pb.ApplyNeighborsRequest(neighbors=neighbor().neighbors[:] * 2), "neighbors"),
        (pb.ApplyNeighborsRequest(forwarding=entry().forwarding[:] * 2), "forwarding"),
        (pb.ApplyNeighborsRequest(exact_devices=["eth0", ""]), "exact_devices[1]"),
        (pb.ApplyNeighborsRequest(exact_devices=["eth0"] * 1025), "exact_devices"),
    ],
)
async def test_bad_neighbours_are_named(
    stub: NetworkAsyncStub, manager: FakeNetwork, request_: pb.ApplyNeighborsRequest, field: str
) -> None:
    await bad(stub.ApplyNeighbors(request_), field)
    assert not manager.touched


async def test_too_many_neighbours_are_refused(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    half = limits.NEIGHBORS // 2
    request = pb.ApplyNeighborsRequest(
        neighbors=[pb.Neighbor()] * half, forwarding=[pb.ForwardingEntry()] * (half + 1)
    )
    assert (await refused(stub.ApplyNeighbors(request))).fields["field"] == "neighbors"
    assert not manager.touched


# Names of hosts.


async def test_dns_arrives_and_is_told(stub: NetworkAsyncStub, manager: FakeNetwork) -> None:
    request = pb.ApplyDnsRequest(
        servers=["192.0.2.53", "2001:DB8::53", "FE80::1%eth0"],
        searches=["example.org", "svc.cluster.local.", "_tcp.example.org", "."],
        options=["ndots:5", "rotate", "use-vc", "timeout:1"],
        hosts=[pb.HostEntry(address="2001:DB8::1", names=["db.example.org", "db"])],
        hostname="web-1.example.org",
    )
    state = await stub.ApplyDns(request)
    (wish,) = manager.dns_wishes
    assert wish.servers == (
        ip_address("192.0.2.53"),
        ip_address("2001:db8::53"),
        "fe80::1%eth0",
    )
    assert wish.searches == tuple(request.searches)
    assert wish.options == tuple(request.options)
    assert wish.hosts == (
        HostEntry(address=ip_address("2001:db8::1"), names=("db.example.org", "db")),
    )
    assert (wish.hostname, state.hostname) == ("web-1.example.org", "web-1.example.org")
    assert "nameserver fe80::1%eth0\n" in state.resolv_conf
    assert list(state.warnings) == ["/etc/hosts: a dangling link"]


async def test_dns_is_told_so_that_a_part_can_be_changed(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    """`wanted` is what ApplyDns takes, and means the same wish."""
    before = await stub.GetDns(pb.GetDnsRequest())
    assert (before.HasField("wanted"), before.hostname) == (False, "innkeeper")
    request = pb.ApplyDnsRequest(
        servers=["192.0.2.53", "2001:DB8::53", "FE80::1%eth0"],
        searches=["example.org"],
        options=["ndots:5"],
        hosts=[pb.HostEntry(address="2001:DB8::1", names=["db.example.org", "db"])],
        hostname="web",
    )
    assert list((await stub.ApplyDns(request)).changed) == ["it"]
    state = await stub.GetDns(pb.GetDnsRequest())
    assert list(state.wanted.servers) == ["192.0.2.53", "2001:db8::53", "fe80::1%eth0"]
    assert list(state.changed) == []
    again = await stub.ApplyDns(state.wanted)
    assert (again.wanted, list(again.changed)) == (state.wanted, [])
    first, second = manager.dns_wishes
    assert first == second


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"servers": ["192.0.2.53", "dns"]}, "servers[1]"),
        ({"servers": ["192.0.2.53/32"]}, "servers[0]"),
        ({"servers": ["192.0.2.53\noptions debug"]}, "servers[0]"),
        ({"servers": ["2001:db8::53%eth0"]}, "servers[0]"),
        ({"servers": ["fe80::1%"]}, "servers[0]"),
        ({"servers": ["fe80::1%a b"]}, "servers[0]"),
        ({"servers": ["0.0.0.0"]}, "servers[0]"),
        ({"servers": ["192.0.2.53"] * 33}, "servers"),
        ({"searches": ["a b"]}, "searches[0]"),
        ({"searches": ["ok", "a\nnameserver 192.0.2.6"]}, "searches[1]"),
        ({"searches": [""]}, "searches[0]"),
        ({"searches": ["-a"]}, "searches[0]"),
        ({"searches": ["x" * 64]}, "searches[0]"),
        ({"searches": [".".join(["x" * 50] * 6)]}, "searches[0]"),
        ({"searches": ["a"] * 33}, "searches"),
        ({"options": ["ndots: 5"]}, "options[0]"),
        ({"options": ["a\nb"]}, "options[0]"),
        ({"options": [""]}, "options[0]"),
        ({"options": ["rotate"] * 33}, "options"),
        ({"hosts": [pb.HostEntry(address="x", names=["a"])]}, "hosts[0].address"),
        ({"hosts": [pb.HostEntry(address="192.0.2.1")]}, "hosts[0].names"),
        ({"hosts": [pb.HostEntry(address="192.0.2.1", names=["a", "b c"])]}, "hosts[0].names[1]"),
        ({"hosts": [pb.HostEntry(address="192.0.2.1", names=["a#b"])]}, "hosts[0].names[0]"),
        ({"hosts": [pb.HostEntry(address="192.0.2.1", names=["a"] * 65)]}, "hosts[0].names"),
        ({"hosts": [pb.HostEntry(address="192.0.2.1", names=["a"])] * 4097}, "hosts"),
        ({"hostname": "a b"}, "hostname"),
        ({"hostname": "x" * 65}, "hostname"),
    ],
)
async def test_bad_dns_is_named(
    stub: NetworkAsyncStub, manager: FakeNetwork, parts: dict[str, Any], field: str
) -> None:
    """Each of these would be another line, another word or none in the file."""
    await bad(stub.ApplyDns(pb.ApplyDnsRequest(**parts)), field)
    assert not manager.touched


# Sysctls and the firewall.


async def test_sysctls_are_told_before_and_after(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    values = {"net.ipv4.ip_forward": "1", "net/ipv4/conf/eth0.100/forwarding": ""}
    state = await stub.ApplySysctls(pb.ApplySysctlsRequest(values=values))
    assert dict(state.values) == values
    assert state.former["net.ipv4.ip_forward"] == "0"
    answer = await refused(stub.ApplySysctls(pb.ApplySysctlsRequest(values={"kernel.panic": "1"})))
    assert (answer.code, answer.reason) == (
        grpc.StatusCode.PERMISSION_DENIED,
        "SYSCTL_NOT_ALLOWED",
    )


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"": "1"}, "values"),
        ({"net ipv4": "1"}, "values"),
        ({"net.ipv4\n": "1"}, "values"),
        ({"x" * 256: "1"}, "values"),
        ({"net.x": "1\n2"}, "values[net.x]"),
        ({"net.x": "1\0"}, "values[net.x]"),
        ({"net.x": "1" * 4096}, "values[net.x]"),
        ({f"net.n{n}": "1" for n in range(257)}, "values"),
    ],
)
async def test_bad_sysctls_are_named(
    stub: NetworkAsyncStub, manager: FakeNetwork, values: dict[str, str], field: str
) -> None:
    await bad(stub.ApplySysctls(pb.ApplySysctlsRequest(values=values)), field)
    assert not manager.touched


@pytest.mark.parametrize(
    ("word", "own"),
    [
        (pb.FIREWALL_FORMAT_NFTABLES, FirewallFormat.NFTABLES),
        (pb.FIREWALL_FORMAT_IPTABLES, FirewallFormat.IPTABLES),
        (pb.FIREWALL_FORMAT_IP6TABLES, FirewallFormat.IP6TABLES),
    ],
)
async def test_rules_of_each_format_go_both_ways(
    stub: NetworkAsyncStub,
    manager: FakeNetwork,
    word: pb.FirewallFormat.ValueType,
    own: FirewallFormat,
) -> None:
    request = pb.SetFirewallRequest(format=word, rules=b"*filter\nCOMMIT\n", timeout_seconds=5)
    assert await stub.SetFirewall(request) == pb.FirewallState(format=word, rules=request.rules)
    assert await stub.GetFirewall(pb.GetFirewallRequest(format=word)) == pb.FirewallState(
        format=word, rules=request.rules
    )
    assert (manager.asked, manager.timeouts[0]) == ([own], 5)


async def test_the_guest_chooses_a_format_where_none_is_said(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    state = await stub.GetFirewall(pb.GetFirewallRequest())
    assert (state.format, manager.asked) == (pb.FIREWALL_FORMAT_NFTABLES, [None])
    await bad(stub.GetFirewall(pb.GetFirewallRequest(format=9)), "format")  # type: ignore[arg-type]


IPTABLES = pb.FIREWALL_FORMAT_IPTABLES


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.SetFirewallRequest(rules=b"x"), "format"),
        (pb.SetFirewallRequest(format=9, rules=b"x"), "format"),  # type: ignore[arg-type]
        (pb.SetFirewallRequest(format=IPTABLES, rules=b"a\0b"), "rules"),
        (pb.SetFirewallRequest(format=IPTABLES, rules=bytes((8 << 20) + 1)), "rules"),
        (pb.SetFirewallRequest(format=IPTABLES, timeout_seconds=-1), "timeout_seconds"),
    ],
)
async def test_a_bad_firewall_is_named(
    stub: NetworkAsyncStub, manager: FakeNetwork, request_: pb.SetFirewallRequest, field: str
) -> None:
    await bad(stub.SetFirewall(request_), field)
    assert not manager.touched


async def test_the_tools_own_words_arrive(stub: NetworkAsyncStub, manager: FakeNetwork) -> None:
    manager.error = invalid(
        "iptables-restore: line 3 failed", reason=Reason.FIREWALL_REFUSED, line=3
    )
    request = pb.SetFirewallRequest(format=IPTABLES, rules=b"bad")
    answer = await refused(stub.SetFirewall(request))
    assert (answer.code, answer.reason) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "FIREWALL_REFUSED",
    )
    assert "line 3 failed" in answer.message


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("RemoveInterface", pb.RemoveInterfaceRequest(name="v0")),
        ("ListInterfaces", pb.ListInterfacesRequest()),
        ("ApplyRoutes", pb.ApplyRoutesRequest()),
        ("ListRoutes", pb.ListRoutesRequest()),
        ("ApplyNeighbors", pb.ApplyNeighborsRequest()),
        ("ListNeighbors", pb.ListNeighborsRequest()),
        ("ApplyDns", pb.ApplyDnsRequest()),
        ("ApplySysctls", pb.ApplySysctlsRequest()),
        ("GetFirewall", pb.GetFirewallRequest()),
        ("SetFirewall", pb.SetFirewallRequest(format=IPTABLES)),
    ],
)
async def test_each_call_has_the_time_of_its_caller(
    stub: NetworkAsyncStub, manager: FakeNetwork, name: str, request_: Message
) -> None:
    """Without a deadline the agent's own counts; SetFirewall says its time in the request."""
    await getattr(stub, name)(request_)
    await getattr(stub, name)(request_, timeout=100)
    await getattr(stub, name)(request_, timeout=5)
    first, second, bounded = manager.timeouts  # gRPC adds a moment to what is asked for
    assert first is None
    if name == "SetFirewall":
        assert second is None
    else:
        assert second is not None
        assert 90 < second < 105
    assert bounded is not None
    assert bounded < 5


async def test_a_name_that_is_none_is_refused_before_it_is_looked_for(
    stub: NetworkAsyncStub, manager: FakeNetwork
) -> None:
    for name in ("", "a b", "x" * 128, "\n"):
        await bad(stub.RemoveInterface(pb.RemoveInterfaceRequest(name=name)), "name")
    assert not manager.touched
