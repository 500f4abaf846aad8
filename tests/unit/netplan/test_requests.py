"""A file as the protocol's messages."""

from __future__ import annotations

import pytest
from google.protobuf import json_format

from innkeeper.netplan import NetplanError, Requests, read, requests_of
from innkeeper.v1 import network_pb2 as pb

pytestmark = [pytest.mark.unit, pytest.mark.network]

V4, V6 = pb.ADDRESS_FAMILY_V4, pb.ADDRESS_FAMILY_V6


def requests(text: str) -> Requests:
    return requests_of(read(f"network:\n  version: 2\n{text}"))


def interface(text: str) -> pb.ApplyInterfaceRequest:
    return requests(text).interfaces.interfaces[0]


def routes(text: str) -> dict[tuple[int, int], list[pb.Route]]:
    return {(each.family, each.table): list(each.routes) for each in requests(text).routes.sets}


def test_an_interface_by_its_name() -> None:
    made = interface("  ethernets: {eth0: {mtu: 9000, addresses: [192.0.2.10/24]}}")
    assert made == pb.ApplyInterfaceRequest(
        current_name="eth0",
        mtu=9000,
        addresses=[pb.InterfaceAddress(cidr="192.0.2.10/24")],
        master="",
    )


def test_an_interface_by_its_place_and_its_new_name() -> None:
    made = interface("  ethernets: {lan: {match: {pci-path: 02/00}, set-name: eth0}}")
    assert (made.address.pci_path, made.name, made.current_name) == ("02/00", "eth0", "")
    made = interface("  ethernets: {lan: {match: {macaddress: 52:54:00:12:34:56}}}")
    assert (made.address.mac, made.name) == ("52:54:00:12:34:56", "")


def test_what_is_not_said_stays_as_it_is() -> None:
    made = interface("  ethernets: {eth0: {}}")
    unsaid = ("ipv6", "accept_router_advertisements", "arp", "queues")
    set_fields = {field.name for field, _ in made.ListFields()}
    assert set_fields.isdisjoint(unsaid)
    assert (made.mtu, made.mac, made.down) == (0, "", False)
    said = interface("  ethernets: {eth0: {accept-ra: false, link-local: []}}")
    assert said.HasField("accept_router_advertisements")
    assert not (said.accept_router_advertisements)
    assert not (said.ipv6)


def test_members_are_told_whose_they_are_and_others_that_they_are_nobodys() -> None:
    made = requests("""\
  ethernets: {a: {}, b: {match: {name: x}, set-name: b0}, c: {}}
  bridges: {br0: {interfaces: [a, b]}}
""").interfaces.interfaces
    masters = {each.name or each.current_name: each.master for each in made}
    assert masters == {"a": "br0", "b0": "br0", "c": "", "br0": ""}
    assert all(each.HasField("master") for each in made)


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("vlans: {v: {id: 5, link: a}}", pb.VlanLink(parent="a0", vlan_id=5)),
        ("bridges: {v: {}}", pb.BridgeLink(stp=True)),
        (
            "bridges: {v: {parameters: {stp: no, forward-delay: 2}}}",
            pb.BridgeLink(forward_delay_millis=2000),
        ),
        (
            "bonds: {v: {parameters: {mode: 802.3ad, mii-monitor-interval: 1s}}}",
            pb.BondLink(mode="802.3ad", miimon=1000),
        ),
        ("vrfs: {v: {table: 9}}", pb.VrfLink(table=9)),
        ("dummy-devices: {v: {}}", pb.DummyLink()),
    ],
)
def test_what_is_made_says_how(text: str, link: object) -> None:
    made = requests(f"  ethernets: {{a: {{match: {{name: x}}, set-name: a0}}}}\n  {text}")
    (of_v,) = [each for each in made.interfaces.interfaces if each.current_name == "v"]
    assert getattr(of_v, str(of_v.WhichOneof("link"))) == link


def test_both_main_tables_are_always_said() -> None:
    """A route that was taken out of the file goes."""
    assert routes("  ethernets: {eth0: {}}") == {(V4, 254): [], (V6, 254): []}
    rules = requests("  ethernets: {eth0: {}}").routes.rules
    assert [(each.family, len(each.rules)) for each in rules] == [(V4, 0), (V6, 0)]


