"""The network service on the real kernel: two VMs with two wires between them.

The witness is Debian 13's `ip`, which asks the kernel without the agent.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from innkeeper.shim.client import VmSpec
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import network_pb2 as pb
from innkeeper.v1 import sandbox_pb2 as sandbox
from innkeeper.v1 import types_pb2 as types
from tests.vm.guest import PROBE, booted, refused
from tests.vm.netguest import PATIENCE, NetGuest, at_path, by_name, net_guest

pytestmark = [pytest.mark.vm, pytest.mark.network, pytest.mark.timeout(600)]

V4, V6 = pb.ADDRESS_FAMILY_V4, pb.ADDRESS_FAMILY_V6
# The first one has the disk with `ip`.
PORTS = ("port1", "port2")
PATHS = ("10.1/00", "10.2/00")
TABLES = (50, 100)
VIRTUAL = {"bond0", "br0", "vrf0", "v100", "ev0", "dummy0"}
JUMBO = 9000


@dataclass(frozen=True, slots=True)
class Pair:
    """Two VMs; `w0` and `w1` of one are on the same wires as those of the other."""

    a: NetGuest
    b: NetGuest


def macs(letter: str) -> tuple[str, str]:
    return f"52:54:00:00:{letter}0:00", f"52:54:00:00:{letter}0:01"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(image: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    specs = [
        VmSpec(name=f"wired-{name}", image=f"{image}/", transport="serial", cpus=2, bridge=True)
        for name in "ab"
    ]
    place = tmp_path_factory.mktemp("iproute")
    async with (
        booted(specs[0]) as a,
        booted(specs[1]) as b,
        net_guest(a, place / "a") as one,
        net_guest(b, place / "b") as other,
    ):
        yield Pair(one, other)


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def observers(pair: Pair) -> AsyncIterator[None]:
    """For all tests but the last ones, which kill agents and look anew."""
    async with pair.a.looking(), pair.b.looking():
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def wires(pair: Pair) -> None:
    """Plugged once, after those tests that want a guest without interfaces."""
    lab = secrets.token_hex(2)
    for side, letter in ((pair.a, "a"), (pair.b, "b")):
        for number, mac in enumerate(macs(letter)):
            wire = {"backend": host.NIC_BACKEND_WIRE, "wire": f"lab-{lab}-{number}", "mtu": JUMBO}
            await side.plug(f"wire{number}", PORTS[number], mac=mac, **wire)


@pytest_asyncio.fixture(loop_scope="session")
async def wired(pair: Pair, wires: None, observers: None) -> Pair:
    """Two interfaces on each side, `w0` and `w1`, up and with nothing else."""
    del wires, observers
    for side in (pair.a, pair.b):
        listed = await side.network.ListInterfaces(pb.ListInterfacesRequest())
        for name in VIRTUAL & {each.name for each in listed.interfaces}:
            await side.network.RemoveInterface(pb.RemoveInterfaceRequest(name=name))
        await side.network.ApplyRoutes(EMPTY)
        await side.apply(
            *(
                at_path(path, master="", name=f"w{n}", arp=True, mtu=JUMBO)
                for n, path in enumerate(PATHS)
            )
        )
    return pair


EMPTY = pb.ApplyRoutesRequest(
    sets=[pb.RouteSet(family=family, table=table) for family in (V4, V6) for table in (0, *TABLES)],
    rules=[pb.RuleSet(family=family) for family in (V4, V6)],
)


# Names.


async def test_interfaces_get_their_names_in_whatever_order_they_come(pair: Pair) -> None:
    """One is asked for before it is there. The kernel's own names, which go by the order,
    are those of others here; each has to make room for another."""
    guest = pair.a
    asked = {"port5": "eth1", "port3": "net2", "port4": "eth0"}
    mac = {port: f"52:54:00:00:00:0{port[-1]}" for port in asked}
    path = {port: await guest.path_of(port) for port in asked}
    late = asyncio.create_task(guest.apply(at_path(path["port4"], name=asked["port4"])))
    for port in ("port5", "port3"):
        await guest.plug(port, port, mac=mac[port])
    assert await guest.names() == {mac["port5"]: "eth0", mac["port3"]: "eth1"}
    for port in ("port5", "port3"):
        [state] = await guest.apply(at_path(path[port], name=asked[port], mtu=1400))
        assert (state.name, state.mac, state.pci_path) == (asked[port], mac[port], path[port])
    assert not late.done()
    await guest.plug("port4", "port4", mac=mac["port4"])
    [state] = await late
    assert (state.name, state.mac) == ("eth0", mac["port4"])
    assert await guest.names() == {mac[port]: name for port, name in asked.items()}
    links = await guest.links()
    assert [links[name]["mtu"] for name in ("eth1", "net2", "eth0")] == [1400, 1400, 1500]
    assert all("UP" in links[name]["flags"] for name in asked.values())
    await guest.unplug(*asked)


async def test_without_a_name_it_is_called_after_its_path(pair: Pair) -> None:
    """Kernel's former name and path are alternative names, by which it is found too."""
    guest = pair.a
    wanted = {"port2": "n10f2s0", "bridge.1": "n18s0s1", "port1": "n10f1s0"}
    altname = {"port2": "pci-10.2-00", "bridge.1": "pci-18-00-01", "port1": "pci-10.1-00"}
    for number, port in enumerate(wanted):
        await guest.plug(f"nic{number}", port, mac=f"52:54:00:00:01:0{number}")
    former = {link["address"]: name for name, link in (await guest.links()).items()}
    await guest.apply(*[at_path(await guest.path_of(port)) for port in wanted])
    links = await guest.links()
    for number, (port, name) in enumerate(wanted.items()):
        mac = f"52:54:00:00:01:0{number}"
        assert links[name]["address"] == mac
        assert set(links[name]["altnames"]) == {former[mac], altname[port]}
    [state] = await guest.apply(by_name("pci-18-00-01"))
    assert (state.name, list(state.changed)) == ("n18s0s1", [])
    await guest.unplug("nic0", "nic1", "nic2")


