"""Files in netplan's words, against what its reference says of each key."""

from __future__ import annotations

from ipaddress import ip_interface, ip_network
from textwrap import indent

import pytest

from innkeeper.netplan import NetplanError, read
from innkeeper.netplan.words import Device, Kind, Making, Match, Member, Policy, Way

pytestmark = [pytest.mark.unit, pytest.mark.network]


def device(text: str, kind: str = "ethernets", name: str = "eth0") -> Device:
    """One device; `text` are its keys, from line 5 on."""
    body = indent(text, "      ")
    (made, *_) = read(f"network:\n  version: 2\n  {kind}:\n    {name}:\n{body}\n").devices
    return made


def refusal(text: str, kind: str = "ethernets", name: str = "eth0") -> NetplanError:
    with pytest.raises(NetplanError) as caught:
        device(text, kind, name)
    return caught.value


def whole(text: str) -> NetplanError:
    with pytest.raises(NetplanError) as caught:
        read(text)
    return caught.value


def test_a_device_without_keys_is_one_by_its_id() -> None:
    (made,) = read("network: {version: 2, ethernets: {eth0: {}}}").devices
    assert (made.kind, made.name, made.match) == (Kind.ETHERNET, "eth0", None)


def test_every_key_of_an_interface() -> None:
    made = device("""\
match: {macaddress: "52:54:00:AB:CD:EF"}
set-name: web0
macaddress: 52-54-00-12-34-56
mtu: 9000
addresses: [192.0.2.10/24, "2001:DB8::10/64"]
accept-ra: no
link-local: [ipv6]
activation-mode: off
generic-receive-offload: false
tcp-segmentation-offload: on
nameservers: {addresses: [192.0.2.53, "2001:db8::53"], search: [example.org, lab]}
optional: true
critical: true
renderer: networkd
dhcp4: false
dhcp6: no
""")
    assert made.match == Match(mac="52:54:00:ab:cd:ef")
    assert (made.name, made.mac, made.mtu, made.down) == ("web0", "52:54:00:12:34:56", 9000, True)
    assert made.addresses == (ip_interface("192.0.2.10/24"), ip_interface("2001:db8::10/64"))
    assert (made.accept_ra, made.ipv6) == (False, True)
    assert made.offloads == {"generic-receive-offload": False, "tcp-segmentation-offload": True}
    assert made.servers == ("192.0.2.53", "2001:db8::53")
    assert made.searches == ("example.org", "lab")


@pytest.mark.parametrize(
    ("match", "name"),
    [
        ("{name: enp3s0}", "enp3s0"),
        ("{macaddress: 52:54:00:ab:cd:ef}", ""),
        ("{pci-path: 02.3/00/1f.7}", ""),
        ("{pci-path: '0000:80/00/00'}", ""),
    ],
)
def test_without_set_name_the_name_stays(match: str, name: str) -> None:
    """The id is opaque then, and only for what refers to it."""
    assert device(f"match: {match}", name="lan").name == name


def test_routes_in_both_spellings() -> None:
    made = device(
        """\
gateway6: 2001:db8::1
routes:
  - {to: default, via: 192.0.2.1, metric: 100, on-link: true}
  - {to: 198.51.100.0/24, via: 192.0.2.2, table: 100, from: 192.0.2.10, mtu: 1400}
  - {to: 203.0.113.7, scope: link}
  - {to: 0/0, type: unreachable, metric: 4000}
  - {to: "2001:db8:1::/48", via: "fe80::1"}
""".replace("0/0", "0.0.0.0/0")
    )
    assert made.ways == (
        Way(line=7, to=ip_network("0.0.0.0/0"), via="192.0.2.1", metric=100, on_link=True),
        Way(
            line=8,
            to=ip_network("198.51.100.0/24"),
            via="192.0.2.2",
            table=100,
            source="192.0.2.10",
            mtu=1400,
        ),
        Way(line=9, to=ip_network("203.0.113.7/32"), scope="link"),
        Way(line=10, to=ip_network("0.0.0.0/0"), type="unreachable", metric=4000),
        Way(line=11, to=ip_network("2001:db8:1::/48"), via="fe80::1"),
        Way(line=5, to=ip_network("::/0"), via="2001:db8::1"),
    )


