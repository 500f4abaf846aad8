"""`innkeeper net` as a program, with a VM's daemon that is a fake."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from innkeeper.v1 import host_pb2
from innkeeper.v1 import network_pb2 as pb
from tests.command_line import Innkeeper
from tests.fakes.vm_daemon import FakeGuest, running_vm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.contract, pytest.mark.network]

FILE = """\
network:
  version: 2
  ethernets:
    lan:
      match: {pci-path: 02/00}
      set-name: eth0
      addresses: [192.0.2.10/24]
      routes: [{to: default, via: 192.0.2.1}]
      nameservers: {addresses: [192.0.2.53]}
"""


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[FakeGuest]:
    (tmp_path / "vms").mkdir(mode=0o700)
    guest = FakeGuest()
    async with running_vm(tmp_path / "vms", guest):
        yield guest


@pytest.fixture
def innkeeper(tmp_path: Path) -> Innkeeper:
    environment = {**os.environ, "INNKEEPER_STATE_DIR": str(tmp_path / "vms")}
    return Innkeeper(environment=environment, directory=tmp_path)


def nic(guest: FakeGuest) -> host_pb2.Nic:
    """The one that was plugged in."""
    (request,) = guest.plugged
    return request.functions[0].hardware.nic


async def test_attach_on_the_user_network_has_its_addresses(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    """QEMU's manual, -netdev user: the guest's network is 10.0.2.0/24, the host .2, DNS .3."""
    guest.network.changed = ["up"]
    done = await innkeeper("net", "attach", "web", "--user", "--id", "lan", "--name", "eth0")
    assert done.lines == [
        "lan: eth0 (52:54:00:12:34:56), 10.0.2.15/24, MTU 1500, PCI path 02/00",
        "  routes: up",
        "  name servers 10.0.2.3",
    ]
    assert nic(guest).backend == host_pb2.NIC_BACKEND_USER
    interface, routes, dns = guest.network.asked
    assert (interface.address.pci_path, interface.name) == ("02/00", "eth0")
    assert [each.cidr for each in interface.addresses] == ["10.0.2.15/24"]
    (route,) = routes.sets[0].routes
    assert (route.destination, route.gateway, route.device) == ("default", "10.0.2.2", "eth0")
    assert list(dns.servers) == ["10.0.2.3"]


async def test_what_is_said_is_taken_instead(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    words = (
        "--address",
        "192.0.2.9/24",
        "--address",
        "2001:db8::9/64",
        "--mac",
        "52:54:00:aa:bb:cc",
    )
    await innkeeper("net", "attach", "web", "--wire", "lab", *words, "--mtu", "9000")
    told = nic(guest)
    assert (told.backend, told.wire, told.mtu) == (host_pb2.NIC_BACKEND_WIRE, "lab", 9000)
    assert told.mac == "52:54:00:aa:bb:cc"
    (interface,) = guest.network.asked
    assert [each.cidr for each in interface.addresses] == ["192.0.2.9/24", "2001:db8::9/64"]
    assert (interface.mtu, interface.name) == (9000, "")


async def test_routes_that_are_there_are_sent_along(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    """A set of routes is replaced as a whole; a second default route comes after the first."""
    there = pb.Route(destination="default", gateway="198.51.100.1", device="n9s0", metric=50)
    sets = [pb.RouteSet(family=pb.ADDRESS_FAMILY_V4, table=254, routes=[there])]
    guest.network.routes = pb.RoutesState(sets=sets)
    words = ("--address", "192.0.2.9/24", "--gateway", "192.0.2.1", "--gateway", "2001:db8::1")
    await innkeeper("net", "attach", "web", "--tap", "tap0", *words)
    (request,) = guest.network.of(pb.ApplyRoutesRequest)
    of_v4, of_v6 = request.sets
    assert of_v4.routes[0] == there
    assert [(each.gateway, each.metric) for each in of_v4.routes[1:]] == [("192.0.2.1", 150)]
    assert [(each.gateway, each.metric) for each in of_v6.routes] == [("2001:db8::1", 0)]


@pytest.mark.parametrize("refuses", ["ApplyInterface", "ApplyRoutes", "ApplyDns"])
async def test_what_the_guest_refuses_takes_the_plug_back(
    guest: FakeGuest, innkeeper: Innkeeper, refuses: str
) -> None:
    guest.network.refuses = refuses
    done = await innkeeper("net", "attach", "web", "--user", "--id", "lan")
    assert (done.code, done.out) == (125, b"")
    assert "KERNEL_REFUSED" in done.err
    assert guest.done == ["plug", "unplug"]
    assert guest.unplugged == ["lan"]


async def test_it_can_be_plugged_in_and_nothing_more(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    words = ("--isolated", "--no-configure", "--model", "e1000e", "--id", "x")
    done = await innkeeper("net", "attach", "web", *words)
    assert done.out == b"x: eth0 (52:54:00:12:34:56), not configured\n"
    assert nic(guest).model == host_pb2.NIC_MODEL_E1000E
    assert guest.network.asked == []


async def test_attach_as_json_has_all_that_it_became(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    done = await innkeeper("net", "attach", "web", "--user", "--id", "lan", "--json")
    told = json.loads(done.out)
    assert told["device"]["pci_path"] == "02/00"
    assert told["interface"]["addresses"] == [{"cidr": "10.0.2.15/24"}]
    assert told["servers"] == ["10.0.2.3"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "one of --user, --passt, --isolated, --tap, --wire is needed"),
        (("--user", "--wire", "x"), "--user and --wire given"),
        (("--user", "--address", "10.0.2.15"), "its prefix is missing"),
        (("--user", "--address", "ten"), "write it as in 192.0.2.10/24"),
        (("--user", "--gateway", "192.0.2.1", "--gateway", "192.0.2.2"), "one for each version"),
        (("--user", "--dns", "a.example"), "write it as in 192.0.2.1"),
        (("--user", "--no-configure", "--name", "x"), "--no-configure"),
        (("--user", "--model", "ne2000"), "one of virtio, e1000e, igb"),
        (("--user", "--mtu", "9"), "68 to 65521"),
        (("--tap", "t", "--queues", "65"), "1 to 64"),
    ],
)
async def test_a_wrong_use_is_told_before_anything_is_done(
    guest: FakeGuest, innkeeper: Innkeeper, words: tuple[str, ...], told: str
) -> None:
    done = await innkeeper("net", "attach", "web", *words)
    assert done.code == 2
    assert told in " ".join(done.err.split())
    assert guest.done == []


async def test_detach_knows_it_by_id_and_by_name(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.hardware = [host_pb2.PluggedDevice(id="lan", state="plugged")]
    guest.network.interfaces = [pb.InterfaceState(name="eth0", device_id="lan")]
    for word in ("lan", "eth0"):
        done = await innkeeper("net", "detach", "web", word)
        assert done.out == b"lan: detached\n"
    assert guest.unplugged == ["lan", "lan"]


async def test_attach_takes_nobodys_name(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.network.interfaces = [pb.InterfaceState(name="lab0", device_id="old", pci_path="02/00")]
    done = await innkeeper("net", "attach", "web", "--isolated", "--name", "lab0")
    assert done.code == 125
    assert "lab0" in done.err
    assert "device old" in done.err
    assert guest.plugged == []


async def test_detach_of_what_is_not_plugged_says_what_to_do(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.hardware = [host_pb2.PluggedDevice(id="lan", state="plugged")]
    guest.network.interfaces = [
        pb.InterfaceState(name="eth0", device_id="lan", pci_path="02/00"),
        pb.InterfaceState(name="br0", kind="bridge"),
    ]
    virtual = await innkeeper("net", "detach", "web", "br0")
    assert virtual.code == 125
    assert "innkeeper net remove web br0" in virtual.err
    unknown = await innkeeper("net", "detach", "web", "eth9")
    assert unknown.code == 125
    assert "lan (eth0)" in unknown.err
    assert guest.unplugged == []


async def test_list_shows_interfaces(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.network.interfaces = [
        pb.InterfaceState(name="lo", mtu=65536, up=True, carrier=True),
        pb.InterfaceState(
            name="eth0",
            mtu=1500,
            mac="52:54:00:12:34:56",
            addresses=[pb.InterfaceAddress(cidr="192.0.2.9/24")],
            up=True,
            driver="virtio_net",
            master="br0",
            pci_path="02/00",
        ),
        pb.InterfaceState(name="eth1", mtu=1500, container_id="main", kind="veth"),
    ]
    _, lo, eth0, eth1 = (await innkeeper("net", "list", "web")).lines
    assert lo.split() == ["lo", "up", "65536", "-", "-", "-", "-", "-"]
    assert eth0.split() == [
        *("eth0", "up,", "no", "carrier", "1500", "52:54:00:12:34:56", "192.0.2.9/24"),
        *("virtio_net", "br0", "PCI", "02/00"),
    ]
    assert eth1.split() == ["eth1", "down", "1500", "-", "-", "veth", "-", "container", "main"]
    told = json.loads((await innkeeper("net", "list", "web", "--json")).out)
    assert [each["name"] for each in told["interfaces"]] == ["lo", "eth0", "eth1"]


async def test_list_shows_routes_rules_and_neighbours(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    route = pb.Route(
        destination="default",
        gateway="192.0.2.1",
        device="eth0",
        type=pb.ROUTE_TYPE_UNICAST,
        protocol="boot",
    )
    local = pb.Route(destination="192.0.2.9/32", device="eth0", type=pb.ROUTE_TYPE_LOCAL)
    hops = [pb.NextHop(gateway="192.0.2.1"), pb.NextHop(device="eth1")]
    several = pb.Route(destination="198.51.100.0/24", next_hops=hops, type=pb.ROUTE_TYPE_UNICAST)
    family = pb.ADDRESS_FAMILY_V4
    rule = pb.Rule(priority=7, source="192.0.2.0/24", mark=16, action=pb.RULE_ACTION_TABLE, table=9)
    guest.network.routes = pb.RoutesState(
        sets=[
            pb.RouteSet(family=family, table=254, routes=[route, several]),
            pb.RouteSet(family=family, table=255, routes=[local]),
        ],
        rules=[pb.RuleSet(family=family, rules=[rule])],
    )
    entry = pb.Neighbor(address="192.0.2.1", mac="52:54:00:12:34:56", device="eth0", state="stale")
    guest.network.neighbors = pb.NeighborsState(neighbors=[entry])
    lines = (await innkeeper("net", "list", "web", "--routes")).lines
    assert [line.split() for line in lines[1:]] == [
        ["v4", "254", "default", "192.0.2.1", "eth0", "0", "unicast", "boot"],
        ["v4", "254", "198.51.100.0/24", "192.0.2.1", "eth1", "0", "unicast", "-"],
    ]
    (_, line) = (await innkeeper("net", "list", "web", "--rules")).lines
    assert line.split() == ["v4", "7", "192.0.2.0/24", "any", "0x10", "table", "9"]
    (_, line) = (await innkeeper("net", "list", "web", "--neighbors")).lines
    assert line.split() == ["192.0.2.1", "52:54:00:12:34:56", "eth0", "stale"]
    assert (await innkeeper("net", "list", "web", "--rules", "--routes")).code == 2


async def test_apply_sends_interfaces_then_routes_then_names(
    guest: FakeGuest, innkeeper: Innkeeper, tmp_path: Path
) -> None:
    (tmp_path / "web.yaml").write_text(FILE)
    guest.network.changed = ["mtu 1500 -> 9000"]
    done = await innkeeper("net", "apply", "web", "web.yaml")
    assert done.lines == [
        *("eth0: mtu 1500 -> 9000", "routes: mtu 1500 -> 9000"),
        "dns: mtu 1500 -> 9000",
    ]
    kinds = [type(each) for each in guest.network.asked]
    assert kinds == [pb.ApplyInterfacesRequest, pb.ApplyRoutesRequest, pb.ApplyDnsRequest]


async def test_apply_that_changes_nothing_says_so(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    done = await innkeeper("net", "apply", "web", "-", stdin=FILE.encode())
    assert done.out == b"nothing changed\n"
    done = await innkeeper("net", "apply", "web", "-", "--json", stdin=FILE.encode())
    assert json.loads(done.out) == {"changed": []}


async def test_a_dry_run_needs_no_vm(innkeeper: Innkeeper, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(FILE)
    told = json.loads((await innkeeper("net", "apply", "none", "web.yaml", "--dry-run")).out)
    assert list(told) == ["Network.ApplyInterfaces", "Network.ApplyRoutes", "Network.ApplyDns"]
    (interface,) = told["Network.ApplyInterfaces"]["interfaces"]
    assert interface["address"] == {"pci_path": "02/00"}


async def test_a_file_that_is_wrong_is_told_with_its_line_and_nothing_is_sent(
    guest: FakeGuest, innkeeper: Innkeeper, tmp_path: Path
) -> None:
    (tmp_path / "web.yaml").write_text(FILE.replace("addresses: [192.0.2.10/24]", "dhcp4: yes"))
    done = await innkeeper("net", "apply", "web", "web.yaml")
    assert (done.code, done.out) == (125, b"")
    assert "web.yaml: line 7: lan: dhcp4: there is no DHCP client in the guest" in done.err
    assert "hint: give addresses" in done.err
    assert guest.network.asked == []
    assert "No such file" in (await innkeeper("net", "apply", "web", "nowhere.yaml")).err


SET = pb.ApplyDnsRequest(
    servers=["192.0.2.1"],
    searches=["lab"],
    options=["ndots:2"],
    hosts=[pb.HostEntry(address="192.0.2.7", names=["db"])],
    hostname="set-before",
)
"""What somebody has asked for."""


def with_parts(**parts: object) -> pb.ApplyDnsRequest:
    """SET with other parts; the name of the guest is not sent again."""
    made = pb.ApplyDnsRequest()
    made.CopyFrom(SET)
    for name in ("hostname", *parts):
        made.ClearField(name)  # type: ignore[arg-type]
    made.MergeFrom(pb.ApplyDnsRequest(**parts))  # type: ignore[arg-type]
    return made


DB2 = pb.HostEntry(address="192.0.2.8", names=["db2", "db2.lab"])


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--server", "192.0.2.53"), {"servers": ["192.0.2.53"]}),
        (("--add", "--server", "192.0.2.53"), {"servers": ["192.0.2.1", "192.0.2.53"]}),
        (("--add", "--server", "192.0.2.1"), {}),
        (("--search", "a", "--search", "b"), {"searches": ["a", "b"]}),
        (("--option", "rotate", "--clear", "host"), {"options": ["rotate"], "hosts": []}),
        (("--host", "192.0.2.8=db2,db2.lab"), {"hosts": [DB2]}),
        (("--add", "--host", "192.0.2.8=db2,db2.lab"), {"hosts": [SET.hosts[0], DB2]}),
        (("--add", "--host", "192.0.2.7=db"), {}),
        (("--hostname", "w"), {"hostname": "w"}),
        (("--clear", "server", "--clear", "search"), {"servers": [], "searches": []}),
    ],
)
async def test_names_that_are_said_replace_their_kind_alone(
    guest: FakeGuest, innkeeper: Innkeeper, words: tuple[str, ...], parts: dict[str, object]
) -> None:
    guest.network.dns = pb.DnsState(wanted=SET)
    done = await innkeeper("net", "dns", "web", *words)
    assert done.out == b"nothing changed\n"
    assert guest.network.asked == [with_parts(**parts)]


async def test_names_are_shown_and_nothing_is_sent(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    done = await innkeeper("net", "dns", "web")
    assert done.lines == ["host name innkeeper; resolv.conf and hosts are the image's own"]
    guest.network.dns = pb.DnsState(
        resolv_conf="nameserver 192.0.2.1\nsearch lab\n", hostname="w", wanted=SET, warnings=["oh"]
    )
    done = await innkeeper("net", "dns", "web")
    assert done.lines == [
        *("host name w", "resolv.conf:", "  nameserver 192.0.2.1", "  search lab", "hosts: empty"),
    ]
    assert "oh" in done.err
    told = json.loads((await innkeeper("net", "dns", "web", "--json")).out)
    assert told["wanted"]["searches"] == ["lab"]
    assert guest.network.asked == []


async def test_what_names_changed_is_told(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.network.changed = ["server +192.0.2.53"]
    done = await innkeeper("net", "dns", "web", "--server", "192.0.2.53")
    assert done.out == b"server +192.0.2.53\n"
    assert guest.network.asked == [pb.ApplyDnsRequest(servers=["192.0.2.53"])]


@pytest.mark.parametrize(
    "words",
    [
        *(("--host", "db"), ("--add",), ("--clear", "hosts")),
        ("--clear", "host", "--host", "192.0.2.7=db"),
        ("--add", "--clear", "host"),
    ],
)
async def test_a_wrong_use_of_names_is_told(
    guest: FakeGuest, innkeeper: Innkeeper, words: tuple[str, ...]
) -> None:
    assert (await innkeeper("net", "dns", "web", *words)).code == 2
    assert guest.network.asked == []


async def test_a_name_server_that_comes_with_an_interface_leaves_the_rest(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.network.dns = pb.DnsState(wanted=SET)
    await innkeeper("net", "attach", "web", "--user")
    assert guest.network.of(pb.ApplyDnsRequest) == [with_parts(servers=["10.0.2.3"])]


async def test_a_file_replaces_servers_and_search_domains_and_leaves_the_rest(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.network.dns = pb.DnsState(wanted=SET)
    await innkeeper("net", "apply", "web", "-", stdin=FILE.encode())
    (request,) = guest.network.of(pb.ApplyDnsRequest)
    assert request == with_parts(servers=["192.0.2.53"], searches=[])


async def test_the_firewalls_rules_are_bytes(
    guest: FakeGuest, innkeeper: Innkeeper, tmp_path: Path
) -> None:
    guest.network.rules = b"*filter\nCOMMIT\n\xff"
    done = await innkeeper("net", "firewall", "get", "web", "--format", "iptables")
    assert done.out == guest.network.rules
    (tmp_path / "rules").write_bytes(done.out)
    words = ("net", "firewall", "set", "web", "--format", "ip6tables")
    await innkeeper(*words, "rules")
    await innkeeper(*words, stdin=done.out)
    asked = guest.network.of(pb.SetFirewallRequest)
    assert [each.rules for each in asked] == [done.out, done.out]
    assert {each.format for each in asked} == {pb.FIREWALL_FORMAT_IP6TABLES}
    assert (await innkeeper(*words[:-1], "x")).code == 2


async def test_no_rules_at_all_are_an_accident(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    """A command that fails before a pipe gives nothing, and nothing would open everything."""
    done = await innkeeper("net", "firewall", "set", "web", stdin=b"\n")
    assert done.code == 125
    assert "standard input: no rules are in it" in done.err
    assert guest.network.of(pb.SetFirewallRequest) == []


async def test_the_thin_commands_send_what_they_say(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.network.changed = ["+192.0.2.1"]
    words = ("net", "neighbor", "web", "192.0.2.1", "--on", "eth0")
    assert (await innkeeper(*words, "--mac", "52:54:00:12:34:56")).out == b"+192.0.2.1\n"
    assert (await innkeeper(*words)).code == 2
    done = await innkeeper("net", "sysctl", "web", "net.ipv4.ip_forward=1")
    assert done.out == b"net.ipv4.ip_forward = 1 (before: 0)\n"
    assert (await innkeeper("net", "sysctl", "web", "x")).code == 2
    assert (await innkeeper("net", "remove", "web", "br0")).out == b"br0: removed\n"
    neighbors, sysctls, remove = guest.network.asked
    assert neighbors.neighbors[0].device == "eth0"
    assert dict(sysctls.values) == {"net.ipv4.ip_forward": "1"}
    assert remove.name == "br0"