# A stream of bytes through an interface while it is renamed.

STOP, LISTENING = "/run/stop-the-stream", "/run/listening"
SEND = f"""
import os, socket, sys, zlib
connection = socket.create_connection((sys.argv[1], 7000), timeout=60)
block, count, check = os.urandom(100003), 0, 0
while not os.path.exists("{STOP}"):
    connection.sendall(block)
    count, check = count + len(block), zlib.crc32(block, check)
connection.shutdown(socket.SHUT_WR)
assert connection.recv(1) == b""
print(count, check)
"""
RECEIVE = f"""
import socket, zlib
listener = socket.create_server(("0.0.0.0", 7000))
open("{LISTENING}", "w").close()
connection, peer = listener.accept()
connection.settimeout(60)
count = check = 0
while block := connection.recv(1 << 20):
    count, check = count + len(block), zlib.crc32(block, check)
print(count, check)
"""


def python(program: str, *arguments: str) -> str:
    """For a probe: the guest's own Python."""
    return shlex.join(["chroot", "/guest", "python3", "-ISc", program, *arguments])


async def state_of(side: NetGuest) -> dict[int, Any]:
    """Addresses and routes of each interface, by its index, whatever its name is."""
    links = await side.ip("address")
    found: dict[int, Any] = {}
    for link in links:
        routes = [
            {key: value for key, value in route.items() if key != "dev"}
            for family in ("-4", "-6")
            for route in await side.ip(
                family, "route", "show", "table", "all", "dev", link["ifname"]
            )
        ]
        addresses = [
            (each["local"], each["prefixlen"], each.get("label", "") == link["ifname"])
            for each in link["addr_info"]
        ]
        found[link["ifindex"]] = (link["address"], addresses, routes)
    return found