def test_policy_rules() -> None:
    made = device("""\
routing-policy:
  - {from: 192.0.2.0/24, table: 100, priority: 5, mark: 0x10}
  - {to: "2001:db8::/32"}
""")
    assert made.policies == (
        Policy(line=6, version=4, source="192.0.2.0/24", table=100, priority=5, mark=16),
        Policy(line=7, version=6, to="2001:db8::/32"),
    )


@pytest.mark.parametrize(
    ("kind", "keys", "making"),
    [
        ("bridges", "{}", Making()),
        ("bridges", "{parameters: {stp: no}}", Making(stp=False)),
        # Seconds without a suffix, and spanning tree unless it is switched off.
        ("bridges", "{parameters: {forward-delay: 4}}", Making(forward_delay_millis=4000)),
        ("bonds", "{}", Making()),
        (
            "bonds",
            "{parameters: {mode: active-backup, mii-monitor-interval: 50}}",
            Making(mode="active-backup", monitor_millis=50),
        ),
        ("vrfs", "{table: 7}", Making(table=7)),
        ("dummy-devices", "{}", Making()),
    ],
)
def test_what_is_made(kind: str, keys: str, making: Making) -> None:
    (made,) = read(f"network: {{version: 2, {kind}: {{x0: {keys}}}}}").devices
    assert (made.kind, made.name, made.making) == (kind, "x0", making)


def test_members_and_links_are_named_by_id() -> None:
    made = read("""\
network:
  version: 2
  ethernets: {a: {}, b: {match: {pci-path: 02/00}, set-name: b0}}
  bridges: {br0: {interfaces: [a, b]}}
  vlans: {v: {id: 5, link: br0}}
""")
    making = {each.id: each.making for each in made.devices}
    assert making["br0"].members == (Member(line=4, id="a"), Member(line=4, id="b"))
    assert making["v"] == Making(vlan_id=5, link=Member(line=5, id="br0"))


@pytest.mark.parametrize("name", ["dhcp4", "dhcp6"])
def test_dhcp_is_refused_with_what_to_do_instead(name: str) -> None:
    error = refusal(f"mtu: 1500\n{name}: true")
    assert error.line == 6
    assert "no DHCP client in the guest" in str(error)
    assert ("10.0.2.15/24" if name == "dhcp4" else "accept-ra") in error.hint


@pytest.mark.parametrize(
    ("keys", "line", "told"),
    [
        ("adresses: []", 5, "eth0: no key 'adresses'"),
        ("mtu: 1500\nset-name: x", 6, "only with match"),
        ("match: {}", 5, "exactly one of"),
        ("match: {name: a, macaddress: 52:54:00:12:34:56}", 5, "exactly one of"),
        ("match: {name: 'enp*'}", 5, "a pattern"),
        ("match: {driver: virtio_net}", 5, "by its name, macaddress or pci-path"),
        ("match: {pci-path: 2/0}", 5, "write the slots"),
        ("match: {mac: x}", 5, "no key 'mac'"),
        ("macaddress: 52:54:00", 5, "no MAC address"),
        ("mtu: 67", 5, "68 to 65535"),
        ("addresses: [192.0.2.1]", 5, "its prefix is missing"),
        ("addresses: [192.0.2.1/33]", 5, "192.0.2.1/33"),
        ("addresses:\n  - 192.0.2.1/24: {lifetime: 0}", 6, "lifetime and label"),
        ("addresses: 192.0.2.1/24", 5, "a list is wanted"),
        ("nameservers: {addresses: [dns]}", 5, "'dns' does not appear"),
        ("nameservers: {search: ['a b']}", 5, "is no domain"),
        ("nameservers: {servers: []}", 5, "no key 'servers'"),
        ("link-local: [ipv4]", 5, "no IPv4 link-local"),
        ("link-local: []\naddresses: ['2001:db8::1/64']", 5, "addresses needs it"),
        ("link-local: []\naccept-ra: true", 5, "accept-ra needs it"),
        ("activation-mode: manual", 5, "none of off"),
        ("wakeonlan: true", 5, "nothing here does that"),
        ("routes: [{via: 192.0.2.1}]", 5, "to: is missing"),
        ("routes: [{to: default}]", 5, "of which version"),
        ("routes: [{to: 192.0.2.1/24, via: 192.0.2.9}]", 5, "has host bits set"),
        ("routes: [{to: 192.0.2.0/24, via: gate}]", 5, "via: 'gate' does not"),
        ("routes: [{to: '2001:db8::/32', via: 192.0.2.1}]", 5, "no IPv4 gateway"),
        ("routes: [{to: 192.0.2.0/24, from: '::1'}]", 5, "not of the version"),
        ("routes: [{to: 192.0.2.0/24, table: 255}]", 5, "255 is the kernel's own"),
        ("routes: [{to: 192.0.2.0/24, type: local}]", 5, "'local' is none of blackhole"),
        ("routes: [{to: 192.0.2.0/24, type: throw, via: 192.0.2.1}]", 5, "has no gateway"),
        ("routes: [{to: 192.0.2.0/24, on-link: yes}]", 5, "via is missing"),
        ("routes: [{to: 192.0.2.0/24, advertised-mss: 9}]", 5, "routes here have none"),
        ("routes: [{to: 192.0.2.0/24, gw: x}]", 5, "no key 'gw'"),
        ("gateway4: '2001:db8::1'", 5, "is no IPv4 address"),
        ("routing-policy: [{table: 9}]", 5, "from and to"),
        ("routing-policy: [{from: 192.0.2.0/24, to: '::/0'}]", 5, "from and to"),
        ("routing-policy: [{from: 192.0.2.0/24, priority: 0}]", 5, "1 to 32765"),
        ("routing-policy: [{from: 192.0.2.0/24, type-of-service: 1}]", 5, "rules here"),
    ],
)
def test_what_is_not_right_is_told_with_its_line(keys: str, line: int, told: str) -> None:
    error = refusal(keys)
    assert (error.line, told in str(error)) == (line, True), error