def test_routes_are_in_the_table_of_their_family() -> None:
    made = routes("""\
  ethernets:
    eth0:
      gateway4: 192.0.2.1
      routes:
        - {to: "2001:db8:1::/48", via: "fe80::1", metric: 9, scope: link}
        - {to: 198.51.100.0/24, via: 192.0.2.2, table: 100, on-link: true, from: 192.0.2.9}
        - {to: 203.0.113.0/24, type: blackhole}
""")
    unicast, blackhole = pb.ROUTE_TYPE_UNICAST, pb.ROUTE_TYPE_BLACKHOLE
    assert made[V4, 254] == [
        pb.Route(destination="203.0.113.0/24", type=blackhole),
        pb.Route(destination="default", gateway="192.0.2.1", device="eth0", type=unicast),
    ]
    # IPv6 has no scopes: what is said there can't be.
    assert made[V6, 254] == [
        pb.Route(
            destination="2001:db8:1::/48",
            gateway="fe80::1",
            device="eth0",
            metric=9,
            type=unicast,
        )
    ]
    assert made[V4, 100] == [
        pb.Route(
            destination="198.51.100.0/24",
            gateway="192.0.2.2",
            device="eth0",
            source="192.0.2.9",
            onlink=True,
            type=unicast,
        )
    ]


def test_routes_of_a_vrf_are_in_its_table_and_found_by_their_gateway() -> None:
    made = routes("""\
  ethernets: {a: {}}
  vrfs: {red: {table: 7, interfaces: [a], routes: [{to: default, via: 192.0.2.1}]}}
""")
    (route,) = made[V4, 7]
    assert (route.gateway, route.device) == ("192.0.2.1", "")


def test_rules_without_a_priority_come_in_the_order_of_the_file() -> None:
    made = requests("""\
  ethernets:
    a:
      routing-policy:
        - {from: 192.0.2.0/24, table: 100}
        - {from: 192.0.2.0/25, table: 101, mark: 3}
        - {to: 198.51.100.0/24, priority: 30000}
""").routes.rules[0]
    assert [(each.priority, each.table) for each in made.rules] == [
        (30001, 100),
        (30002, 101),
        (30000, 254),
    ]
    assert [each.mark for each in made.rules if each.HasField("mark")] == [3]


def test_name_servers_of_all_interfaces_are_the_guests() -> None:
    made = requests("""\
  ethernets:
    a: {nameservers: {addresses: [192.0.2.53], search: [lab]}}
    b: {nameservers: {addresses: [192.0.2.54, 192.0.2.53], search: [lab, home]}}
""").dns
    assert made == pb.ApplyDnsRequest(
        servers=["192.0.2.53", "192.0.2.54"], searches=["lab", "home"]
    )
    assert requests("  ethernets: {a: {}}").dns is None
    assert requests("  ethernets: {a: {nameservers: {}}}").dns == pb.ApplyDnsRequest()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "ethernets: {a: {match: {pci-path: 02/00}, routes: [{to: 192.0.2.0/24}]}}",
            "line 3: a: is found by its hardware",
        ),
        (
            "ethernets: {a: {match: {pci-path: 02/00}}}\n  vlans: {v: {id: 5, link: a}}",
            "line 4: a: is found by its hardware",
        ),
        (
            "ethernets: {a: {gateway4: 192.0.2.1, routes: [{to: default, via: 192.0.2.2}]}}",
            "a second route to default with metric 0",
        ),
        (
            (
                "ethernets: {a: {routing-policy: [{from: 0.0.0.0/0, priority: 7},"
                " {to: 0.0.0.0/0, priority: 7}]}}"
            ),
            "priority 7: the rule of line 3 has it",
        ),
        (
            "vrfs: {r: {table: 7, routes: [{to: default, via: 192.0.2.1, on-link: true}]}}",
            "line 3: r: on-link",
        ),
    ],
)
def test_what_can_not_be_sent_is_told(text: str, told: str) -> None:
    with pytest.raises(NetplanError, match=told):
        requests(f"  {text}")


def test_on_link_ipv6_has_a_route_for_each_interface() -> None:
    """The kernel's own fe80::/64 are such."""
    made = routes(
        "  ethernets: {a: {routes: [{to: 'fd00::/64'}]}, b: {routes: [{to: 'fd00::/64'}]}}"
    )
    assert [each.device for each in made[V6, 254]] == ["a", "b"]


def test_all_of_it_is_json() -> None:
    made = requests("  ethernets: {a: {addresses: [192.0.2.1/24]}}")
    told = json_format.MessageToDict(made.interfaces, preserving_proto_field_name=True)
    assert told["interfaces"][0]["current_name"] == "a"