async def test_names_are_swapped_while_a_stream_flows(wired: Pair) -> None:
    """In one request, five times; the stream loses nothing, and all else is as it was."""
    a, b = wired.a, wired.b
    await b.apply(at_path(PATHS[0], name="w0", addresses=("192.0.2.2/24", "2001:db8::2/64")))
    await a.apply(
        at_path(PATHS[0], addresses=("192.0.2.1/24", "2001:db8::1/64"), name="w0"),
        at_path(PATHS[1], addresses=("198.51.100.1/24",), name="w1"),
    )
    await a.do(
        "route add default via 192.0.2.2 metric 5",
        "route add 203.0.113.0/24 via 198.51.100.254 table 100",
        "-6 route add default via 2001:db8::2",
    )
    assert await a.pings("192.0.2.2", size=JUMBO - 28)
    before = await state_of(a)
    receiver = await b.guest.start(python(RECEIVE), **PROBE)
    await b.observer.ask(f"until [ -e /guest{LISTENING} ]; do sleep 0.1; done")
    sender = await a.guest.start(python(SEND, "192.0.2.2"), **PROBE)
    sent = "cat /sys/class/net/{}/statistics/tx_bytes"
    await a.observer.ask(f"until [ $({sent.format('w0')}) -gt 1000000 ]; do sleep 0.1; done")
    first = int(await a.observer.ask(sent.format("w0")))
    for turn in range(5):
        names = ("w1", "w0") if turn % 2 == 0 else ("w0", "w1")
        states = await a.apply(
            *(
                at_path(path, name=name, keep_addresses=True)
                for path, name in zip(PATHS, names, strict=True)
            )
        )
        assert [state.name for state in states] == list(names)
    assert int(await a.observer.ask(sent.format("w1"))) > first + 100_000
    await a.observer.ask(f"touch /guest{STOP}")
    told = [
        await side.guest.follow(types.ProcessRef(container_id=name))
        for side, name in ((a, sender), (b, receiver))
    ]
    assert [each.code for each in told] == [0, 0], told
    assert told[0].text == told[1].text
    assert await a.names() == dict(zip(macs("a"), ("w1", "w0"), strict=True))
    assert await state_of(a) == before
    await a.guest.remove(sender)
    await b.guest.remove(receiver)


# Routes, rules, neighbours.


def routes(
    *wanted: pb.Route, table: int = 0, family: pb.AddressFamily.ValueType = V4
) -> pb.RouteSet:
    return pb.RouteSet(family=family, table=table, routes=wanted)


async def apply_routes(side: NetGuest, *sets: pb.RouteSet, rules: Any = ()) -> pb.RoutesState:
    return await side.network.ApplyRoutes(pb.ApplyRoutesRequest(sets=sets, rules=rules))


SENDS_TO_THE_DEFAULT = f"""
import os, socket
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sent, failed = 0, []
while not os.path.exists("{STOP}"):
    try:
        datagrams.sendto(b"x", ("203.0.113.1", 9))
        sent += 1
    except OSError as error:
        failed.append(str(error))
    if sent == 100:
        open("{LISTENING}", "w").close()
print(sent, *failed[:3])
"""


async def test_a_default_route_is_replaced_in_place(wired: Pair) -> None:
    """Somebody who sends all the time never finds none (ENETUNREACH)."""
    a = wired.a
    await a.observer.ask(f"rm -f /guest{STOP} /guest{LISTENING}")
    await a.apply(at_path(PATHS[0], name="w0", addresses=("192.0.2.1/24",)))
    await apply_routes(a, routes(pb.Route(gateway="192.0.2.2")))
    sender = await a.guest.start(python(SENDS_TO_THE_DEFAULT), **PROBE)
    await a.observer.ask(f"until [ -e /guest{LISTENING} ]; do sleep 0.1; done")
    for turn in range(20):
        gateway = f"192.0.2.{3 + turn % 2}"
        told = await apply_routes(a, routes(pb.Route(gateway=gateway)))
        assert any(gateway in line for line in told.changed), told
        [found] = await a.ip("route", "show", "default")
        assert (found["gateway"], found["dev"]) == (gateway, "w0")
    await a.observer.ask(f"touch /guest{STOP}")
    finished = await a.guest.follow(types.ProcessRef(container_id=sender))
    await a.guest.remove(sender)
    assert finished.code == 0, finished
    sent, *failed = finished.text.split(maxsplit=1)
    assert int(sent) > 100
    assert failed == []