@pytest.mark.parametrize(
    ("kind", "keys", "told"),
    [
        ("vlans", "id: 5", "link: is missing"),
        ("vlans", "id: 4095\nlink: x", "1 to 4094"),
        ("vlans", "id: 5\nlink: x", "x: no device of that id"),
        ("vlans", "id: 5\nlink: eth0", "eth0: itself"),
        ("vlans", "match: {name: x}\nid: 5\nlink: x", "no key 'match'"),
        ("bridges", "interfaces: [x]", "x: no device of that id"),
        ("bridges", "parameters: {priority: 9}", "bridges here have stp and forward-delay"),
        ("bridges", "parameters: {stpp: no}", "no key 'stpp'"),
        ("bonds", "parameters: {mode: fast}", "none of 802.3ad"),
        ("bonds", "parameters: {mii-monitor-interval: 0}", "blind"),
        ("bonds", "parameters: {lacp-rate: fast}", "bonds here have mode"),
        ("vrfs", "interfaces: []", "table: is missing"),
    ],
)
def test_what_can_not_be_made_is_told(kind: str, keys: str, told: str) -> None:
    assert told in str(refusal(keys, kind))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ethernets: {}", "network is missing"),
        ("network: {}", "version: is missing"),
        ("network: {version: 1}", "2 to 2"),
        ("network: {version: 2, ethernet: {}}", "no key 'ethernet'"),
        ("network: {version: 2, wifis: {}}", "nothing here makes such devices"),
        ("network: {version: 2}\nother: 1", "no key 'other'"),
        ("[network]", "keys are wanted"),
        ("network: {version: 2, ethernets: {a: {}}, bridges: {a: {}}}", "is in line 1 already"),
        (
            "network: {version: 2, ethernets: {a: {}, b: {match: {name: c}, set-name: a}}}",
            "is in line 1 already",
        ),
        (
            (
                "network: {version: 2, ethernets: {a: {}},"
                " bridges: {x: {interfaces: [a]}, y: {interfaces: [a]}}}"
            ),
            "belongs to x already",
        ),
        ("network: {version: 2, ethernets: {sixteen-letters-: {}}}", "no name of an interface"),
    ],
)
def test_a_file_that_does_not_hold_together_is_told(text: str, told: str) -> None:
    assert told in str(whole(text))


def test_more_devices_than_one_request_has_are_refused() -> None:
    devices = ", ".join(f"d{number}: {{}}" for number in range(65))
    assert "at most 64" in str(whole(f"network: {{version: 2, dummy-devices: {{{devices}}}}}"))
