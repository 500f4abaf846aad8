"""`innkeeper net` on real VMs: what is at the other end of an interface is really there."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from innkeeper.shim import commands
from innkeeper.shim.client import VmSpec
from tests.command_line import Innkeeper, Left
from tests.vm.guest import Guest, booted

pytestmark = [pytest.mark.vm, pytest.mark.network]

# Behind an answer of HTTP with this body: whoever got it was at the host.
BODY = b"here is the host"

JUMBO = ("--mtu", "9000", "--name", "lab0", "--id", "lab")
WITH_RAW_SOCKETS = {
    "capabilities": {key: ["CAP_NET_RAW"] for key in ("bounding", "effective", "permitted")}
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two VMs, and the command line."""

    a: Guest
    b: Guest

    async def net(self, *words: str, stdin: bytes = b"") -> Left:
        done = await Innkeeper(environment=os.environ)("net", *words, stdin=stdin)
        assert done.code == 0, done.err
        return done


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(image: Path) -> AsyncIterator[Pair]:
    specs = [
        VmSpec(name=f"net-{name}", image=f"{image}/", transport="serial", cpus=2) for name in "ab"
    ]
    async with booted(specs[0]) as a, booted(specs[1]) as b:
        yield Pair(a, b)


@asynccontextmanager
async def web_server() -> AsyncIterator[int]:
    """On the host's loopback; the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


async def plugged(guest: Guest) -> list[str]:
    return [each.id for each in await guest.vm.plugged()]


async def test_a_container_reaches_the_host_by_the_user_network(pair: Pair) -> None:
    name = pair.a.vm.name
    done = await pair.net("attach", name, "--user", "--id", "lan", "--name", "lan0")
    assert "lan: lan0 (" in done.lines[0]
    assert "10.0.2.15/24" in done.lines[0]
    async with web_server() as port:
        got = await pair.a.run(f"wget -T 30 -qO- http://10.0.2.2:{port}/")
    assert (got.code, got.stdout) == (0, BODY), got
    listed = (await pair.net("list", name)).out.decode()
    assert "10.0.2.15/24" in listed
    routes = json.loads((await pair.net("list", name, "--routes", "--json")).out)
    vias = [route.get("gateway") for each in routes["sets"] for route in each["routes"]]
    assert "10.0.2.2" in vias
    await pair.net("detach", name, "lan0")
    assert await plugged(pair.a) == []


async def test_two_vms_on_a_wire_reach_each_other_with_large_frames(pair: Pair) -> None:
    wire = f"lab-{secrets.token_hex(2)}"
    for number, guest in enumerate((pair.a, pair.b), 1):
        words = ("--address", f"192.0.2.{number}/24", "--address", f"2001:db8::{number}/64")
        done = await pair.net("attach", guest.vm.name, "--wire", wire, *words, *JUMBO)
        assert "MTU 9000" in done.lines[0]
    # 8972 and the headers of IPv4 and ICMP are one frame of 9000.
    await pings(pair.a, "192.0.2.2", size=8972)
    await pings(pair.b, "2001:db8::1", size=8900)
    # Either may leave and come back; the other one's end stays what it is.
    await pair.net("detach", pair.a.vm.name, "lab")
    again = ("--address", "192.0.2.1/24")
    await pair.net("attach", pair.a.vm.name, "--wire", wire, *again, *JUMBO)
    await pings(pair.b, "192.0.2.1", size=8900)
    for guest in (pair.a, pair.b):
        await pair.net("detach", guest.vm.name, "lab0")
    assert list(pair.a.vm.directory.parent.glob(".wires/*")) == []


async def pings(guest: Guest, address: str, *, size: int) -> None:
    """An answer within some tries: the other side may have to be found anew first."""
    family = "-6" if ":" in address else "-4"
    script = f"for n in 1 2 3 4 5 6; do ping {family} -c1 -W5 -s {size} {address} && exit; done"
    done = await guest.run(f"{script}; exit 1", process=WITH_RAW_SOCKETS)
    assert done.code == 0, done


FILE = """\
network:
  version: 2
  ethernets:
    lan:
      match: {pci-path: PATH}
      set-name: lan0
      mtu: 1400
      addresses: [192.0.2.10/24, "2001:db8::10/64"]
      routes:
        - {to: default, via: 192.0.2.1}
        - {to: 198.51.100.0/24, via: 192.0.2.2, table: 100}
        - {to: 203.0.113.0/24, type: blackhole}
      routing-policy:
        - {from: 192.0.2.0/24, table: 100, priority: 100}
      nameservers: {addresses: [192.0.2.53], search: [example.org]}
  dummy-devices:
    d0: {addresses: [192.0.2.200/32]}
  bridges:
    br0: {interfaces: [d0], parameters: {stp: false}}