async def test_tables_and_rules_choose_the_way(wired: Pair) -> None:
    """Asked of the kernel itself: `ip route get`."""
    a = wired.a
    await a.apply(
        at_path(PATHS[0], name="w0", addresses=("192.0.2.1/24", "2001:db8::1/64")),
        at_path(PATHS[1], name="w1", addresses=("198.51.100.1/24", "2001:db8:1::1/64")),
    )
    blackhole = pb.Route(destination="203.0.113.0/24", type=pb.ROUTE_TYPE_BLACKHOLE)
    sets = (
        routes(pb.Route(gateway="192.0.2.2"), blackhole),
        routes(pb.Route(gateway="198.51.100.2", metric=7), table=100),
        routes(pb.Route(gateway="2001:db8::2"), family=V6),
        routes(pb.Route(gateway="2001:db8:1::2"), table=100, family=V6),
    )
    rules = [
        pb.RuleSet(
            family=V4,
            rules=[
                pb.Rule(priority=100, source="198.51.100.0/24", table=100),
                pb.Rule(priority=90, mark=7, table=100),
            ],
        ),
        pb.RuleSet(family=V6, rules=[pb.Rule(priority=100, source="2001:db8:1::/64", table=100)]),
    ]
    assert (await apply_routes(a, *sets, rules=rules)).changed
    ways = {
        "192.88.99.1": "192.0.2.2",
        "192.88.99.1 from 198.51.100.1": "198.51.100.2",
        "192.88.99.1 mark 7": "198.51.100.2",
        "2001:db8:2::1": "2001:db8::2",
        "2001:db8:2::1 from 2001:db8:1::1": "2001:db8:1::2",
    }
    found = {words: (await a.ip("route", "get", words))[0]["gateway"] for words in ways}
    assert found == ways
    [way] = await a.ip("route", "show", "type", "blackhole")
    assert way["dst"] == "203.0.113.0/24"
    told = await a.ip("-4", "rule")
    assert [rule["priority"] for rule in told] == [0, 90, 100, 32766, 32767]
    [way] = await a.ip("route", "show", "table", "100")
    assert (way["gateway"], way["metric"], way["dev"]) == ("198.51.100.2", 7, "w1")
    assert list((await apply_routes(a, *sets, rules=rules)).changed) == []
    await apply_routes(a, *EMPTY.sets, rules=EMPTY.rules)
    assert await a.ip("route", "show", "table", "100") == []
    assert len(await a.ip("-4", "rule")) == 3


async def test_a_refused_set_leaves_all_as_it_was(wired: Pair) -> None:
    a = wired.a
    await a.apply(at_path(PATHS[0], name="w0", addresses=("192.0.2.1/24",)))
    await apply_routes(
        a, routes(pb.Route(gateway="192.0.2.2")), routes(pb.Route(gateway="192.0.2.3"), table=100)
    )
    before = await a.ip("route", "show", "table", "all")
    call = apply_routes(
        a,
        routes(pb.Route(gateway="192.0.2.9"), table=100),
        routes(pb.Route(destination="198.18.0.0/15", gateway="172.16.0.1", device="w0")),
    )
    code, _ = await refused(call)
    assert code in {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}
    assert await a.ip("route", "show", "table", "all") == before


async def test_permanent_neighbours_need_no_questions(wired: Pair) -> None:
    """Without ARP on both sides nobody is found but by what is written down."""
    a, b = wired.a, wired.b
    for side, number in ((a, 1), (b, 2)):
        address = (f"192.0.2.{number}/24",)
        await side.apply(at_path(PATHS[0], name="w0", arp=False, addresses=address))
    assert not await a.pings("192.0.2.2", tries=1)
    for side, other, number in ((a, "b", 2), (b, "a", 1)):
        wanted = pb.Neighbor(address=f"192.0.2.{number}", mac=macs(other)[0], device="w0")
        await side.network.ApplyNeighbors(pb.ApplyNeighborsRequest(neighbors=[wanted]))
    [told] = await a.ip("neigh", "show", "dev", "w0", "nud", "permanent")
    assert (told["dst"], told["lladdr"]) == ("192.0.2.2", macs("b")[0])
    assert await a.pings("192.0.2.2")
    for side in (a, b):
        await side.network.ApplyNeighbors(pb.ApplyNeighborsRequest(exact_devices=["w0"]))
        assert await side.ip("neigh", "show", "dev", "w0", "nud", "permanent") == []


# Interfaces on top of others.


async def test_the_first_of_a_kind_has_the_name_that_was_asked_for(wired: Pair) -> None:
    """bond0 and dummy0 are those that the modules make by themselves when they are loaded,
    if they may (numdummies, max_bonds)."""
    a = wired.a
    await a.apply(by_name("bond0", bond=pb.BondLink(mode="802.3ad")))
    await a.apply(by_name("dummy0", dummy=pb.DummyLink(), addresses=("192.0.2.200/32",)))
    links = await a.links()
    assert links.keys() == {"lo", "w0", "w1", "bond0", "dummy0"}
    assert links["bond0"]["linkinfo"]["info_data"]["mode"] == "802.3ad"
    assert await a.addresses("dummy0") == {"192.0.2.200/32"}
    for name in ("bond0", "dummy0"):
        await a.network.RemoveInterface(pb.RemoveInterfaceRequest(name=name))
    assert (await a.links()).keys() == {"lo", "w0", "w1"}


async def test_a_vlan_on_each_side(wired: Pair) -> None:
    """Its frames are tagged: without it the other side hears nothing."""
    a, b = wired.a, wired.b
    for side, number in ((a, 1), (b, 2)):
        vlan = by_name(
            "v100",
            vlan=pb.VlanLink(parent="w0", vlan_id=100),
            mtu=8000,
            addresses=(f"198.51.100.{number}/24", f"2001:db8:64::{number}/64"),
        )
        await side.apply(vlan, at_path(PATHS[0], name="w0"))
    link = (await a.links())["v100"]
    assert (link["link"], link["mtu"]) == ("w0", 8000)
    assert link["linkinfo"]["info_kind"] == "vlan"
    assert link["linkinfo"]["info_data"]["id"] == 100
    assert await a.pings("198.51.100.2", size=7900)
    assert await b.pings("2001:db8:64::1", size=7900)
    await b.network.RemoveInterface(pb.RemoveInterfaceRequest(name="v100"))
    await b.apply(at_path(PATHS[0], name="w0", addresses=("198.51.100.2/24",)))
    assert not await a.pings("198.51.100.2", tries=1)


async def test_a_vrf_has_a_table_of_its_own(wired: Pair) -> None:
    a, b = wired.a, wired.b
    await b.apply(at_path(PATHS[0], name="w0", addresses=("192.0.2.2/24", "203.0.113.2/32")))
    await a.apply(
        at_path(PATHS[0], name="w0", master="vrf0", addresses=("192.0.2.1/24",)),
        by_name("vrf0", vrf=pb.VrfLink(table=50)),
    )
    await apply_routes(a, routes(pb.Route(gateway="192.0.2.2"), table=50))
    links = await a.links()
    assert links["w0"]["master"] == "vrf0"
    assert links["vrf0"]["linkinfo"]["info_data"]["table"] == 50
    assert [each["dst"] for each in await a.ip("route", "show", "vrf", "vrf0")].count(
        "default"
    ) == 1
    assert await a.ip("route", "show", "default") == []
    assert await a.pings("203.0.113.2", "-I", "vrf0")
    assert not await a.pings("203.0.113.2", tries=1)


async def test_a_bond_and_a_bridge_over_two_wires(wired: Pair) -> None:
    """The bond goes on by its other member when one is down."""
    a, b = wired.a, wired.b
    bond = pb.BondLink(mode="active-backup", miimon=100)
    await a.apply(
        by_name("bond0", bond=bond, addresses=("192.0.2.1/24", "2001:db8::1/64")),
        *(at_path(path, name=f"w{n}", master="bond0") for n, path in enumerate(PATHS)),
    )
    await b.apply(
        *(at_path(path, name=f"w{n}", master="br0") for n, path in enumerate(PATHS)),
        by_name("br0", bridge=pb.BridgeLink(), addresses=("192.0.2.2/24", "2001:db8::2/64")),
    )
    for side, top, kind in ((a, "bond0", "bond"), (b, "br0", "bridge")):
        links = await side.links()
        assert links[top]["linkinfo"]["info_kind"] == kind
        assert [links[name]["master"] for name in ("w0", "w1")] == [top, top]
    assert (await a.links())["bond0"]["linkinfo"]["info_data"]["mode"] == "active-backup"
    assert await a.pings("192.0.2.2")
    assert await b.pings("2001:db8::1")
    data = (await a.links())["bond0"]["linkinfo"]["info_data"]
    await a.do(f"link set {data['active_slave']} down")
    assert await a.pings("192.0.2.2")
    after = (await a.links())["bond0"]["linkinfo"]["info_data"]
    assert {data["active_slave"], after["active_slave"]} == {"w0", "w1"}


# Events.