"""


async def test_a_file_in_netplans_words_is_applied_once(pair: Pair, tmp_path: Path) -> None:
    name = pair.a.vm.name
    words = ("--isolated", "--no-configure", "--id", "lan", "--json")
    told = json.loads((await pair.net("attach", name, *words)).out)
    text = FILE.replace("PATH", told["device"]["pci_path"]).encode()
    first = (await pair.net("apply", name, "-", stdin=text)).out.decode()
    assert "lan0" in first
    assert "203.0.113.0/24" in first
    interfaces = json.loads((await pair.net("list", name, "--json")).out)["interfaces"]
    of = {each["name"]: each for each in interfaces}
    assert of["lan0"]["mtu"] == 1400
    assert {"192.0.2.10/24", "2001:db8::10/64"} <= {e["cidr"] for e in of["lan0"]["addresses"]}
    assert of["d0"]["master"] == "br0"
    rules = (await pair.net("list", name, "--rules")).out.decode()
    assert "192.0.2.0/24" in rules
    again = await pair.net("apply", name, "-", stdin=text)
    assert again.lines == ["nothing changed"]
    for interface in ("br0", "d0"):
        await pair.net("remove", name, interface)
    await pair.net("apply", name, "-", stdin=b"network: {version: 2}")
    await pair.net("detach", name, "lan")


async def test_what_the_guest_refuses_leaves_nothing_plugged_in(pair: Pair) -> None:
    """192.0.2.1 is on no network of this interface, so there is no way to it."""
    words = ("--isolated", "--address", "198.51.100.9/24", "--gateway", "192.0.2.1")
    done = await Innkeeper(environment=os.environ)("net", "attach", pair.a.vm.name, *words)
    assert (done.code, done.out) == (125, b"")
    assert await plugged(pair.a) == []


async def test_a_command_has_the_network_from_the_start(image: Path) -> None:
    run = ("run", "--image", f"{image}/", "--transport", "serial", "--net", "user,name=up0")
    async with web_server() as port:
        command = ("wget", "-T", "30", "-qO-", f"http://10.0.2.2:{port}/")
        done = await Innkeeper(environment=os.environ)(*run, "--", *command)
    assert (done.code, done.out) == (0, BODY), done.err


async def test_a_tap_of_the_host_with_a_queue_for_each_cpu(pair: Pair) -> None:
    name = f"ik{secrets.token_hex(4)}"
    if os.geteuid() or not os.access("/dev/net/tun", os.W_OK) or not shutil.which("ip"):
        pytest.skip("taps are made by root, with /dev/net/tun and ip")
    for words in (
        ("tuntap", "add", name, "mode", "tap", "multi_queue"),
        ("addr", "add", "198.51.100.1/24", "dev", name),
        ("link", "set", name, "up"),
    ):
        commands.run(["ip", *words], deadline=10)
    try:
        words = ("--address", "198.51.100.2/24", "--queues", "2", "--id", "tap")
        await pair.net("attach", pair.a.vm.name, "--tap", name, *words)
        await pings(pair.a, "198.51.100.1", size=56)
        await pair.net("detach", pair.a.vm.name, "tap")
    finally:
        commands.run(["ip", "link", "del", name], deadline=10)


async def test_passt_carries_connections_as_the_hosts_own(pair: Pair) -> None:
    """passt(1): the gateway's address, as the guest sees it, is the host."""
    if shutil.which("passt") is None:
        pytest.skip("passt is not installed")
    words = ("--address", "10.0.2.15/24", "--gateway", "10.0.2.2", "--id", "passt")
    await pair.net("attach", pair.a.vm.name, "--passt", *words)
    assert [each.source for each in await pair.a.vm.plugged()] == ["passt"]
    await pair.net("detach", pair.a.vm.name, "passt")