class Events:
    """What Watch tells from a mark on, in order."""

    def __init__(self, side: NetGuest) -> None:
        self._side = side
        self._call: Any = None
        self.seen: list[sandbox.Event] = []

    async def begin(self) -> Events:
        """The mark is an interface that appears, and is told."""
        self._call = self._side.guest.sandbox.Watch(sandbox.WatchRequest(), timeout=240)
        await self._side.do("link add ev0 type dummy")
        await self.until(sandbox.EVENT_KIND_INTERFACE_CHANGED, "ev0", change="appeared")
        return self

    async def until(self, kind: int, subject: str, **details: str) -> sandbox.Event:
        """The next one like that."""
        async with asyncio.timeout(PATIENCE):
            while True:
                event = await self._call.read()
                assert isinstance(event, sandbox.Event), "the stream ended"
                self.seen.append(event)
                like = details.items() <= dict(event.details).items()
                if (event.kind, event.subject) == (kind, subject) and like:
                    return event

    def end(self) -> None:
        self._call.cancel()


async def test_what_others_do_is_told(wired: Pair) -> None:
    link, address, route = (
        sandbox.EVENT_KIND_INTERFACE_CHANGED,
        sandbox.EVENT_KIND_ADDRESS_CHANGED,
        sandbox.EVENT_KIND_ROUTE_CHANGED,
    )
    a = wired.a
    await a.apply(at_path(PATHS[0], name="w0", addresses=("192.0.2.1/24",)))
    events = await Events(a).begin()
    try:
        index = str((await a.links())["w0"]["ifindex"])
        await a.do("link set w0 down", "link set w0 up")
        await events.until(link, "w0", change="changed", up="no", carrier="no", ifindex=index)
        await events.until(link, "w0", change="changed", up="yes", mac=macs("a")[0])
        await a.do("address add 192.0.2.77/24 dev w0", "address del 192.0.2.77/24 dev w0")
        await events.until(address, "w0", change="added", address="192.0.2.77/24", scope="global")
        await events.until(address, "w0", change="removed", address="192.0.2.77/24")
        way = {"family": "v4", "table": "254", "destination": "198.18.0.0/15"}
        await a.do("route add 198.18.0.0/15 via 192.0.2.2", "route replace 198.18.0.0/15 dev w0")
        await events.until(route, "w0", change="added", gateway="192.0.2.2", **way)
        await events.until(route, "w0", change="replaced", gateway="", **way)
        await a.do("route del 198.18.0.0/15")
        await events.until(route, "w0", change="removed", **way)
        await a.do("link set w1 name other", "link set other mtu 1400")
        await events.until(link, "other", change="renamed", former_name="w1")
        await events.until(link, "other", change="changed", mtu="1400")
        await a.plug("more", "port6", mac="52:54:00:00:0e:0e")
        name = (await a.names())["52:54:00:00:0e:0e"]
        await events.until(link, name, change="appeared", mac="52:54:00:00:0e:0e")
        await a.unplug("more")
        await events.until(link, name, change="gone")
        await a.do("link del ev0")
        await events.until(link, "ev0", change="gone")
    finally:
        events.end()
    numbers = [event.sequence for event in events.seen]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


# An agent that dies half-way. The last ones: each takes an agent's start.


async def swap_until_it_dies(side: NetGuest) -> None:
    """Names go round without an end."""
    names = ["w0", "w1"]
    while True:
        names.reverse()
        try:
            await side.apply(*(at_path(p, name=n) for p, n in zip(PATHS, names, strict=True)))
        except aio.AioRpcError:
            return


@pytest.mark.parametrize("when", ["a temporary name is there", "one is gone again", "at random"])
async def test_no_temporary_name_outlives_an_agent(wired: Pair, when: str) -> None:
    """kill -9 in the middle of a swap: the names are the old or the new ones."""
    guest = wired.a.guest
    before = await guest.describe()
    there = "[ -e /sys/class/net/~ik* ]"
    wait = {
        "a temporary name is there": f"until {there}; do :; done",
        "one is gone again": f"until {there}; do :; done; while {there}; do :; done",
        "at random": f"sleep 0.{random.randrange(10, 99)}",
    }[when]
    killer = await guest.start(f"{wait}; kill -9 {before.agent_pid}", **PROBE)
    async with asyncio.timeout(PATIENCE):
        await swap_until_it_dies(wired.a)
    await guest.wait(killer)
    after = await guest.describe()
    assert after.agent_restarts == before.agent_restarts + 1
    listed = await guest.when_serving(
        lambda: wired.a.network.ListInterfaces(pb.ListInterfacesRequest())
    )
    await guest.remove(killer)
    async with wired.a.looking():
        names = await wired.a.names()
    assert set(names) == set(macs("a"))
    assert set(names.values()) == {"w0", "w1"}
    assert {each.name for each in listed.interfaces if each.pci_path} == {"w0", "w1"}
